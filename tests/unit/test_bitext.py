"""TMX, XLIFF and PO files as corpora."""

import gzip
import json
import logging
import sys

import pytest

from mnmt_jax.commands import evaluate
from mnmt_jax.commands.benchmark_corpus import benchmark_corpus
from mnmt_jax.data import translation_files
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.text_reader import Cleaning
from mnmt_jax.data.translation_file_corpus import BitextFiles
from mnmt_jax.data.translation_files import read_units
from mnmt_jax.errors import UserError
from tests.made_pages import tmx
from tests.run_commands import command
from tests.unit import made_text
from tests.unit.test_file_bombs import little_memory

FEW_PIECES = "--vocab_size=40", "--no-byte_fallback"
TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en-US" segtype="sentence" adminlang="en"/><body>
<tu tuid="1"><prop type="x">no text</prop>
  <tuv xml:lang="en-US"><note>nor this</note>
    <seg>Press <bpt i="1">&lt;b&gt;</bpt>Save<ept i="1">&lt;/b&gt;</ept> &amp; wait<!-- a
    comment --><?and an instruction?>.</seg></tuv>
  <tuv xml:lang="de"><seg>Drücken Sie <hi>Speichern</hi><ph type="lb"/>und
     warten<ph>{0}</ph>.</seg></tuv></tu>
<tu><tuv lang="EN_us"><seg>Only English and French</seg></tuv>
  <tuv lang="fr"><seg>Anglais<ph>&lt;br/&gt;</ph>et français</seg></tuv></tu>
<tu><tuv xml:lang="en-US"><seg>No translation</seg></tuv><tuv xml:lang="de"><seg> </seg></tuv></tu>
<tu><tuv xml:lang="en-US"><seg>Two ways</seg></tuv><tuv xml:lang="de"><seg>Ein Weg</seg></tuv>
  <tuv xml:lang="de"><seg>Zwei Wege</seg></tuv></tu>
</body></tmx>
"""
XLIFF1 = """<?xml version="1.0"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file source-language="en" target-language="de-DE" original="a">
<header><note>x</note></header><body>
<trans-unit id="1"><source>Hello <g id="1">there</g><x id="2"/>!</source>
  <target>Hallo <g id="1">du</g>!</target>
  <alt-trans><source>Hi</source><target>He</target></alt-trans></trans-unit>
<group translate="no">
  <trans-unit id="2"><source>ACME</source><target>ACME</target></trans-unit>
  <trans-unit id="3" translate="yes"><source>Open<x id="1" ctype="lb"/>it</source>
    <target state="translated">Öffne<ph id="1" ctype="x-html-BR">&lt;x&gt;</ph>es</target>
  </trans-unit></group>
<trans-unit id="4"><source>New</source><target state="new">New</target></trans-unit>
<trans-unit id="5"><source>Unsure</source>
  <target state="needs-review-translation">Unsicher</target></trans-unit>
<trans-unit id="6" approved="no"><source>Denied</source><target>Verneint</target></trans-unit>
<trans-unit id="7"><source>Missing</source></trans-unit>
<trans-unit id="8"><source>Segments</source>
  <seg-source><mrk mtype="seg" mid="1">Segments</mrk></seg-source>
  <target><mrk mtype="seg" mid="1">Teile</mrk></target></trans-unit>
</body></file></xliff>
"""
XLIFF2 = """<?xml version="1.0"?>
<x:xliff xmlns:x="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="fr">
<x:file id="f"><x:group id="g"><x:unit id="1">
<x:notes><x:note>x</x:note></x:notes>
<x:segment><x:source>One <x:pc id="1">bold</x:pc>.</x:source>
  <x:target>Un <x:pc id="1">gras</x:pc>.</x:target></x:segment>
<x:ignorable><x:source> </x:source></x:ignorable>
<x:segment state="final"><x:source>Two<x:ph id="2" subType="xlf:lb"/>lines</x:source>
  <x:target>Deux<x:cp hex="000b"/> lignes</x:target></x:segment>
<x:segment state="initial"><x:source>Three</x:source><x:target>Three</x:target></x:segment>
</x:unit></x:group>
<x:unit id="2" translate="no">
  <x:segment><x:source>Name</x:source><x:target>Name</x:target></x:segment></x:unit>
</x:file></x:xliff>
"""
PO = r"""# A comment
#, fuzzy
msgid ""
msgstr ""
"Language: pt_BR\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=__import__('os').abort();\n"

#: file.c:1
msgctxt "menu"
msgid "Open the\n"
"file"
msgstr "Abra o\targuivo"

#, fuzzy
msgid "Unsure"
msgstr "Inseguro"

msgid "Missing"
msgstr ""

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d arquivo"
msgstr[1] "%d arquivos"

#~ msgid "Old"
#~ msgstr "Velho"
"""
DROP = Cleaning(on_bad_line="drop", max_characters=40)


def write(folder, **files):
    """Write texts; a name's last "_" is a full stop."""
    for name, text in files.items():
        path = folder / ".".join(name.rsplit("_", 1))
        path.write_text(text, encoding="utf-8")
    return str(path)


def corpus(*paths, languages=(), **options):
    return BitextFiles("x", list(map(str, paths)), languages, splits={"train": ""}, **options)


def test_tmx(tmp_path, caplog):
    actual = corpus(write(tmp_path, a_tmx=TMX))
    assert actual.languages == ("en", "de", "fr")
    assert actual.directions("train") == (("en", "de"), ("en", "fr"), ("de", "en"), ("fr", "en"))
    with caplog.at_level(logging.WARNING):
        assert list(actual.pairs("train", ("de", "en"))) == [
            ("Drücken Sie Speichern und warten.", "Press Save & wait."),
            ("Ein Weg", "Two ways"),
        ]
    assert actual.reports["train", ("de", "en")].dropped == {"untranslated": 1}
    assert f"dropped 1 of 3 lines (untranslated 1; first: {tmp_path}/a.tmx:12)" in caplog.text
    assert list(actual.pairs("train", ("en", "fr"))) == [
        ("Only English and French", "Anglais et français")
    ]


def test_xliff_1(tmp_path):
    actual = corpus(write(tmp_path, a_xlf=XLIFF1))
    assert actual.languages == ("en", "de")
    assert list(actual.pairs("train", ("en", "de"))) == [
        ("Hello there!", "Hallo du!"),
        ("Open it", "Öffne es"),
        ("Segments", "Teile"),
    ]
    assert actual.reports["train", ("en", "de")].dropped == {
        "not_to_translate": 1,
        "untranslated": 2,
        "fuzzy": 2,
    }


def test_xliff_2(tmp_path):
    actual = corpus(write(tmp_path, a_xliff=XLIFF2))
    assert list(actual.pairs("train", ("en", "fr"))) == [
        ("One bold.", "Un gras."),
        ("Two lines", "Deux lignes"),
    ]
    dropped = actual.reports["train", ("en", "fr")].dropped
    assert dropped == {"untranslated": 1, "not_to_translate": 1}


def test_po(tmp_path):
    """The test would not end if the plural rule were executed."""
    actual = corpus(write(tmp_path, de_po=PO))
    assert actual.languages == ("en", "pt")
    assert list(actual.pairs("train", ("en", "pt"))) == [("Open the file", "Abra o arguivo")]
    dropped = actual.reports["train", ("en", "pt")].dropped
    assert dropped == {"fuzzy": 1, "untranslated": 1, "plural": 1, "obsolete": 1}


def test_the_language_of_a_po_file(tmp_path):
    header = 'msgid ""\nmsgstr "X-Source-Language: fr\\n"\n'
    write(tmp_path, de_po=header + '\nmsgid "Oui"\nmsgstr "Ja"\n')
    assert list(corpus(tmp_path / "de.po").pairs("train", ("fr", "de"))) == [("Oui", "Ja")]
    write(tmp_path, messages_po='msgid "Yes"\nmsgstr "Ja"\n')
    with pytest.raises(
        UserError, match=r"messages\.po: the header names no known.*name the file de\.po"
    ):
        corpus(tmp_path / "messages.po")


def test_files_of_all_formats_form_one_corpus(tmp_path):
    write(tmp_path, a_tmx=TMX, b_xlf=XLIFF1, c_xliff=XLIFF2, d_po=PO)
    with gzip.open(tmp_path / "a.tmx.gz", "wt", encoding="utf-8") as file:
        file.write((tmp_path / "a.tmx").read_text(encoding="utf-8"))
    (tmp_path / "a.tmx").unlink()
    paths = [tmp_path / name for name in ("a.tmx", "b.xlf", "c.xliff", "d.po")]
    actual = corpus(*paths)  # in each file the tag that it has
    assert actual.languages == ("en", "de", "fr", "pt")
    sizes = {"de": 2 + 3, "fr": 1 + 2, "pt": 1}
    assert {code: actual.size("train", (code, "en")) for code in sizes} == sizes
    assert actual.files("train", ("en", "de")) == (f"{tmp_path}/a.tmx.gz", f"{tmp_path}/b.xlf")
    assert corpus(*paths, languages=("en", "de", "fr", "pt")).size("train", ("en", "de")) == 5


LINE = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'


def tmx_in(*tags):
    """Return TMX with a unit for each list of tags, whose texts are the tags."""
    units = ("".join(LINE.format(tag, tag) for tag in each.split()) for each in tags)
    return f"<tmx><body>{''.join(f'<tu>{unit}</tu>' for unit in units)}</body></tmx>"


def test_language_tags_are_looked_up_per_file(tmp_path):
    write(tmp_path, us_tmx=tmx_in("en-US de"), en_tmx=tmx_in("en de", "en-GB de", "en-AU de"))
    write(tmp_path, two_tmx=tmx_in("en-US de-DE", "en_GB de-DE"), fr_tmx=tmx_in("en fr"))
    us, en, two, fr = (tmp_path / f"{name}.tmx" for name in ("us", "en", "two", "fr"))

    def texts(*paths, languages, direction=("en", "de")):
        return list(corpus(*paths, languages=languages).pairs("train", direction))

    both = [("en-US", "de"), ("en", "de")]
    assert texts(us, en, languages=("en", "de")) == both
    assert texts(us, en, fr, languages=("de", "fr", "en")) == both
    assert texts(us, en, fr, languages="en de fr".split(), direction=("en", "fr")) == [("en", "fr")]
    assert texts(us, two, languages=("en-US", "de")) == [("en-US", "de"), ("en-US", "de-DE")]
    # Several tags of a language: the first that a file has.
    assert texts(us, two, en, languages=("en-GB", "en", "de")) == [
        ("en-US", "de"),
        ("en_GB", "de-DE"),
        ("en-GB", "de"),
    ]
    for paths, languages, message in [
        (
            (us, two),
            ("en", "de"),
            r"two\.tmx: has en-us, en-gb for 'en'; choose one with --languages",
        ),
        ((us, two), (), r"two\.tmx: has en-us, en-gb for 'en'; .*, e\.g\. en-us$"),
        ((us, en), (), r"en\.tmx: has en, en-gb, en-au for 'en'"),  # what is lost must be said
        ((us, en), ("en-US", "de", "en_us"), r"--languages: 'en_us' is named twice; leave one"),
        ((us,), ("en",), "name two or more"),
    ]:
        with pytest.raises(UserError, match=message):
            corpus(*paths, languages=languages)


def test_files_without_the_requested_languages_are_refused(tmp_path):
    write(tmp_path, us_tmx=tmx_in("en-US de"), en_tmx=tmx_in("en de"), one_tmx=tmx_in("en", "de"))
    write(tmp_path, none_tmx=tmx_in(), fr_tmx=tmx_in("en fr"))
    us, en, one, none, fr = (tmp_path / f"{name}.tmx" for name in "us en one none fr".split())
    too = "; leave the file out, or name its tags in --languages too$"
    for paths, languages, message in [
        ((us, en), ("en-US", "de"), rf"en\.tmx: no texts in en-us, but in en, de{too}"),
        ((us, en), ("en-US", "en-GB", "de-AT"), rf"us\.tmx: no texts in de-at, but in .*{too}"),
        ((en, fr), ("en", "de"), rf"fr\.tmx: no texts in de, but in en, fr{too}"),
        ((en, one), ("en", "de"), rf"one\.tmx: no texts in two languages, but in en, de{too}"),
        ((en, one), (), r"one\.tmx: no texts in two languages, but in en, de; leave the file out$"),
        ((en, none), ("en", "de"), r"none\.tmx: no texts .* in none; leave the file out$"),
    ]:
        with pytest.raises(UserError, match=message):
            corpus(*paths, languages=languages)
    assert corpus(us, en, languages=("en-US", "en", "de")).size("train", ("en", "de")) == 2
    assert corpus(us, en, fr, languages=("en", "de", "fr")).size("train", ("fr", "en")) == 1


def test_splits_and_bad_lines(tmp_path):
    write(tmp_path, train_tmx=TMX, dev_tmx=TMX.replace("Ein Weg", "w" * 41))
    splits = {"train": "train", "validation": "dev", "test": "test"}
    actual = BitextFiles("x", [f"{tmp_path}/{{split}}.tmx"], splits=splits, cleaning=DROP)
    assert actual.splits() == ("train", "validation")
    assert actual.size("validation", ("en", "de")) == 1
    dropped = actual.reports["validation", ("en", "de")].dropped
    assert dropped == {"too_long": 1, "untranslated": 1}
    strict = BitextFiles(
        "x", [f"{tmp_path}/{{split}}.tmx"], splits=splits, cleaning=Cleaning(max_characters=40)
    )
    with pytest.raises(UserError, match=r"dev\.tmx:13: 41 characters, more than"):
        strict.size("validation", ("en", "de"))
    with pytest.raises(UserError, match=r"no file \S*absent\.tmx"):
        corpus(tmp_path / "train.tmx", tmp_path / "absent.tmx")
    with pytest.raises(UserError, match=r"no file \S*/\{split\}\.po"):
        BitextFiles("x", [f"{tmp_path}/{{split}}.po"], splits=splits)


ONE = '<tmx><body><tu><tuv xml:lang="en"><seg>{}</seg></tuv></tu></body></tmx>'


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tmx", ONE.format("x"), r"a\.tmx: no texts in two languages, but in en"),
        ("a.tmx", "<tmx/>", r"a\.tmx: no texts in two languages, but in none"),
        ("a.tmx", ONE.format("x")[:-9], r"a\.tmx:1: expected '>'.*; repair the file"),
        ("a.tmx", "<tmx>\n<a></b></tmx>", r"a\.tmx:2: Opening and ending tag mismatch"),
        ("a.tmx", "<xliff/>", r"a\.tmx: begins with <xliff>, not with <tmx>"),
        ("a.tmx", "", r"a\.tmx: has no element at its beginning; this is no XML"),
        ("a.tmx", "One.\n", r"a\.tmx:1: Start tag expected"),
        ("a.xlf", "<tmx/>", r"a\.xlf: begins with <tmx>, not with <xliff>"),
        ("a.txt", "One.\n", r"a\.txt: must end in \.tmx, \.xlf, \.xliff, \.po, XLIFF"),
        ("a.tmx", "<tmx>\n<a>\n</b>", r"a\.tmx:3: Opening[^,]*: a line 2 and b; repair the file"),
        ("a.po", 'msgid "a "b" c"\n', r'a\.po:1: text after the closing quote; .* \\"; repair'),
        (
            "a.po",
            'msgid "a"\nmsgid "b"\n',
            r"a\.po:2: unexpected after the lines before it; repair",
        ),
        ("a.po", "x\0", r"a\.po:1: neither a comment"),
        (
            "a.xlf",
            XLIFF1.replace('version="1.2"', 'version="9"'),
            r'a\.xlf: version="9" of XLIFF; export it as XLIFF 1\.2 or 2$',
        ),
        (
            "a.po",
            'msgid ""\nmsgstr "Language: xx\\n"\n',
            r"a\.po: the header names no known language",
        ),
        ("a.tmx", ONE.format("x").replace('"en"', '"xx"'), r"unknown language 'xx'.*--languages"),
        (
            "a.xlf",
            '<xliff><file source-language="en">\n<trans-unit><source>a</source>'
            "<target>b</target></trans-unit></file></xliff>",
            r"a\.xlf:2: no language; give target-language to the element",
        ),
    ],
)
def test_unreadable_files_are_one_error_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message) as caught:
        corpus(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", ["1.0", "1.2", "2", "2.1", " 2.2 "])
def test_versions_of_xliff(tmp_path, version):
    text = XLIFF1.replace('version="1.2"', f'version="{version}"')
    assert len(list(read_units(write(tmp_path, a_sdlxliff=text)))) == 8


def test_po_files_need_polib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "polib", None)
    with pytest.raises(UserError, match=r"de\.po: PO files need polib; pip install '\.\[po\]'"):
        corpus(write(tmp_path, de_po=PO))
    (tmp_path / "de.po").unlink()
    with gzip.open(tmp_path / "de.po.gz", "wt") as file:
        file.write(PO)
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"de\.po\.gz: PO files are not read compressed; unpack it"):
        corpus(tmp_path / "de.po")


GROWING = "".join(f'<!ENTITY e{n + 1} "{10 * f"&e{n};"}">' for n in range(9))
ENTITIES = {
    "in a text": (f'<!DOCTYPE tmx [<!ENTITY e0 "ha">{GROWING}]>', "", "&e9;"),
    "in an attribute": (f'<!DOCTYPE tmx [<!ENTITY e0 "ha">{GROWING}]>', ' version="&e9;"', "x"),
    "from a file": ('<!DOCTYPE tmx [<!ENTITY e SYSTEM "secret.txt">]>', "", "&e;"),
    "of parameters": ('<!DOCTYPE tmx [<!ENTITY % e SYSTEM "secret.txt"> %e;]>', "", "x"),
    "from a DTD": ('<!DOCTYPE tmx SYSTEM "secret.dtd">', "", "&e;"),
    "in a long beginning": ("<!DOCTYPE tmx [MANY]>", "", "x"),
}


@pytest.mark.parametrize("kind", ENTITIES)
def test_entities_are_refused(tmp_path, kind):
    declared, attribute, text = ENTITIES[kind]
    (tmp_path / "secret.txt").write_text("a secret")
    (tmp_path / "secret.dtd").write_text('<!ENTITY e "a secret">')
    body = ONE.format(text).replace("<tmx", f"<tmx{attribute}", 1)
    declared = declared.replace("MANY", '<!ENTITY e0 "x">' * 700_000)
    with gzip.open(tmp_path / "a.tmx", "wt", compresslevel=1) as file:
        file.write(declared + body)
    del declared
    message = r"a\.tmx.*(refused|write its text|amplif|no element)"
    with little_memory(), pytest.raises(UserError, match=message) as caught:
        list(read_units(str(tmp_path / "a.tmx")))
    assert "\n" not in str(caught.value) and "a secret" not in str(caught.value)


def test_a_location_beyond_the_parsers_line_limit_is_marked(tmp_path):
    unit = "<trans-unit><source>A</source></trans-unit>"
    parts = ('<xliff><file source-language="en" target-language="de">', unit, "\n" * 70_000, unit)
    write(tmp_path, a_xlf="\n".join((*parts, "</file></xliff>")))
    units = read_units(str(tmp_path / "a.xlf"))
    assert [unit.location.rpartition(":")[2] for unit in units] == ["2", "65535+"]


def test_external_dtds_are_not_read(tmp_path):
    (tmp_path / "tmx14.dtd").write_text("<!ELEMENT this is no DTD")
    assert len(list(read_units(write(tmp_path, a_tmx=TMX)))) == 4


@pytest.mark.parametrize("around", ["", "group"])
def test_xml_is_streamed_by_unit(tmp_path, around):
    """Units are freed once read; one block of the file is parsed ahead."""
    unit = "<trans-unit><source>A</source></trans-unit>"
    unit = f"<{around}>{unit}</{around}>\n" if around else f"{unit}\n"
    with gzip.open(tmp_path / "a.xlf.gz", "wt", compresslevel=1) as file:
        file.write(f"<xliff><file>\n{unit * 70_000}</file></xliff>")
    count = 0
    names = ("trans-unit", "group") if around else ("trans-unit",)
    for element in translation_files._elements(str(tmp_path / "a.xlf.gz"), "xliff", names):
        count += 1
        if count % 5000 == 0:
            assert sum(1 for _ in element.getroottree().getroot().iter()) < 4000
    assert count == 70_000 * len(names)


@pytest.mark.parametrize(
    ("text", "message"), [("x" * 10_100_000, "too long"), ("<hi>" * 300, "depth")]
)
def test_all_parts_of_xml_have_size_limits(tmp_path, text, message):
    with gzip.open(tmp_path / "a.tmx.gz", "wt", compresslevel=1) as file:
        file.write(ONE.format(text))
    with pytest.raises(UserError, match=rf"(?i)a\.tmx\.gz:1: .*{message}") as caught:
        list(read_units(str(tmp_path / "a.tmx.gz")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["cut off", "other bytes"])
def test_a_damaged_gzip_file_is_one_error_line(tmp_path, damage):
    packed = gzip.compress(TMX.encode())
    damaged = packed[: len(packed) // 2] if damage == "cut off" else packed[:-8] + bytes(8)
    (tmp_path / "a.tmx.gz").write_bytes(damaged)
    with pytest.raises(UserError, match=r"a\.tmx\.gz: unreadable \(.*copy the file again"):
        list(read_units(str(tmp_path / "a.tmx.gz")))


def tmx_of_made_text(count):
    return tmx({"en-GB": made_text.sentences("en", count), "de": made_text.sentences("de", count)})


def test_commands_read_bitext_files(tmp_path, capsys):
    write(tmp_path, train_tmx=tmx_of_made_text(30), dev_tmx=tmx_of_made_text(4))
    flags = ["--bitext", f"{tmp_path}/{{split}}.tmx", "--splits=train=train,validation=dev"]
    command(
        "train_vocabulary",
        *flags,
        "--vocab_size=40",
        "--no-byte_fallback",
        "--output",
        tmp_path / "v",
    )
    capsys.readouterr()
    command("cache_tasks", *flags, "--vocabulary", tmp_path / "v", "--output", tmp_path / "c")
    summary = json.loads(capsys.readouterr().out)
    assert summary["examples"] == {"train": 60, "validation": 8}
    cache = TokenCache.open(tmp_path / "c")
    source, _ = cache.pair("corpus_en_de", "train", 2)
    assert cache.vocabulary.decode(source) == made_text.sentence(3, "en")


def test_bitext_files_are_evaluated(tmp_path):
    parser = evaluate.make_parser()
    path = write(tmp_path, a_tmx=TMX)
    flags = parser.parse_args(["--run=x", "--task=mine", "--output=y", "--bitext", path])
    actual, languages = benchmark_corpus(flags)
    assert (actual.name, languages, actual.splits()) == ("mine", ("en", "de", "fr"), ("test",))
    assert actual.size("test", ("fr", "en")) == 1
    repeated = parser.parse_args(["--run=x", "--task=mine", "--output=y", *["--bitext", path] * 2])
    assert repeated.bitext == [path, path]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["{a}", "{b}/{{split}}.tmx"], "--bitext: {split} must be in all names or in none"),
        (["{a}", "--splits=train=x"], "--splits does not apply to files without {split}"),
        (["{a}", "--languages=en,de,nl"], r"--languages: \S*a.tmx has no text in 'nl'"),
        (["{a}", "{a}", "--languages=nl,en,de"], r"--languages: \S*, \S*a.tmx has no text in 'nl'"),
        (["{a}", "--languages=en,nl"], r"a.tmx: no texts in nl, but in en-us, de, fr; leave"),
        (["{a}", "--languages=nl,de"], r"a.tmx: no texts in nl, but in en-us, de, fr; leave"),
        (
            ["{b}/{{split}}.tmx"],
            r"corpus 'corpus': no file \S*{split}.tmx; perhaps --splits train=t",
        ),
    ],
)
def test_invalid_flags_are_refused(tmp_path, flags, message):
    path = write(tmp_path, a_tmx=TMX, train1_tmx=TMX)
    path = tmp_path / "a.tmx"
    arguments = [flag.format(a=path, b=tmp_path) for flag in flags]
    with pytest.raises(UserError, match=message):
        command(
            "cache_tasks",
            "--bitext",
            *arguments,
            "--vocab_size=40",
            "--no-byte_fallback",
            "--output",
            tmp_path / "c",
        )
    assert not (tmp_path / "c").exists()
