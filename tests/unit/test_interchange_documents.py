"""XLIFF, TMX and gettext catalogs: what gets a translation, and what is kept."""

from __future__ import annotations

import re

import polib
import pytest

from mnmt_jax.data.translation_files import read_units
from mnmt_jax.errors import UserError
from tests.unit.made_documents import capitals, identity, translated
from tests.unit.made_markup import same, translate

XLIFF1 = """<?xml  version="1.0" encoding="UTF-8"?>
<!-- kept -->
<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2">
  <file source-language="en-US" original="a" datatype="plaintext"{target}>
    <body>
      <trans-unit id="1">
        <source>Press <g id="9">Enter</g> or <x id="8"/>click.</source>{first}
        <note>a note</note>
      </trans-unit>
      <trans-unit id="2" translate="no"><source>Locked</source></trans-unit>
      <trans-unit id="3"><source>Done</source><target state="final">Fertig</target></trans-unit>
      <trans-unit id="4"><source>New</source><target state="new">New</target></trans-unit>
      <trans-unit id="5"><source>A</source><target/>
        <alt-trans><target>x</target></alt-trans></trans-unit>
      <trans-unit id="6"><source>One. Two.</source>
        <seg-source><mrk mtype="seg">One.</mrk><mrk mtype="seg">Two.</mrk></seg-source>
      </trans-unit>
      <trans-unit id="7"><source>Call <mrk mtype="protected">FooBar</mrk></source></trans-unit>
    </body>
  </file>
</xliff>"""
XLIFF2 = """<xliff version="2.0" srcLang="en" xmlns="urn:oasis:names:tc:xliff:document:2.0">
  <file id="f"><unit id="1">
    <segment state="initial"><source>Press <pc id="1">Enter</pc><ph id="2"/>.</source></segment>
    <ignorable><source> </source></ignorable>
    <segment><source>Two</source><target>Zwei</target></segment>
  </unit></file>
</xliff>"""
TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
  <tu tuid="1">
    <tuv xml:lang="en-GB" creationid="me"><seg>A <hi>red</hi> <ph x="1">{{0}}</ph>house</seg></tuv>
    <tuv xml:lang="fr"><seg>Une maison rouge</seg></tuv>
  </tu>
  <tu><tuv xml:lang="en"><seg>Two</seg></tuv><tuv xml:lang="DE"><seg>Zwei</seg></tuv></tu>
  <tu><tuv xml:lang="fr"><seg>Trois</seg></tuv></tu>
</body></tmx>"""


def xliff1(first: str = "", target: str = "") -> str:
    return XLIFF1.format(first=first, target=target)


def test_targets_of_xliff_1():
    after, segments = translated(xliff1(), "a.xliff")
    assert [one.text for one in segments] == [
        'Press <g id="1">Enter</g> or <x id="2"/>click.',
        "New",
        "A",
        "One.",
        "Two.",
        'Call <x id="1" translate="no">FooBar</x>',
    ]
    made = '\n        <target>PRESS <g id="9">ENTER</g> OR <x id="8"/>CLICK.</target>'
    expected = xliff1(made, ' target-language="de"')
    for old, new in {
        '<target state="new">New<': '<target state="translated">NEW<',
        "<target/>": "<target>A</target>",
        "</seg-source>\n": '</seg-source>\n      <target><mrk mtype="seg">ONE.</mrk>'
        '<mrk mtype="seg">TWO.</mrk></target>\n',
        "</mrk></source></": '</mrk></source><target>CALL <mrk mtype="protected">FooBar</mrk>'
        "</target></",
    }.items():
        expected = expected.replace(old, new)
    assert after.decode() == expected


def test_line_breaks_of_units_are_those_of_text():
    source = 'Title line\nBody <x id="1"/>text here.'
    _, (segment, *_) = translated(xliff1().replace("Press", f"{source} Press"), "a.xliff")
    text, (lines,) = translate(segment.text, same, markup=segment.markup)
    assert lines[:2] == ["Title line", "Body text here."]
    assert text == segment.text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "iso-8859-1"])
def test_encodings_of_xml_are_kept(encoding, tmp_path):
    name = encoding.removesuffix("-sig").upper()
    data = TMX.replace("UTF-8", name).replace("red", "ré").encode(encoding)
    after, _ = translated(data, "a.tmx", lambda _: ['Да <g id="1">é</g><x id="2"/>'])
    assert after[:2] == data[:2] and f'encoding="{name}"' in after.decode(encoding).replace(
        "'", '"'
    )
    (tmp_path / "a.tmx").write_bytes(after)
    unit = next(read_units(str(tmp_path / "a.tmx")))
    assert unit.texts == {"en-gb": "A ré house", "fr": "Une maison rouge", "de": "Да é"}


def test_line_ends_of_xml_are_kept():
    data = xliff1(target=' target-language="de"').replace("\n", "\r\n")
    after, _ = translated(data, "a.xliff", identity)
    assert b"\r\n" in after and after.count(b"\n") == after.count(b"\r\n")


@pytest.mark.parametrize("encoding", ["utf-8", "iso-8859-1", "utf-16"])
@pytest.mark.parametrize(
    "end", ["", "\n", " \r\n<!-- </tmx> é --> <?p <?q x > ?>\n\n<!----><!-- <?r --> ", "<?pé?>"]
)
def test_what_follows_the_root_of_xml_is_kept(end, encoding):
    page = TMX.replace("UTF-8", encoding).replace("</seg>", "<!-- x --></seg>") + end
    after, _ = translated(page.encode(encoding), "a.tmx", identity)
    ends = [one.rpartition("</body></tmx>")[2] for one in (page, after.decode(encoding))]
    if encoding == "utf-16":  # it is written anew
        ends = ["".join(one.split()) for one in ends]
    assert ends[0] == ends[1]


def test_targets_of_xliff_2(tmp_path):
    after, segments = translated(XLIFF2, "a.xlf")
    assert [one.text for one in segments] == ['Press <g id="1">Enter</g><x id="2"/>.']
    text = after.decode()
    assert '<target>PRESS <pc id="1">ENTER</pc><ph id="2"/>.</target>' in text
    assert 'trgLang="de"' in text and '<segment state="translated">' in text and "Zwei" in text
    (tmp_path / "a.xlf").write_bytes(after)
    units = [dict(unit.texts) for unit in read_units(str(tmp_path / "a.xlf"))]
    assert units == [{"en": "Press Enter.", "de": "PRESS ENTER."}, {"en": "Two", "de": "Zwei"}]


def test_a_new_variant_of_tmx():
    after, segments = translated(TMX, "a.tmx")
    assert [one.text for one in segments] == ['A <g id="1">red</g> <x id="2"/>house']
    made = '<tuv xml:lang="de"><seg>A <hi>RED</hi> <ph x="1">{{0}}</ph>HOUSE</seg></tuv>\n    '
    expected = TMX.replace('<tuv xml:lang="fr"><seg>Une', f'{made}<tuv xml:lang="fr"><seg>Une')
    assert after.decode() == expected


def test_translations_are_replaced_on_request():
    for data, name, old in (
        (xliff1(), "a.xlf", "Fertig"),
        (TMX, "a.tmx", "Zwei"),
        (PO, "a.po", "Offen"),
    ):
        kept, _ = translated(data, name)
        replaced, _ = translated(data, name, overwrite=True)
        assert old in kept.decode() and old not in replaced.decode()


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (xliff1(), {"source": "fr"}, "source-language=en-US in the file, but fr is asked for"),
        (xliff1("", ' target-language="it"'), {}, "target-language=it in the file, but de is"),
        (XLIFF2, {"source": "fr"}, "srcLang=en in the file, but fr is asked for"),
        (xliff1().replace('"1.2"', '"3.0"'), {}, 'version="3.0" of XLIFF; export it as'),
    ],
)
def test_files_of_other_languages_are_refused(data, options, message):
    with pytest.raises(UserError, match=re.escape(f"a.xliff: {message}")):
        translated(data, "a.xliff", **options)


def test_the_source_language_is_that_of_the_file():
    assert len(translated(TMX, "a.tmx", source=None)[1]) == 1
    with pytest.raises(UserError, match=r"a\.tmx: names no source language; choose it"):
        translated(TMX.replace('"en"/>', '"*all*"/>'), "a.tmx", source=None)


PO = r"""# Kept comment
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"
"Language: de\n"

#. for translators
#: a.c:1
#, c-format
msgctxt "menu"
msgid "Open \"%s\""
msgstr   ""

#, fuzzy
msgid "Close"
msgstr "Offen"

msgid "One file"
msgid_plural ""
"%d files\n"
"and folders\n"
msgstr[0] ""
msgstr[1] ""

msgid ""
"Long text "
"in pieces"
msgstr ""
""

msgid "12:30"
msgstr ""

#~ msgid "Old"
#~ msgstr "Alt"

#~ msgid "Gone"
#~ msgstr ""
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_texts_of_a_catalog_without_translation_get_one(end):
    after, segments = translated(PO.replace("\n", end), "a.po")
    texts = ['Open "%s"', "One file", "%d files\nand folders\n", "Long text in pieces"]
    assert [one.text for one in segments] == texts
    expected = PO
    for old, new in {
        'msgstr   ""': r'msgstr   "OPEN \"%S\""',
        'msgstr[0] ""': 'msgstr[0] "ONE FILE"',
        'msgstr[1] ""': 'msgstr[1] ""\n"%D FILES\\n"\n"AND FOLDERS\\n"',
        'msgstr ""\n""': 'msgstr "LONG TEXT IN PIECES"',
    }.items():
        assert old in expected
        expected = expected.replace(old, new)
    assert after.decode() == expected.replace("\n", end)
    entries = polib.pofile(after.decode().replace(end, "\n"))
    assert entries[0].msgstr == 'OPEN "%S"' and entries[0].msgctxt == "menu"
    assert entries[2].msgstr_plural == {0: "ONE FILE", 1: "%D FILES\nAND FOLDERS\n"}
    assert entries[1].fuzzy and entries[0].flags == ["c-format"]


@pytest.mark.parametrize("separator", [*"\v\f\x1c\x1d\x1e\x85\u2028\u2029"])
def test_lines_of_a_catalog_end_with_line_feeds_alone(separator):
    text = PO.replace("# Kept", f"# {separator}Kept").replace(
        "#. for", f"{separator}\n#. for{separator}"
    )
    text = text.replace("Long text", f"Long{separator}text")
    after, segments = translated(text, "a.po")
    assert segments[3].text == f"Long{separator}text in pieces"
    written = [line for line in after.decode().split("\n") if line.startswith("msgstr")]
    assert [line.partition(" ")[2].strip() for line in written][1:5] == [
        r'"OPEN \"%S\""',
        '"Offen"',
        '"ONE FILE"',
        '""',  # before lines of the plural
    ]


def test_a_language_of_one_plural_form_has_the_plural():
    text = 'msgid "One"\nmsgid_plural "Many"\nmsgstr[0] ""\n'
    assert translated(text, "a.po")[0].decode() == text.replace('""', '"MANY"')


def test_empty_plural_forms_beside_filled_ones_get_a_translation():
    text = 'msgid "One"\nmsgid_plural "Many"\nmsgstr[0] "Eins"\nmsgstr[1] ""\nmsgstr[2] ""\n'
    after, segments = translated(text, "a.po")
    assert [segment.text for segment in segments] == ["Many", "Many"]
    assert after.decode() == text.replace('""', '"MANY"')
    after, _ = translated(text, "a.po", overwrite=True)
    assert after.decode() == text.replace('""', '"MANY"').replace("Eins", "ONE")


def test_encodings_of_catalogs():
    text = PO.replace("UTF-8", "ISO-8859-1").replace("Close", "Café")
    after, _ = translated(text.encode("latin-1"), "a.po")
    assert "Café" in after.decode("latin-1") and "ONE FILE" in after.decode("latin-1")
    wide, _ = translated(text.encode("latin-1"), "a.po", lambda ones: ["Да"] * len(ones))
    assert (
        wide.decode()
        == translated(text.replace("ISO-8859-1", "UTF-8"), "a.po", lambda ones: ["Да"] * len(ones))[
            0
        ].decode()
    )
    for wrong, says in (
        ("ASCII", "is not ASCII, as it says"),
        ("nothing", "declares nothing, which is not supported"),
        ("punycode", "declares punycode, which is not supported"),
    ):
        with pytest.raises(UserError, match=rf"a\.po: {says}; convert it to UTF-8"):
            translated(text.replace("ISO-8859-1", wrong).encode("latin-1"), "a.po")


def test_a_damaged_catalog_names_the_line():
    with pytest.raises(UserError, match=r"a\.po:2: no closing quote; repair"):
        translated('msgid "a"\nmsgstr "', "a.po")
    with pytest.raises(UserError, match=r"a\.po:1: unexpected; repair"):
        translated('msgstr "a"\nmsgid "b"\n', "a.po")


@pytest.mark.parametrize(("data", "name"), [(xliff1(), "a.xlf"), (TMX, "a.tmx"), (PO, "a.po")])
def test_a_translated_file_has_nothing_to_translate(data, name):
    once, _ = translated(data, name, identity)
    message = rf"{re.escape(name)}: has no text that is not translated yet; there is nothing"
    with pytest.raises(UserError, match=message):
        translated(once, name, capitals)


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        ("Language: de", {"target": "cs"}, "Language: de in the file, but cs is asked for"),
        ("Language: sr@latin", {"target": "cs"}, "Language: sr in the file, but cs is asked for"),
        ("X-Source-Language: en", {"source": "fr"}, "X-Source-Language: en in the file, but fr is"),
        (
            "Plural-Forms: nplurals=2; plural=(n != 1);",
            {"target": "cs"},
            "has Plural-Forms, but no Language; write Language: cs into the header if they are of "
            "that language, else run msginit",
        ),
    ],
)
def test_a_catalog_of_other_languages_is_refused(header, options, message):
    text = f'msgid ""\nmsgstr ""\n"{header}\\n"\n\nmsgid "Some words"\nmsgstr ""\n'
    with pytest.raises(UserError, match=rf"^a\.po: {re.escape(message)}"):
        translated(text, "a.po", **options)


@pytest.mark.parametrize("language", ["de", "de_AT", "de@formal"])
def test_a_catalog_of_the_language_keeps_its_header(language):
    text = PO.replace("Language: de", f'X-Source-Language: en_US\\n"\n"Language: {language}')
    assert f"Language: {language}\\n" in translated(text, "a.po")[0].decode()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_template_gets_the_language(end):
    text = (
        'msgid ""\nmsgstr ""\n"Language: \\n"\n'
        '"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\\n"\n\n'
        'msgid "Language: \\n"\nmsgstr ""\n'
    )
    after, _ = translated(text.replace("\n", end), "a.po", identity, target="pt_BR")
    expected = text.replace("Language: ", "Language: pt_BR", 1)
    expected = f'{expected[:-3]}"Language: \\n"\n'
    assert after.decode() == expected.replace("\n", end)


def tmx(*variants: str) -> str:
    """Return TMX of one unit; a variant is `CODE text`."""
    made = "".join(
        f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>'
        for code, _, text in (variant.partition(" ") for variant in variants)
    )
    return f'<tmx version="1.4"><header srclang="en"/><body><tu>{made}</tu></body></tmx>'


@pytest.mark.parametrize(
    ("before", "options", "after"),
    [
        ("en A|pt-PT B|pt-BR C", {"overwrite": True}, "en A|pt-BR A!|pt-PT B"),
        ("en A|pt-PT B", {}, "en A|pt-BR A!|pt-PT B"),
        ("en A|pt-PT B", {"overwrite": True}, "en A|pt-BR A!|pt-PT B"),
        ("en A|pt B", {"overwrite": True}, "en A|pt A!"),
        ("en A|fr-CA B|fr-FR C", {"overwrite": True, "target": "fr"}, "en A|fr-FR A!|fr-CA B"),
        ("en A|fr-CA B|fr-CH C", {"overwrite": True, "target": "fr"}, "en A|fr-CA A!|fr-CH C"),
        ("en-US A|en-GB B", {"source": "en_GB"}, "en-US A|en-GB B|pt-BR B!"),
        ("en-AU A", {"source": "en_GB"}, "en-AU A|pt-BR A!"),
        ("pt A|de B", {"source": "pt_PT"}, "pt A|pt-BR A!|de B"),
        ("en A", {"target": "en_GB", "overwrite": True}, "en A|en-GB A!"),
        (
            "pt-PT A|pt-BR B",
            {"source": "pt", "target": "pt_PT", "overwrite": True},
            "pt-BR B|pt-PT B!",
        ),
    ],
)
def test_variants_of_other_regions_are_kept(before, options, after):
    options = {"target": "pt_BR"} | options
    data, _ = translated(
        tmx(*before.split("|")), "a.tmx", lambda ones: [f"{one.text}!" for one in ones], **options
    )
    assert data.decode() == tmx(*after.split("|"))


def test_a_variant_of_the_target_is_not_the_source():
    with pytest.raises(UserError, match="has no text that is not translated yet"):
        translated(tmx("en-GB A", "en-US B"), "a.tmx", source="en_AU", target="en_GB")


def test_a_variant_without_region_is_a_translation():
    with pytest.raises(UserError, match="has no text that is not translated yet"):
        translated(tmx("en A", "pt B"), "a.tmx", target="pt_BR")


@pytest.mark.parametrize(
    ("data", "name", "field"),
    [
        (xliff1("", ' target-language="pt-PT"'), "a.xliff", "target-language=pt-PT"),
        (XLIFF2.replace("2.0", '2.0" trgLang="pt-PT', 1), "a.xliff", "trgLang=pt-PT"),
        ('msgid ""\nmsgstr "Language: pt_PT\\n"\n\nmsgid "A"\nmsgstr ""\n', "a.po", "Language: pt"),
    ],
)
def test_a_file_of_another_region_is_refused(data, name, field):
    message = f"{field}.* in the file, but pt_BR is asked for"
    with pytest.raises(UserError, match=message):
        translated(data, name, target="pt_BR")
    for code in ("pt", "pt-BR"):
        assert translated(re.sub("pt[_-]PT", code, data), name, target="pt_BR")[1]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            'Call <sm id="1" translate="no"/>Foo <ph id="2"/>Bar<em startRef="1"/> now.',
            'Call <x id="1" translate="no">Foo Bar</x> now.',
        ),
        (
            '<sm id="1" translate="no"/>A<sm id="2" translate="no"/>B<em startRef="1"/>C'
            '<em startRef="2"/> word<sm id="3"/>s<em startRef="3"/>',
            '<x id="1" translate="no">ABC</x> word<g id="2">s</g>',
        ),
        (
            'See <pc id="9"><sm id="1" translate="no"/>Foo <pc id="2">Bar</pc></pc>.',
            'See <g id="1"><x id="2" translate="no">Foo Bar</x></g>.',
        ),
    ],
)
def test_text_between_marks_of_xliff_2_is_protected(source, text):
    file = XLIFF2.replace('Press <pc id="1">Enter</pc><ph id="2"/>.', source)
    after, (segment, *_) = translated(file, "a.xlf", identity)
    assert segment.text == text
    assert f"<target>{source}</target>" in after.decode()


def test_a_replaced_translation_is_not_approved():
    second = XLIFF2.replace("<segment>", '<segment state="final" subState="a:b">')
    for file, marked in (
        (xliff1().replace('id="3"', 'id="3" approved="yes"'), '<target state="final"'),
        (xliff1().replace('"final"', '"signed-off" state-qualifier="exact-match"'), ""),
        (second, '<segment state="final" subState="a:b">'),
    ):
        kept, replaced = (translated(file, "a.xlf", overwrite=flag)[0] for flag in (False, True))
        assert marked in kept.decode()
        assert not re.search("approved|final|signed-off|state-q|subState", replaced.decode())
        assert len(re.findall('state="translated"', replaced.decode())) == 2


def test_a_file_of_several_source_languages_is_refused():
    first, second = xliff1().replace(">\n", ">").split("<file", 1)
    parts = [f"<file{second.partition('</xliff>')[0]}" for _ in range(2)]

    def file(code: str) -> str:
        return f"{first}{parts[0]}{parts[1].replace('en-US', code)}</xliff>"

    with pytest.raises(UserError, match=r"a\.xlf: source-language is en-US and fr; make a file of"):
        translated(file("fr"), "a.xlf", source=None)
    assert len(translated(file("en-GB"), "a.xlf", source=None)[1]) == 12
