"""Catalogs without a header, templates, variants of white space, and control characters."""

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


@pytest.mark.parametrize("variant", ["", "\n   ", "<ph/>", "Hallo"])
def test_a_variant_of_white_space_is_no_translation(variant):
    head = '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>Hello</seg>'
    tail = f'</tuv><tuv xml:lang="de"><seg>{variant}</seg></tuv></tu></body></tmx>'
    if variant.strip():
        with pytest.raises(UserError, match="there is nothing to translate"):
            translated(head + tail, "a.tmx")
    else:
        assert b"<seg>HELLO</seg>" in translated(head + tail, "a.tmx")[0]


@pytest.mark.parametrize("character", ["\x0b", "\x0c", "\x1c"])
def test_a_control_character_of_space_separates_words(character):
    data, _ = translated(f"First page{character}second\x01 page\n", "a.md")
    assert data.decode().split() == ["FIRST", "PAGE", "SECOND", "PAGE"]
