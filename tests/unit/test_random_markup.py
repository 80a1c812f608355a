"""Random documents with markup: no tag or text is lost, and no tag leaves its parent."""

from __future__ import annotations

import html
import itertools
import random
import re
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from mnmt_jax.decoding.text.markup_tokens import MarkupReader, TagRules
from mnmt_jax.decoding.text.tag_placement import Node, place_tags
from mnmt_jax.decoding.translation import Alignment
from tests.unit.made_markup import reverse_words, same, same_aligned, translate, upper

NAMES = ["b", "i", "span", "a"]


@st.composite
def documents(draw, depth=3):
    """Draw a well nested XML fragment with unique ids."""
    counter = iter(range(1000))

    def content(level):
        parts = []
        for _ in range(draw(st.integers(1, 4))):
            kind = draw(st.sampled_from(["text", "element", "code", "empty", "comment", "space"]))
            if kind == "text" or (kind == "element" and level == 0):
                parts.append(draw(st.sampled_from(["One two", "x.", "y", "A b. C", "3", "&lt;"])))
            elif kind == "element":
                name, number = draw(st.sampled_from(NAMES)), next(counter)
                parts.append(f'<{name} id="{number}">{content(level - 1)}</{name}>')
            elif kind == "code":
                text = draw(st.sampled_from(["x", ".y", "--", "One two", "f()", "3"]))
                parts.append(f'<code id="{next(counter)}">{text}</code>')
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
def test_no_tag_or_text_is_lost_and_no_tag_leaves_its_parent(document, function, markup):
    rules = TagRules(splitting=frozenset({"p"}), ignored=frozenset({"code"}))
    text, steps = translate(document, function, markup=markup, tag_rules=rules)
    assert parents(text) == parents(document)
    assert Counter(re.findall("<[^>]*>", text)) == Counter(re.findall("<[^>]*>", document))
    codes = [Counter(re.findall("<code.*?</code>", one)) for one in (text, document)]
    assert codes[0] == codes[1]
    joined = ["".join("".join(etree.fromstring(d).itertext()).split()) for d in (text, document)]
    assert Counter(joined[0].casefold()) == Counter(joined[1].casefold())
    assert function is not same or joined[0] == joined[1]


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


PLACEHOLDERS = ["{n}", "{N}", "{}", "%(x)s", "%1$s", "%%", "{{ a.b }}", "${HOME}", "a.b@c.org"]
PLACEHOLDERS += ["https://x.org/a?b=c&d", "{n, plural, one {# day} other {# days}}"]
WORDS = ["in", "day", "n", "x", "org", "Tage", "(", ",", "10:30", "日本", "H2O"]


def random_nodes(source, words, rng, level=2):
    """Return elements of the words of a sentence, some of them without text or untranslated.

    Args:
        source: the sentence.
        words: spans of its words.
        rng: generator of random numbers.
        level: most levels of elements in these.
    """
    nodes, first = [], 0
    while first < len(words):
        last = rng.randint(first + 1, len(words))
        start, end = words[first][0], words[last - 1][1]
        kind = rng.choice(["empty", "fixed", "element", "none"])
        if kind == "empty":
            nodes.append(Node(start, start, "<br>"))
        elif kind == "fixed":
            nodes.append(Node(start, end, html.escape(source[start:end], False), is_fixed=True))
        elif kind == "element":
            children = random_nodes(source, words[first:last], rng, level - 1) if level else []
            nodes.append(Node(start, end, "<b>", "</b>", children))
        first = last
    return nodes


def random_alignment(source, translation, rng):
    """Return weights of pieces that begin and end anywhere."""
    spans = []
    for text in (source, translation):
        cuts = sorted({0, len(text), *(rng.randrange(len(text)) for _ in range(9))})
        spans.append(tuple(zip(cuts[:-1], cuts[1:], strict=True)))
    weights = np.array([[rng.random() ** 4 for _ in spans[0]] for _ in spans[1]])
    return Alignment(*spans, weights / weights.sum(axis=1, keepdims=True))


@given(st.lists(st.sampled_from(WORDS + PLACEHOLDERS), min_size=1, max_size=9), st.integers())
@settings(deadline=None, derandomize=True, max_examples=1000)
def test_no_tag_is_inside_of_a_placeholder(words, seed):
    """Wherever the translation has it, and whatever is aligned to it."""
    rng, source = random.Random(seed), " ".join(words)
    ends = list(itertools.accumulate(len(word) + 1 for word in words))
    spans = [(end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True)]
    translation = " ".join(rng.sample(words, len(words)) + rng.choices(WORDS, k=3))
    for alignment in (None, random_alignment(source, translation, rng)):
        placed = place_tags(source, translation, random_nodes(source, spans, rng), alignment)
        if placed is not None:  # otherwise untranslated elements are left out
            assert html.unescape(re.sub("<[^>]*>", "", placed)) == translation
            for name in PLACEHOLDERS:
                assert placed.count(html.escape(name, False)) == translation.count(name)
