"""Tags, placeholders and ICU messages in texts of files for translators."""

from __future__ import annotations

import re

import polib
import pytest

from mnmt_jax.documents.segments import DocumentOptions, Segment
from mnmt_jax.documents.tagged_text import TaggedText
from mnmt_jax.errors import UserError
from tests.unit.made_documents import identity, translated
from tests.unit.made_markup import same, translate

XLIFF = (
    '<xliff version="1.2"><file source-language="en" target-language="de"><body>'
    "<trans-unit><source>{}</source>{}</trans-unit></body></file></xliff>"
)
TMX = (
    '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>{}</seg></tuv>{}'
    "</tu></body></tmx>"
)


def lossy(segments):
    """Translate lines to themselves without the marks that models lose."""
    return [
        translate(
            segment.text,
            lambda line: same(re.sub(r"</?[a-z][^>]*>|%@|%\d|(?<=%)%", "", line)),
            markup=segment.markup,
        )[0]
        for segment in segments
    ]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("", r"Read <a href=\"x?a=1&b=2\">this & that</a>, or R&D."),
        ("", r"Use &lt;5&gt; for <b>bold</b>.\n\nIf it is, <br>go on.\n"),
        ("", r"If a > b, <br/>go on.\n"),
        ("", r"<p>First.</p>\n<p>Second <img src=\"%s\"/>one.</p>"),
        ("c-format", "100%% of %d files"),
        ("objc-format", "Hello %@"),
        ("qt-format", "Saved %1 of %2 < 3 & %n files"),
        ("kde-format", "Saved %1 in <a href='%2'>this <b>folder</b></a>."),
        ("boost-format", "Saved %1% to %2%."),
    ],
)
def test_tags_and_placeholders_are_in_the_translation(flags, text):
    after, _ = translated(f'#, {flags}\nmsgid "{text}"\nmsgstr ""\n', "a.po", lossy)
    (entry,) = polib.pofile(after.decode())
    assert entry.msgstr == entry.msgid and entry.msgid


@pytest.mark.parametrize(
    ("text", "segment"),
    [
        ("Usage: run <file> [<name>]", Segment("Usage: run <file> [<name>]")),
        ("a < b > c, 5 <br", Segment("a < b > c, 5 <br")),
        ("%1 of the users", Segment("%1 of the users")),
        ("<b>R&D</b>", Segment("<b>R&D</b>", "html")),
    ],
)
def test_prose_has_no_markup(text, segment):
    assert TaggedText(text).segment == segment
    assert TaggedText(text, ["c-format", "fuzzy"]).segment == segment


@pytest.mark.parametrize(("file", "name"), [(XLIFF, "a.xliff"), (TMX, "a.tmx")])
def test_tags_in_the_text_of_xml(file, name):
    text = "<![CDATA[<p>R&D <b>and</b>\nmore</p>]]>"
    after, (segment,) = translated(file.format(text, ""), name, lossy)
    assert segment == Segment("<p>R&D <b>and</b>\nmore</p>", "html")
    written = "&lt;p&gt;R&amp;D &lt;b&gt;and&lt;/b&gt; more&lt;/p&gt;"
    assert f">{written}</" in after.decode()


def test_a_tag_without_text_is_not_translated():
    with pytest.raises(UserError, match="has no text that is not translated yet"):
        translated('msgid "<img src=\'a.png\'/>"\nmsgstr ""\n', "a.po")
    after, _ = translated(
        XLIFF.format("&lt;br/&gt;", "").replace("<body>", "<body>" + UNIT), "a.xlf", identity
    )
    assert "<source>&lt;br/&gt;</source><target>&lt;br/&gt;</target>" in after.decode()


UNIT = "<trans-unit><source>Words</source></trans-unit>"
MESSAGE = "You have {n, plural, one {a file} other {# files}}."


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (XLIFF.format(MESSAGE, "").replace("<body>", f"<body>{UNIT}"), "a.xlf"),
        (
            TMX.format(MESSAGE, "").replace("<body>", f"<body>{TMX.format('Words', '')[47:-13]}"),
            "a.tmx",
        ),
        (f'msgid "{MESSAGE}"\nmsgstr ""\n\nmsgid "Words"\nmsgstr ""\n', "a.po"),
    ],
)
def test_icu_messages_are_left_out_with_a_warning(data, name):
    warnings: list[str] = []
    after, segments = translated(data, name, warn=warnings.append)
    assert [segment.text for segment in segments] == ["Words"]
    assert warnings == [
        f"{name}: 1 ICU message (plural, select) not translated; translate them by hand"
    ]
    assert after.decode().count(MESSAGE) == 1 and "WORDS" in after.decode()
    assert translated(data, name)[0] == after  # options without a receiver of warnings
    assert DocumentOptions("de").warn("") is None
