"""Placement of tags in translations by alignment."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from mnmt_jax.decoding.text.tag_placement import Node, place_tags
from mnmt_jax.decoding.translation import Alignment, Hypothesis, Translation
from tests.unit.made_markup import reverse_words, same, translate, word_alignment


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


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("H<sub>2</sub>O is unbe<b>liev</b>able", "H<sub>2</sub>O IST UNBE<b>LIEV</b>ABLE"),
        ("<b>W</b>ord is <i>W</i>ord", "<b>W</b>ORD IST <i>W</i>ORD"),
        ("un<wbr>clear is A<b>b", "UN<wbr>CLEAR IST A<b>B"),
        ("Stra<b>ß</b>e is", "<b>STRASSE</b> IST"),  # it has other letters
        ("<b>i</b>s", "<b>IST</b>"),
    ],
)
def test_an_element_inside_of_a_word_stays_at_its_letters(source, expected):
    def function(text):
        return Translation((Hypothesis(text.replace("is", "ist").upper(), 0.0, ()),))

    assert translate(source, function)[0] == expected


@pytest.mark.parametrize(
    ("translation", "steps"),
    [("x with z and y", 2), ("with x and y z", 1), ("x and z with y", 2)],
)
def test_untranslated_elements_that_a_translation_takes_apart_are_left_out(translation, steps):
    """No text is lost, doubled or put into another element."""
    document = "<a><code>x</code> and <code>y</code></a> with <code>z</code>"
    words = {"x and y with z": translation, "and with": "and with"}
    text, lines = translate(document, lambda line: same(words[line]))
    assert len(lines) == steps
    assert sorted(re.sub("<.*?>", " ", text).split()) == ["and", "with", "x", "y", "z"]
    assert re.search("<a>.*<code>x</code>.*<code>y</code>.*</a>", text)


def test_a_word_that_is_in_both_texts_is_aligned_to_itself():
    source, translation = "open LibreOffice with the menu", "mit dem Menu wird LibreOffice offen"
    links = [(0, 2), (1, 3), (2, 4), (3, 0), (4, 0), (5, 0)]
    alignment = word_alignment(source, translation, links)
    text = place_tags(source, translation, [Node(5, 16, "<b>", "</b>")], alignment)
    assert text == "mit dem Menu wird <b>LibreOffice</b> offen"


@pytest.mark.parametrize(
    ("source", "translation", "node", "expected"),
    [
        ("um 10:30 Uhr heute", "heute um 10:30 Uhr", (3, 8), "heute um <b>10:30</b> Uhr"),
        ("{} of 3 days", "3 Tage von {}", (0, 2), "3 Tage von <b>{}</b>"),
        ("{N} {n} a", "{n} {N} a", (1, 2), "{n} {<b>N</b>} a"),  # as in the source
        ("{N} or {n}", "{n}, {N} oder", (0, 3), "{n}, <b>{N}</b> oder"),
    ],
)
def test_placeholders_and_numbers_are_words(source, translation, node, expected):
    assert place_tags(source, translation, [Node(*node, "<b>", "</b>")]) == expected


def test_an_untranslated_element_is_not_found_inside_of_a_placeholder():
    code = Node(0, 1, "<c>n</c>", is_fixed=True)
    assert place_tags("n in {n}", "{n}: n", [code]) == "{n}: <c>n</c>"


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


def test_an_alignment_is_not_used_if_capitals_change_the_length():
    """Its characters would be those of the translation before; positions are used instead."""

    def function(text, translation):
        alignment = word_alignment(text, translation, [(0, 1), (1, 0)])
        return Translation((Hypothesis(translation, 0.0, ()),), alignment=alignment)

    document = "<b>ONE</b> TWO"
    assert translate(document, lambda text: function(text, "mas zwei"))[0] == "MAS <b>ZWEI</b>"
    assert translate(document, lambda text: function(text, "maß zwei"))[0] == "<b>MASS</b> ZWEI"
