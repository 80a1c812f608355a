"""Sentences of a text, and what is between them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnmt_jax.decoding.text import text_parts
from mnmt_jax.decoding.text.sentence_job import run_steps
from mnmt_jax.decoding.text.text_parts import (
    Part,
    join_lines,
    restore_line_breaks,
    split_long,
    split_text,
)
from mnmt_jax.decoding.text.text_translation import translation_steps
from mnmt_jax.decoding.text.translated_text import TextToTranslate
from mnmt_jax.decoding.translation import Hypothesis, Translation
from mnmt_jax.vocabulary.normalization import has_letters
from tests.processor_time import is_quicker_than
from tests.slow_text_parts import (
    join_lines_slowly,
    restore_line_breaks_slowly,
    split_long_slowly,
)


def sentences(text: str, language: str = "en") -> list[str]:
    return [part.text for part in split_text(text, language) if part.is_sentence]


TEXTS = st.text(
    st.one_of(
        st.sampled_from("aAbB .!?\n\n\r\t-*•1234567890)>  。、あ中ق😀ß\u00a0\u2028\u3000"),
        st.characters(codec="utf-8"),
    ),
    max_size=80,
)


@given(text=TEXTS, language=st.sampled_from(["en", "de", "zh", "ja", "ar", "hi", "hsb"]))
@settings(deadline=None, derandomize=True, max_examples=400)
def test_the_parts_joined_are_the_text(text, language):
    parts = split_text(text, language)
    assert "".join(part.text for part in parts) == text
    for part in parts:
        if part.is_sentence:
            assert part.text == part.text.strip() and has_letters(part.text)
    assert "".join(c for c in text if c.isalpha()) == "".join(
        c for part in parts if part.is_sentence for c in part.text if c.isalpha()
    )


@pytest.mark.parametrize(
    "name", ["https://x.org/a.B?C!D=1", "{n, plural, one {Day. Go} other {# days.}}", "a.B@c.D"]
)
def test_no_sentence_ends_inside_of_a_placeholder(name):
    assert sentences(f"See {name} there. {name}! Go.") == [f"See {name} there.", f"{name}!", "Go."]


def test_spaces_blank_lines_and_marks_are_between_sentences():
    assert split_text("  One.  Two!\n\n- three\n", "en") == [
        Part("  "),
        Part("One.", True),
        Part("  "),
        Part("Two!", True),
        Part("\n"),
        Part("\n"),
        Part("- "),
        Part("three", True),
        Part("\n"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "This line of some words is wrapped\nin the middle. Next.",
            ["This line of some words is wrapped\nin the middle.", "Next."],
        ),
        ("A title\nA sentence follows it.", ["A title", "A sentence follows it."]),
        (
            "A line that is as long as wrapped lines are\nBerlin is in it.",
            ["A line that is as long as wrapped lines are\nBerlin is in it."],
        ),
        ("One.\ntwo", ["One.", "two"]),
        ("one\n\ntwo", ["one", "two"]),
        ("one\n- two", ["one", "two"]),
        ("***\none. Two.", ["one.", "Two."]),
        (
            "A line that is as long as wrapped lines are\n***\nthree",
            [
                "A line that is as long as wrapped lines are",
                "three",
            ],
        ),
        ("in 3 Tagen\nin 4 Tagen\nund dann", ["in 3 Tagen", "in 4 Tagen", "und dann"]),
        (
            "> quoted text of a letter that is long\n> goes on",
            ["quoted text of a letter that is long\n> goes on"],
        ),
        ("1. one\n2. two", ["one", "two"]),
        ("a) one\n\nb) two", ["one", "two"]),
        (
            "3. Mai und noch ein paar andere Tage\ndanach",
            ["Mai und noch ein paar andere Tage\ndanach"],
        ),
        ("😀\nDr. Smith is here. He is.", ["Dr. Smith is here.", "He is."]),
        ("你好。再见！", ["你好。", "再见！"]),
        ("12:30 😀 !!!", []),
    ],
)
def test_sentences(text, expected):
    assert sentences(text) == expected


def test_a_number_alone_belongs_to_its_sentence():
    assert sentences("3. Mai", "de") in (["3. Mai"], ["Mai"])
    assert sentences("1. one\n2. two\n\n  3) three") == ["one", "two", "3) three"]


def test_line_breaks_of_wrapped_lines_return_to_the_nearest_space():
    line, breaks = join_lines("twelve words\n> here and\n  there")
    assert line == "twelve words here and there"
    assert [text for _, text in breaks] == ["\n> ", "\n  "]
    assert restore_line_breaks("zwölf Wörter hier und dort", breaks, "de") == (
        "zwölf Wörter\n> hier und\n  dort"
    )
    assert restore_line_breaks("十二个词", [(0.5, "\n")], "zh") == "十二\n个词"
    assert restore_line_breaks("", [(0.5, "\n")], "de") == "\n"


@pytest.mark.parametrize(
    ("text", "line", "places"),
    [
        ("今天天气\n很好", "今天天气很好", [4]),
        ("今天天气。\n  很好\n> 。", "今天天气。很好。", [5, 7]),
        ("今天 5\n度", "今天 5 度", [4]),
        ("カタ\nカナ", "カタカナ", [2]),
        ("오늘\n날씨", "오늘 날씨", [2]),
    ],
)
def test_line_breaks_between_wide_characters_are_nothing(text, line, places):
    """As CSS joins the lines of a paragraph; Korean has spaces."""
    joined, breaks = join_lines(text)
    assert joined == line and [round(place * len(line)) for place, _ in breaks] == places


def test_line_breaks_never_fall_inside_a_word():
    breaks = [(0.2, "\n"), (0.4, "\n\n"), (0.9, "\n")]
    assert restore_line_breaks("one", breaks, "en") == "one\n\n\n\n"
    assert restore_line_breaks("some words", breaks, "en") == "some\n\n\n\nwords"
    assert restore_line_breaks("a bc d", breaks, "en") == "a\n\n\nbc\nd"


def test_all_line_breaks_may_end_sentences():
    text = "A line that is as long as wrapped lines are\ngoes on. It ends."
    for ends, count in (("all", 2), ("lines", 3), ("punctuation", 2), ("none", 1)):
        parts = split_text(text, "en", ends)
        assert sum(part.is_sentence for part in parts) == count
        assert "".join(part.text for part in parts) == text


@given(text=st.text("ab ,;:—.。あ", max_size=60), most=st.integers(1, 9))
@settings(deadline=None, derandomize=True, max_examples=200)
def test_pieces_fit_and_joined_are_the_sentence(text, most):
    pieces = split_long(text, lambda piece: len(piece.strip()) <= most)
    assert "".join(pieces) == text
    assert all(len(piece.strip()) <= most for piece in pieces)


def test_long_sentences_are_split_at_the_best_place():
    def fits(text: str) -> bool:
        return len(text.split()) <= 4

    assert split_long("one two; three, four five six", fits) == [
        "one two; ",
        "three, four five six",
    ]
    assert split_long("one two, three four five", fits) == ["one two, ", "three four five"]
    assert split_long("one two three four five", fits) == ["one two three four ", "five"]
    assert split_long("short", fits) == ["short"]
    assert split_long("あいうえお", lambda text: len(text) <= 2) == ["あい", "うえ", "お"]


WIDE = st.text("ab ,;:—.。あ-\t\n\u2028\xa0>", max_size=80)


@given(text=WIDE, most=st.integers(1, 20), start=st.sampled_from([1, 2, 7, 512]))
@settings(deadline=None, derandomize=True, max_examples=400)
def test_pieces_are_those_of_every_cut_tried(text, most, start):
    def fits(piece: str) -> bool:
        return len(piece.strip()) <= most

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_parts, "_START", start)
        assert split_long(text, fits) == split_long_slowly(text, fits)


@given(
    text=st.text("ab \n中", max_size=60),
    places=st.lists(st.floats(0, 1) | st.sampled_from([0.25, 0.5, 0.75]), max_size=9),
    language=st.sampled_from(["de", "zh"]),
)
@settings(deadline=None, derandomize=True, max_examples=300)
def test_line_breaks_are_where_every_space_compared_has_them(text, places, language):
    breaks = [(place, f"\n{number}") for number, place in enumerate(sorted(places))]
    expected = restore_line_breaks_slowly(text, breaks, language)
    assert restore_line_breaks(text, breaks, language) == expected


@given(text=WIDE)
@settings(deadline=None, derandomize=True, max_examples=400)
def test_joined_lines_are_those_of_every_space_tried(text):
    line, breaks = join_lines(text)
    assert (line, [line_break for _, line_break in breaks]) == join_lines_slowly(text)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("aB1" * 20_000, "all"),
        ("word " * 12_000, "all"),
        ("a" + " " * 60_000 + "b", "all"),
        ("ab\n" * 20_000, "none"),
        ("This line of some words is wrapped here\n" * 1_500, "all"),
        ("a {" + " " * 60_000, "all"),
        ("a %" + "0" * 60_000, "all"),
        ("a" + "_" * 60_000, "all"),
        ("a - " * 15_000, "all"),
    ],
)
def test_long_requests_take_little_time(text, ends):
    def identity(lines):
        return [Translation((Hypothesis(line.text, 0.0, ()),)) for line in lines]

    def fits(line: str, language: str) -> bool:
        return len(line.encode()) < 300

    def run():
        steps = translation_steps([TextToTranslate(text, "en", "de", ends)], fits)
        assert run_steps(steps, identity)[0].text.split() == text.split()

    assert is_quicker_than(5, run)
