"""Markup: tokens, runs, placement by alignment, random documents, and the service."""

from __future__ import annotations

import re
import time
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from mnmt_jax.decoding.alignment import Alignment
from mnmt_jax.decoding.markup_runs import text_of
from mnmt_jax.decoding.markup_tokens import MarkupReader, TagRules, attributes_of
from mnmt_jax.decoding.sentence_job import run_steps
from mnmt_jax.decoding.tag_placement import Node, place_tags
from mnmt_jax.decoding.text_translation import TextToTranslate, translation_steps
from mnmt_jax.decoding.translate_lines import Hypothesis, Translation
from mnmt_jax.errors import UserError
from tests.unit.made_translator import LINES, made_translator


def word_alignment(source: str, translation: str, links) -> Alignment:
    """Return an alignment of words from pairs (target word, source word)."""
    spans = [tuple(m.span() for m in re.finditer(r"\S+", text)) for text in (source, translation)]
    weights = np.full((len(spans[1]), len(spans[0])), 1e-3)
    for target, origin in links:
        weights[target, origin] = 1.0
    return Alignment(spans[0], spans[1], weights / weights.sum(axis=1, keepdims=True))


def reverse_words(text: str) -> Translation:
    """Translate a sentence to its words in reverse order, with their alignment."""
    words = text.split()
    count, result = len(words), " ".join(reversed(words))
    links = [(number, count - 1 - number) for number in range(count)]
    alignment = word_alignment(text, result, links)
    return Translation((Hypothesis(result, 0.0, ()),), alignment=alignment)


def upper(text: str) -> Translation:
    return Translation((Hypothesis(text.upper(), 0.0, ()),))


def same(text: str) -> Translation:
    return Translation((Hypothesis(text, 0.0, ()),))


def translate(document, function=upper, *, source="en", target="de", markup="html", **fields):
    """Return the translated document, and the lines of each step."""
    steps = []

    def run(lines):
        steps.append([line.text for line in lines])
        return [function(line.text) for line in lines]

    texts = [TextToTranslate(document, source, target, markup=markup, **fields)]
    (result,) = run_steps(translation_steps(texts, lambda *_: True), run)
    return result.text, steps


# Tokens.

BROKEN = st.text("<>/!-?[]\"'= abB&;", max_size=40)


@given(BROKEN, st.sampled_from(["html", "xml"]))
@settings(deadline=None, derandomize=True, max_examples=500)
def test_tokens_joined_are_the_document(text, markup):
    tokens = list(MarkupReader(markup).tokens(text))
    assert "".join(token.raw for token in tokens) == text
    assert all(token.raw for token in tokens)


class Tags(HTMLParser):
    """Names and attributes of the tags that the standard library's parser sees."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, {name: value or "" for name, value in reversed(attrs)}))

    def handle_endtag(self, tag):
        self.tags.append((f"/{tag}", {}))

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)


DOCUMENT = """<!DOCTYPE html><html lang="de"><head><title>A &amp; B</title>
<style>p > b { color: red }</style><script>if (a < b && "</p>") document.write("<b>");</script>
</head><body><P Class='a  b' data-x=1/2 hidden>x<br/>y<!-- <i>no</i> --><IMG alt="a > b" src=x></P>
<a href="?a=1&amp;b=2" title='He said "x>y"'>link</a></body></html>"""


def test_tags_are_those_of_the_standard_parser():
    tokens = [t for t in MarkupReader("html").tokens(DOCUMENT) if t.kind not in ("text", "other")]
    tags = [
        (f"/{t.name}", {}) if t.kind == "end" else (t.name, attributes_of(t.raw)) for t in tokens
    ]
    assert tags == Tags(DOCUMENT).tags and len(tags) > 15


@pytest.mark.parametrize(
    "unit", ["<!--", "<a ", '<a b="', '<a b=">"', "<![CDATA[", "<!DOCTYPE a[", "</", "<", "<?"]
)
def test_tokens_take_linear_time(unit):
    reader, seconds = MarkupReader("html"), []
    for count in (2_000, 20_000):
        start = time.process_time()
        list(reader.tokens(unit * count + ">"))
        seconds.append(time.process_time() - start)
    assert seconds[1] < 60 * max(seconds[0], 1e-3)


def test_a_sign_that_starts_no_tag_is_text():
    assert translate("a < b and <3 c") == ("A &lt; B AND &lt;3 C", [["a < b and <3 c"]])
    assert translate("x <b and no end")[1] == [["x <b and no end"]]


# Documents.


def test_a_sentence_is_translated_whole_whatever_tags_are_in_it():
    document = "<p>Hello <b>big <i>wide</i></b> world. How <a href='x>y'>are you</a>?</p>"
    text, (lines,) = translate(document)
    assert lines == ["Hello big wide world.", "How are you?"]
    assert text == "<p>HELLO <b>BIG <i>WIDE</i></b> WORLD. HOW <a href='x>y'>ARE YOU</a>?</p>"


def test_what_is_outside_of_sentences_is_kept_byte_for_byte():
    document = (
        "<!DOCTYPE html>\r\n<!-- Comment. --><DIV  Class = 'x'\n>\n\t<P>12 &euro; </P>"
        "<pre> a  b </pre><script>var a = '<p>b</p>';</script>&nbsp;</DIV ><?php x ?>"
    )
    assert translate(document) == (document, [])


def test_elements_over_several_sentences_stay_over_them():
    document = "<i><b>One two. Three</b> four.</i> Five <u>six. Seven</u> eight."
    text, (lines,) = translate(document)
    assert lines == ["One two.", "Three four.", "Five six.", "Seven eight."]
    assert text == document.upper().replace("<B>", "<b>").replace("</B>", "</b>").replace(
        "<I>", "<i>"
    ).replace("</I>", "</i>").replace("<U>", "<u>").replace("</U>", "</u>")


def test_white_space_in_a_sentence_is_a_space_and_around_it_is_kept():
    text, (lines,) = translate("<p>\n  A line\n  is <b>wrapped</b>\tlong.\n</p>")
    assert lines == ["A line is wrapped long."]
    assert text == "<p>\n  A LINE IS <b>WRAPPED</b> LONG.\n</p>"


def test_a_space_at_the_end_of_an_element_is_kept_between_sentences():
    assert translate("Say <b>hello. </b>World is.")[0] == "SAY <b>HELLO.</b> WORLD IS."
    assert translate("Is <b>hello <img></b> there.")[0] == "IS <b>HELLO <img></b> THERE."


def test_entities_are_characters_in_sentences_and_are_escaped_in_translations():
    text, (lines,) = translate("<p>Caf&eacute; &lt;3 &amp; more &#8211; so</p>", same)
    assert lines == ["Café <3 & more – so"]
    assert text == "<p>Café &lt;3 &amp; more – so</p>"


def test_line_breaks_and_blocks_end_sentences_and_line_ends_do_not():
    _, (lines,) = translate("one<br>two <b>three\nfour</b><hr/>five<td>six")
    assert lines == ["one", "two three four", "five", "six"]


@pytest.mark.parametrize(
    "document",
    [
        "<code>x = 1</code>",
        "<p translate='no'>Keep <b>this</b></p>",
        "<span class='a notranslate'>Keep this</span>",
        "<style>p { a: b }</style>",
        "<kept>Keep this</kept>",
    ],
)
def test_untranslated_elements_stay(document):
    rules = TagRules(ignored=frozenset({"kept"}))
    assert translate(document, tag_rules=rules) == (document, [])


def test_an_untranslated_element_that_the_translation_keeps_is_found_in_it():
    text, steps = translate("Press <code>Ctrl &amp; C</code> now.", reverse_words)
    assert steps == [["Press Ctrl & C now."], ["Press now."]]
    text, steps = translate("Press <code>Ctrl</code> now.", reverse_words)
    assert (text, steps) == ("now. <code>Ctrl</code> Press", [["Press Ctrl now."]])


def test_an_untranslated_element_that_is_lost_is_left_out_and_placed():
    text, steps = translate("Press <b>the <code>Ctrl</code> key</b> now.")
    assert steps == [["Press the Ctrl key now."], ["Press the key now."]]
    assert text == "PRESS <b>THE <code>Ctrl</code> KEY</b> NOW."


def test_placeholders_are_kept_in_marked_sentences():
    text, steps = translate("Hello <b>{name}</b> and <code>Ctrl</code> friends.")
    assert len(steps) == 3 and "{name}" in text and "<code>Ctrl</code>" in text
    assert Counter(re.findall("<.*?>", text)) == Counter(["<b>", "</b>", "<code>", "</code>"])


def test_xml_tags_are_inline_unless_they_split():
    document = "<Doc><r1>Hello </r1><r2>world</r2><T>Next one</T></Doc>"
    assert translate(document, markup="xml")[1] == [["Hello worldNext one"]]
    rules = TagRules(splitting=frozenset({"T"}))
    text, (lines,) = translate(document, markup="xml", tag_rules=rules)
    assert lines == ["Hello world", "Next one"]
    assert text == "<Doc><r1>HELLO</r1> <r2>WORLD</r2><T>NEXT ONE</T></Doc>"


def test_html_blocks_are_inline_if_they_do_not_split():
    rules = TagRules(non_splitting=frozenset({"div"}))
    assert translate("one <div>two</div>", tag_rules=rules)[1] == [["one two"]]


def test_an_entity_of_an_xml_document_is_kept():
    text, _ = translate("<a>Use &brand; now &lt;</a>", markup="xml")
    assert text == "<a>USE &brand; NOW &lt;</a>"


def test_no_sentences_are_split_on_request():
    assert translate("One. Two.", sentence_ends="none")[1] == [["One. Two."]]


def test_sentences_of_a_language_without_spaces_are_separated_in_others():
    text, _ = translate("<b>你好。再</b>见。", same, source="zh", target="en")
    assert text == "<b>你好。 再</b>见。"


def test_tags_that_are_badly_nested_are_all_kept():
    document = "one <b><i>two</b> three</i> four</u> <u>five"
    text, _ = translate(document)
    assert Counter(re.findall("<.*?>", text)) == Counter(re.findall("<.*?>", document))


@pytest.mark.parametrize("end", ["<!-- a > b", "<code>three", "<code>a<!-- b", "<script>c"])
def test_what_is_never_closed_stays_at_the_end(end):
    assert translate(f"one two {end}", reverse_words) == (f"two one {end}", [["one two"]])


def test_the_text_of_a_document():
    assert text_of(MarkupReader("html"), "<p>A <b>b</b></p><p>c<script>d</script>") == "A b\nc"


# Placement.


def test_tags_follow_their_words():
    source, translation = "the red house", "la maison rouge"
    nodes = [Node(4, 7, "<b>", "</b>"), Node(8, 13, "<i>", "</i>")]
    alignment = word_alignment(source, translation, [(0, 0), (1, 2), (2, 1)])
    assert place_tags(source, translation, nodes, alignment) == ("la <i>maison</i> <b>rouge</b>")
    assert place_tags(source, translation, nodes) == "la <b>maison</b> <i>rouge</i>"


@pytest.mark.parametrize(
    "source, expected",
    [
        ("See <b>the end</b>. Go", "Siehe <b>das Ende</b>. Geh"),
        ("See <b>the end.</b> Go", "Siehe <b>das Ende.</b> Geh"),
        ("See (<b>the end</b>) Go", "Siehe (<b>das Ende</b>) Geh"),
        ("See <b>(the end)</b> Go", "Siehe <b>(das Ende)</b> Geh"),
    ],
)
def test_marks_beside_an_element_are_inside_if_the_source_has_them_there(source, expected):
    """Whatever the marks are aligned to."""
    words = {"See": "Siehe", "the": "das", "end": "Ende", "Go": "Geh"}

    def function(text):
        translation = re.sub(r"\w+", lambda match: words[match.group()], text)
        spans = [tuple(m.span() for m in re.finditer(r"\w+|\S", t)) for t in (text, translation)]
        weights = np.eye(len(spans[0])) + 1e-3
        for row, (start, _) in enumerate(spans[1]):
            if not translation[start].isalnum():
                weights[row] = 1.0
        alignment = Alignment(spans[0], spans[1], weights / weights.sum(axis=1, keepdims=True))
        return Translation((Hypothesis(translation, 0.0, ()),), alignment=alignment)

    assert translate(source, function, sentence_ends="none")[0] == expected


def test_a_word_that_is_in_both_texts_is_aligned_to_itself():
    source, translation = "open LibreOffice with the menu", "mit dem Menu wird LibreOffice offen"
    links = [(0, 2), (1, 3), (2, 4), (3, 0), (4, 0), (5, 0)]
    alignment = word_alignment(source, translation, links)
    text = place_tags(source, translation, [Node(5, 16, "<b>", "</b>")], alignment)
    assert text == "mit dem Menu wird <b>LibreOffice</b> offen"


def test_a_piece_that_all_words_attend_to_does_not_attract_a_tag():
    """Six sevenths of all attention go to the last word; the rest is right."""
    source, translation = "a b c d", "w x y z"
    alignment = word_alignment(source, translation, [(n, n) for n in range(4)])
    weights = alignment.weights.copy()
    weights[:, 3] += 6
    weights /= weights.sum(axis=1, keepdims=True)
    biased = Alignment(alignment.source, alignment.target, weights)
    assert place_tags(source, translation, [Node(6, 7, "<b>", "</b>")], biased) == "w x y <b>z</b>"
    assert place_tags(source, translation, [Node(4, 5, "<b>", "</b>")], biased) == "w x <b>y</b> z"


def test_two_elements_that_are_aligned_to_one_word_are_beside_each_other():
    alignment = word_alignment("a b c", "x y z", [(0, 0), (0, 1), (1, 2), (2, 2)])
    nodes = [Node(0, 1, "<b>", "</b>"), Node(2, 3, "<i>", "</i>")]
    assert re.fullmatch("<(.)>x</.> <(.)>y</.> z", place_tags("a b c", "x y z", nodes, alignment))


def test_of_two_equal_words_the_nearer_one_is_taken():
    source, translation = "a b c d e f", "u v w x y z"
    alignment = word_alignment(source, translation, [(0, 5), (5, 5)])
    text = place_tags(source, translation, [Node(10, 11, "<b>", "</b>")], alignment)
    assert text == "u v w x y <b>z</b>"


def test_an_element_with_text_is_not_empty_even_if_nothing_is_aligned_to_it():
    source, translation = "a b c", "x y z"
    alignment = word_alignment(source, translation, [(0, 0), (1, 0), (2, 0)])
    text = place_tags(source, translation, [Node(2, 3, "<b>", "</b>")], alignment)
    assert re.search(r"<b>\w</b>", text)


def test_an_empty_tag_keeps_its_place_among_the_words():
    document = "one two <img> three<wbr> four five"
    text, _ = translate(document, reverse_words)
    assert Counter(re.findall("<.*?>", text)) == Counter(["<img>", "<wbr>"])
    assert translate(document)[0] == "ONE TWO <img> THREE<wbr> FOUR FIVE"


# Random documents.

NAMES = ["b", "i", "span", "a"]


@st.composite
def documents(draw, depth=3):
    """Draw a well nested XML fragment with unique ids."""
    counter = iter(range(1000))

    def content(level):
        parts = []
        for _ in range(draw(st.integers(1, 4))):
            kind = draw(st.sampled_from(["text", "element", "empty", "comment", "space"]))
            if kind == "text" or (kind == "element" and level == 0):
                parts.append(draw(st.sampled_from(["One two", "x.", "y", "A b. C", "3", "&lt;"])))
            elif kind == "element":
                name, number = draw(st.sampled_from(NAMES)), next(counter)
                parts.append(f'<{name} id="{number}">{content(level - 1)}</{name}>')
            elif kind == "empty":
                parts.append(f'<img id="{next(counter)}"/>')
            elif kind == "comment":
                parts.append(f"<!--{next(counter)}-->")
            else:
                parts.append(draw(st.sampled_from([" ", "\n ", ". "])))
        return "".join(parts)

    blocks = [f'<p id="p{n}">{content(depth)}</p>' for n in range(draw(st.integers(1, 2)))]
    return "<doc>" + "\n".join(blocks) + "</doc>"


def parents(document: str) -> dict[str, str]:
    """Return the parent of each element and comment; lxml checks that they are well nested."""
    root = etree.fromstring(document)
    pairs = {}
    for node in root.iter():
        is_comment = node.tag is etree.Comment
        name = f"<!--{node.text}-->" if is_comment else f"{node.tag} {node.get('id')}"
        above = node.getparent()
        pairs[name] = "" if above is None else f"{above.tag} {above.get('id')}"
    return pairs


@given(documents(), st.sampled_from([reverse_words, upper, same]), st.sampled_from(["html", "xml"]))
@settings(deadline=None, derandomize=True, max_examples=400)
def test_no_tag_is_lost_and_none_leaves_its_parent(document, function, markup):
    rules = TagRules(splitting=frozenset({"p"}))
    text, steps = translate(document, function, markup=markup, tag_rules=rules)
    assert parents(text) == parents(document)
    assert Counter(re.findall("<[^>]*>", text)) == Counter(re.findall("<[^>]*>", document))
    if function is same:
        joined = [
            "".join("".join(etree.fromstring(d).itertext()).split()) for d in (text, document)
        ]
        assert joined[0] == joined[1]


@given(documents())
@settings(deadline=None, derandomize=True, max_examples=100)
def test_words_stay_in_their_elements_if_they_are_aligned(document):
    """With whole words in elements, reversing twice is the document, up to spaces."""
    spaced = re.sub(r"(</?[a-z][^>]*>|<!--.*?-->)", r" \1 ", document)

    def words(document):
        return [
            (word, node.get("id"))
            for node in etree.fromstring(document).iter("p", *NAMES)
            for text in [node.text, *(child.tail for child in node)]
            for word in (text or "").split()
        ]

    text, _ = translate(spaced, same_aligned, target="zh")  # no spaces between sentences
    assert sorted(words(text)) == sorted(words(spaced))


def same_aligned(text: str) -> Translation:
    count = len(text.split())
    alignment = word_alignment(text, text, [(n, n) for n in range(count)])
    return Translation((Hypothesis(text, 0.0, ()),), alignment=alignment)


# A model.


def test_a_model_places_tags_by_its_attention():
    translator = made_translator("register", "register")
    first, *rest = LINES[0].split()
    document = f"<p>{first} <b>{rest[0]}</b> {' '.join(rest[1:])}</p>"
    plain = translator.translate_text(LINES[0], source="en", target="de")
    marked = translator.translate_text(document, source="en", target="de", markup="html")
    assert re.sub("<.*?>", "", marked.text) == plain.text
    assert re.findall("<.*?>", marked.text) == ["<p>", "<b>", "</b>", "</p>"]
    (sentence,) = marked.sentences
    assert sentence.translations[0].alignment is not None
    assert plain.sentences[0].translations[0].alignment is None
    with pytest.raises(UserError, match="markup='md': must be 'html', 'xml' or ''"):
        translator.translate_text("x", source="en", target="de", markup="md")


# Limits.


@pytest.mark.parametrize(
    "document",
    [
        "<b>" * 3000 + "some text" + "</b>" * 3000,
        "<b>x</i>" * 3000,
        "<b>A</b> b " * 2000,
        "word " * 5000,
        "a<!--x-->" * 3000,
        "a" * 190 + "<code>" + "x" * 30 + "</code>" + "b" * 400,
    ],
    ids=["deep", "badly nested", "elements", "long", "comments", "cut"],
)
def test_any_document_takes_little_time_and_keeps_its_tags(document):
    start = time.process_time()

    def run(lines):
        assert all(len(line.text) <= 200 for line in lines)
        return [same(line.text) for line in lines]

    texts = [TextToTranslate(document, "en", "de", markup="html")]
    (result,) = run_steps(translation_steps(texts, lambda line, _: len(line) <= 200), run)
    assert time.process_time() - start < 30
    tags = [Counter(re.findall("<[^>]*>", text)) for text in (result.text, document)]
    assert tags[0] == tags[1]


def test_pieces_of_a_long_sentence_have_their_own_alignment():
    """A piece is translated in reverse order; its tags follow its words."""
    texts = [TextToTranslate("a b <b>c</b> d e f <i>g</i> h", "en", "de", markup="html")]
    (result,) = run_steps(
        translation_steps(texts, lambda line, _: len(line.split()) <= 4),
        lambda lines: [reverse_words(line.text) for line in lines],
    )
    assert result.text == "d <b>c</b> b a h <i>g</i> f e"


PARTS = [
    "<b>",
    "</b>",
    "<i x='>'>",
    "</i>",
    "<p>",
    "<br>",
    "<code>",
    "</code>",
    "<!-- c -->",
    "<!--",
]
PARTS += [
    "<",
    ">",
    "&amp;",
    "&x;",
    "&",
    "\xa0",
    "\u2028",
    " ",
    "\n",
    "Hello. ",
    "wide",
    "3",
    "😀",
    "İ",
]


@given(st.lists(st.sampled_from(PARTS), max_size=14), st.sampled_from(["html", "xml"]))
@settings(deadline=None, derandomize=True, max_examples=400)
def test_any_text_is_translated_without_an_error(parts, markup):
    document = "".join(parts)
    reader = MarkupReader(markup)
    for function in (same, upper, reverse_words):
        text, _ = translate(document, function, markup=markup)
        tags = [
            Counter(token.raw for token in reader.tokens(one) if token.kind != "text")
            for one in (text, document)
        ]
        assert tags[0] == tags[1]
