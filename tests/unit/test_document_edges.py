"""Headers of catalogs, templates, variants of white space, and control characters."""

from __future__ import annotations

import gettext
import io

import polib
import pytest

from mnmt_jax.errors import UserError
from tests.unit.made_documents import translated


def test_the_first_entry_of_a_catalog_without_a_header(tmp_path):
    """polib counts its line as 0, and the last line is not that of a translation of it."""
    text = 'msgid "one a"\nmsgstr ""\n\nmsgid "two b"\nmsgstr ""'
    data, segments = translated(text, "a.po")
    assert [segment.text for segment in segments] == ["one a", "two b"]
    first, second = (f'msgstr "{word}"' for word in ("ONE A", "TWO B"))
    assert data.decode() == text.replace('msgstr ""', first, 1).replace('msgstr ""', second, 1)


def test_a_translated_template_can_be_compiled():
    header = 'msgid ""\nmsgstr "Language: \\n"\n"Content-Type: text/plain; charset=CHARSET\\n"\n\n'
    data, _ = translated(f'{header}msgid "hello you"\nmsgstr ""\n', "a.po", lambda _: ["Grüß dich"])
    catalog = polib.pofile(data.decode())
    assert catalog.metadata["Content-Type"] == "text/plain; charset=UTF-8"
    compiled = gettext.GNUTranslations(io.BytesIO(catalog.to_binary()))
    assert compiled.gettext("hello you") == "Grüß dich"


@pytest.mark.parametrize("before", ["Content-Type: ", "CONTENT-TYPE: a;", 'Content-Type:"\n "'])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_only_the_header_names_the_encoding_of_a_catalog(before, end):
    head = (
        '# was charset=ISO-8859-1\nmsgid ""\nmsgstr "Subject: charset=latin1\\n"\n'
        f'"{before} charset={{}}\\n"\n\nmsgid "Grüße an alle"\n'
    ).replace("\n", end)
    entries = f'msgstr ""{end}{end}msgid "Content-Type: charset=KOI8-R"{end}msgstr ""{end}'
    for charset in ("UTF-8", "latin1"):
        page = head.format(charset)
        data = f"{page}{entries}".encode(charset)
        after, segments = translated(data, "a.po", lambda ones: ["Ä"] * len(ones))
        assert segments[0].text == "Grüße an alle" and len(segments) == 2
        assert after.decode(charset) == page + entries.replace('""', '"Ä"')
        wide, _ = translated(data, "a.po", lambda ones: ["Да"] * len(ones))
        assert wide.decode() == head.format("UTF-8") + entries.replace('""', '"Да"')


@pytest.mark.parametrize(
    ("source", "text", "written"),
    [
        (r"ring \a bell \033[1m", "ring \a bell \033[1m", r"ring \a bell \033[1m"),
        (r"ring \\a \x41\x42c\7 \42q\134", 'ring \\a ABc\a "q\\', r"ring \\a ABc\a \"q\\"),
        (r"caf\303\251 \xc3\xA9 a\12b \177", "café é a\nb \x7f", 'café é a\\n"\n"b \\177'),
        (r"a \303 b \v\t", "a \\303 b \v\t", 'a \\\\303 b \\v"\n"\\t'),
    ],
)
def test_escapes_of_a_catalog_are_read_and_written(source, text, written):
    page = f'# \\a\nmsgid "{source}"\nmsgstr ""\n'
    after, (segment,) = translated(page, "a.po", lambda ones: [one.text for one in ones])
    assert segment.text == text
    expected = f'msgstr ""\n"{written}"' if "\n" in written else f'msgstr "{written}"'
    assert after.decode() == page.replace('msgstr ""', expected)


@pytest.mark.parametrize("variant", ["", "\n   ", "<hi> </hi>", "<ph/>", "<hi><ph/></hi>", "Hallo"])
def test_a_variant_of_white_space_is_no_translation(variant):
    head = '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>Hello</seg>'
    tail = f'</tuv><tuv xml:lang="de"><seg>{variant}</seg></tuv></tu></body></tmx>'
    if "Hallo" in variant or "<ph" in variant:
        with pytest.raises(UserError, match="there is nothing to translate"):
            translated(head + tail, "a.tmx")
    else:
        assert b"<seg>HELLO</seg>" in translated(head + tail, "a.tmx")[0]


@pytest.mark.parametrize("character", ["\x0b", "\x0c", "\x1c"])
def test_a_control_character_of_space_separates_words(character):
    data, _ = translated(f"First page{character}second\x01 page\n", "a.md")
    assert data.decode().split() == ["FIRST", "PAGE", "SECOND", "PAGE"]
