"""Markdown documents: what is translated, and the structure that is kept."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from mnmt_jax.errors import UserError
from tests.processor_time import is_quicker_than
from tests.unit.made_documents import capitals, identity, translated

PAGE = """---
title: A *title*
---
# 1. A heading with `code`

A paragraph with **bold text** and _emphasis_, a [link to *it*](http://x.y "t"),
wrapped over [ref] two lines \\* and &amp; so on.\x20\x20
A break <kbd>Ctrl</kbd> ![img](a.png) ~~gone~~ <http://auto.link>.

> quoted text that
> goes on

1. one item
   continues here
2. [ ] a task[^1]

| a b | c \\| d |
|-----|---|
| x `a\\|b` y | z |

Setext
======

```py
code
```

    indented code

<div>
A block
</div>

<!-- comment -->

[ref]: http://ref "title"
[^1]: The note here.
"""
TEXTS = [
    'A heading with <x id="1" translate="no">code</x>',
    'A paragraph with <g id="1">bold text</g> and <g id="2">emphasis</g>, a <g id="3">link to '
    '<g id="4">it</g></g>, wrapped over <g id="5">ref</g> two lines * and &amp; so on.',
    'A break <g id="1">Ctrl</g> <x id="2"/> <g id="3">gone</g> '
    '<x id="4" translate="no">http://auto.link</x>.',
    "quoted text that goes on",
    "one item continues here",
    "a task",
    "a b",
    "c | d",
    'x <x id="1" translate="no">a\\|b</x> y',
    "z",
    "Setext",
    "<div>\nA block\n</div>",
    "The note here.",
]


def structure(text: str) -> list[object]:
    """Return the tokens of a page without their text."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return [
        [
            token.type,
            token.tag,
            token.attrs,
            [(one.type, one.attrs) for one in token.children or ()],
        ]
        for token in tokens
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_untranslated_page_is_the_same(end):
    data = PAGE.replace("\n", end).encode()
    after, segments = translated(data, "a.md", identity)
    assert after == data
    assert [one.text.strip().removeprefix("1. ") for one in segments[:-2]] == TEXTS[:-2]
    assert [segment.markup for segment in segments].count("html") == 1


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ("- One item\n\tgoes on\n- Two\n", ["One item goes on", "Two"]),
        ("1. One *item\n\tgoes* on\n", ['One <g id="1">item goes</g> on']),
        (">\tOne quote\n>\tgoes on\n", ["One quote goes on"]),
        ("* One item  \n\t\tgoes on\n", ["One item", "goes on"]),
        ("1. A step\n   <p>\n   A block</p>\n", ["A step", "<p>\nA block</p>"]),
        ("> <div>\n> A block\n> </div>\n", ["<div>\nA block\n</div>"]),
        ("- A\n\n\t<div>\n\t\tB c</div>\n", ["A", "<div>\nB c</div>"]),
        ("> <textarea>\n>\n>  A</textarea>\n> b", ["<textarea>\n\n A</textarea>", "b"]),
        ("A word\0\n", ["A word\ufffd"]),
    ],
)
def test_text_after_tabs_and_html_in_lists_and_quotes_are_translated(page, texts):
    kept, segments = translated(page, "a.md", identity)
    assert [segment.text for segment in segments] == texts
    page = page.replace("\0", "\ufffd")
    assert kept.decode() == page
    after, _ = translated(page, "a.md")
    tags = re.compile(r"<[^>]*>|[^<]+")
    upper = tags.sub(lambda match: match[0] if match[0][0] == "<" else match[0].upper(), page)
    assert after.decode() == upper


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        (
            "A <code>b *c*\n<i>d</i> &amp;</code> e\nf",
            'A <x id="1" translate="no">b *c*\nd &amp;</x> e f',
            "A <code>b *c*\n<i>d</i> &amp;</code> E\nF",
        ),
        (
            "A <ruby>b<rt>read</rt></ruby> c",
            'A <g id="1">b<x id="2"/></g> c',
            "A <ruby>B<rt>read</rt></ruby> C",
        ),
        (
            "A *b* <b translate=no>c</b>",
            'A <g id="1">b</g> <x id="2" translate="no">c</x>',
            "A *B* <b translate=no>c</b>",
        ),
    ],
)
def test_untranslated_elements_of_html_stay_in_paragraphs(page, text, expected):
    def translate(segments):
        assert [segment.text for segment in segments] == [text]
        return capitals(segments)

    assert translated(page, "a.md", translate)[0].decode() == expected


@pytest.mark.parametrize(
    "page", ["<!-- only a comment -->\n", "<pre>\ncode\n</pre>\n", "12 <code>abc</code>\n"]
)
def test_a_page_without_text_is_refused(page):
    with pytest.raises(UserError, match=r"a\.md: has no text; there is nothing to translate"):
        translated(page, "a.md")


def test_a_translated_page_has_the_same_structure():
    after, _ = translated(PAGE, "a.md")
    text = after.decode()
    assert structure(text) == structure(PAGE)
    for kept in ("title: A *title*", '(http://x.y "t")', "(a.png)", "<http://auto.link>"):
        assert kept in text
    for kept in ("`a\\|b`", "```py\ncode\n```", "    indented code", "[ref]: http://ref", "[ ] A"):
        assert kept in text
    assert "WRAPPED OVER [REF] TWO LINES \\* AND &amp; SO ON.  \nA BREAK <kbd>CTRL</kbd>" in text
    assert "> QUOTED TEXT THAT\n> GOES ON\n" in text and "2. [ ] A TASK[^1]\n" in text
    assert "# 1. A HEADING WITH `code`" in text and "| C \\| D |" in text
    assert "<div>\nA BLOCK\n</div>" in text and "[^1]: THE NOTE HERE." in text


@pytest.mark.parametrize(
    ("page", "translation", "expected"),
    [
        ("A word", "1. *x* <b> `y` [a](b)", "1\\. \\*x\\* \\<b\\> \\`y\\` \\[a\\](b)"),
        ("A word", "- x", "\\- x"),
        ("A word", "# x", "\\# x"),
        ("A word", "[x]: y", "\\[x]: y"),
        ("A word", "== x", "== x"),
        ("A word", "___", "\\___"),
        ("a b c\nd", "x == y", "x ==\ny"),
        ("# A word", "1. x", "# 1. x"),
        ("a\nb\nc d", "x  y", "x\ny"),
        ("a\\\nb\nc", "x y", "x y\\\nx\ny"),
        ("a", "    x ", "x"),
        ("one two three\nfour", "eins - zwei", "eins -\nzwei"),
        ("one two three\nfour", "eins zwei 3. x", "eins zwei 3.\nx"),
        ("a **b c** d", 'x<g id="1"> y </g>z', "x **y** z"),
        ("a **b c** d", 'x<g id="1">y.</g>z', "x**y**.z"),
        ("a **b c** d", 'x<g id="1">, y z,</g> y', "x, **y z,** y"),
        ("a **b c** d", 'x<g id="1">, y,</g>z', "x, **y**,z"),
        ("a **b c** d", 'これは<g id="1">試験。</g>次', "これは**試験**。次"),
        ("a **b c** d", 'x<g id="1">(y)</g>, z', "x **(y)**, z"),
        ("a **b c** d", 'x (<g id="1">(y)</g>z)', "x (**(y)** z)"),
        ("a **b c** d", 'x<g id="1">y &amp;</g>z', "x **y \\&** z"),
        ("a _b c_ d", 'x<g id="1">y</g>, z', "x _y_, z"),
        ("a *b* **c** d", 'x <g id="1">y</g><g id="2">z.</g>w', "x *y***z**.w"),
        ("a _b c_ d", 'x <g id="1">y</g>z', "x _y_ z"),
        ("a `b`.", 'x y<x id="1" translate="no">b</x>.', "x y `b`."),
        ("a: `b` c", 'x:<x id="1" translate="no">b</x>y', "x: `b` y"),
        ("a `b` c", 'x (<x id="1" translate="no">b</x> .', "x (`b`."),
        ("a **b** `c` d", '<g id="1">x</g><x id="2" translate="no">c</x> y', "**x** `c` y"),
        (
            "a `b`, `c`",
            'x<x id="1" translate="no">b</x><x id="2" translate="no">c</x>',
            "x `b` `c`",
        ),
        ("a-`b`-c", 'x-<x id="1" translate="no">b</x>-y', "x-`b`-y"),
        ("a `b` c", '試<x id="1" translate="no">b</x>験', "試`b`験"),
        ("a [b]\n\n[b]: c", 'x <g id="1">y</g>', "x [y][b]\n\n[b]: c"),
        ("a [B  b]\n\n[b b]: c", 'x <g id="1">b B</g>', "x [b B]\n\n[b b]: c"),
        ("a [b][c]\n\n[c]: d", 'x <g id="1">y</g>', "x [y][c]\n\n[c]: d"),
        ("|a|b|\n|-|-|\n|c|d|", "x|y", "|x\\|y|x\\|y|\n|-|-|\n|x\\|y|x\\|y|"),
        ("a\n***\nb", "x", "x\n***\nx"),
        ("a `b` c", '<x id="1"/> x y', "`b` x y"),
        ("**a** b", '<g id="1"> </g>x', "x"),
        ("a [**b**](c)", 'x<g id="1"><g id="2"/></g>', "x[](c)"),
        ("a **[![b](c)](d)** e", '<g id="1"><g id="2"><x id="3"/></g></g> x', "**[![b](c)](d)** x"),
        ("*a*b", '<g id="1">x</g> y', "*x* y"),
        ("***a** b*", 'x <g id="1">y</g>', "*x **y***"),
        ("**a*", 'x <g id="1">y</g>', "x *y*"),
        ("+++\nt: a\n+++\nb", "x", "+++\nt: a\n+++\nx"),
        ("a[^1].\n\n[^1]: http://b.c", 'x y<x id="1"/>.', "x y[^1].\n\n[^1]: http://b.c"),
        ("a[^b][^c].\n\n[^c]: d", 'x<x id="1"/><x id="2"/>.', "x[^b][^c].\n\n[^c]: d"),
        ("a [^b](c) d", 'x <g id="1">y</g>', "x [y](c)"),
        ("> <p>a\n> b\n> c</p>", "<p>x\ny</p>", "> <p>x\n> y</p>"),
        ("1. <p>a</p>", "<p>x\ny</p>", "1. <p>x\ny</p>"),
    ],
)
def test_translations_do_not_become_markup(page, translation, expected):
    after, _ = translated(page, "a.md", lambda ones: [translation] * len(ones))
    assert after.decode() == expected


@pytest.mark.parametrize(
    "text",
    [
        "[" * 6000,
        "*a " * 6000,
        "`" * 6000,
        "<a" * 6000,
        "**_" * 3000,
        "- " * 3000,
        "![" * 6000,
        "> " * 3000,
        "a|" * 5000 + "\n" + "-|" * 5000,
        "&a;" * 6000,
        "one two three four\n" * 10_000,
        "see `a` here " * 12_000,
        "see " + "<http://a.b>" * 10_000,
        "<i>" * 6000 + "deep" + "</i>" * 6000,
    ],
)
def test_repetitive_pages_take_little_time(text):
    def run():
        after, _ = translated(f"Word\n\n{text}", "a.md", identity)
        assert after.decode() == f"Word\n\n{text}"

    assert is_quicker_than(4, run)


@pytest.mark.parametrize(
    ("page", "levels"),
    [
        (lambda n: "".join("  " * k + f"- item {k}\n" for k in range(n)), 32),
        (lambda n: ">" * n + " text\n", 64),
        (lambda n: "> 1. " * (n - 1) + "text\n", 22),
    ],
)
def test_deep_lists_and_quotations_are_translated_or_refused(page, levels):
    rest = "\nThe end.\n"
    after, _ = translated(page(levels) + rest, "a.md")
    assert after.decode() == (page(levels) + rest).upper()
    line = page(levels + 1).count("\n")
    message = f"a.md, line {line}: is in more than 32 lists or 64 quotations; nest it less deeply"
    with pytest.raises(UserError, match=re.escape(message)):
        translated(page(levels + 1) + rest, "a.md")


def test_too_long_pages_are_refused():
    with pytest.raises(UserError, match=re.escape("a.md: has more than 2 MiB of Markdown; divide")):
        translated(b"word\n" * (1 << 19), "a.md", capitals)


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ("---\n\nFirst text.\n\n---\n\nSecond text.\n", ["First text.", "Second text."]),
        ("--- \n \nFirst text.\n\n---\n", ["First text."]),
        ("---\ntitle: T\n\n---\n\nSecond text.\n", ["Second text."]),
        ("---\n---\nSecond text.\n", ["Second text."]),
        ("+++\n\ntitle = 'T'\n+++\nSecond text.\n", ["Second text."]),
    ],
)
def test_a_thematic_break_begins_no_front_matter(page, texts):
    after, segments = translated(page, "a.md", identity)
    assert [segment.text for segment in segments] == texts and after.decode() == page


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ("[Home](a)[About](b)", ["Home", "About"]),
        ("**[Home](a)[About](b)**", ["Home", "About"]),
        ("a <button>Save</button><button>Stop</button>", ["a", "Save", "Stop"]),
        ("Name <input> City<input>", ["Name", "City"]),
    ],
)
def test_links_and_form_controls_beside_each_other_are_different_texts(page, texts):
    after, segments = translated(page, "a.md", identity)
    assert [segment.text.strip() for segment in segments] == texts and after.decode() == page


@pytest.mark.parametrize(
    "page",
    [
        "> Roses are red,  \n> violets are blue.\n",
        "> **Note:** one two\\\n> *three* four\n",
        "> - a list  \n>   in quote  \nand lazy\n> lines\n",
        "1. a `b\n   c` d  \n\t e [f](g\n   'h') <i\n   j>k</i>\n",
        ">\ta `b\n>\tc`  \n>d\n",
        "> a  \n> 2. b\n",
        "> \\\n>    \\\n>  two\n",
        "a  \nb\n===\n\n> c\\\n>  d\n> ---\n",
    ],
)
def test_line_breaks_in_quotes_and_lists_keep_the_marks(page):
    assert translated(page, "a.md", identity)[0].decode() == page
    after = translated(page, "a.md")[0].decode()
    assert structure(after.lower()) == structure(page)


@pytest.mark.parametrize(
    ("page", "translations", "expected"),
    [
        ("Born on  \nJanuary 1", ["Am", "1. Januar"], "Am  \n1\\. Januar"),
        ("> Born on\\\n> January 1", ["Am", "1. Januar"], "> Am\\\n> 1\\. Januar"),
        ("- Born on  \n  today\n", ["- Am", "# heute"], "- \\- Am  \n  \\# heute\n"),
        ("a  \nb  \nc\n", ["x", "===", "> y"], "x  \n\\===  \n\\> y\n"),
        ("January 1\n===\n", ["1. Januar"], "1\\. Januar\n===\n"),
        ("A day  \nmore\n---\n", ["x", "- y"], "x  \n\\- y\n---\n"),
        ("> a *b* c\n> d e\n", ['x <g id="1">y</g> z - w v'], "> x *y* z -\n> w v\n"),
    ],
)
def test_a_translation_starts_no_block_after_a_break_or_in_a_heading(page, translations, expected):
    after = translated(page, "a.md", lambda _: translations)[0].decode()
    assert after == expected
    assert [one[0] for one in structure(after)] == [one[0] for one in structure(page)]
