"""Texts by sentences: what is kept, capitals, placeholders, long sentences; and lines of a job."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnmt_jax.decoding.text import placeholders
from mnmt_jax.decoding.text.placeholders import (
    find_placeholders,
    keeps_placeholders,
    split_at_placeholders,
)
from mnmt_jax.decoding.text.sentence_job import SentenceJob, run_steps
from mnmt_jax.decoding.text.text_translation import translation_steps
from mnmt_jax.decoding.text.translated_text import TextToTranslate
from mnmt_jax.decoding.translation import Hypothesis, Translation
from tests.unit.made_translator import BUCKETS, LINES, made_translator


def translate(text, function, *, source="en", target="de", most_words=20, most_letters=400):
    """Translate with a function of lines; return the result and the lines of each step."""
    steps = []

    def run(lines):
        steps.append([line.text for line in lines])
        assert all((line.source, line.target) == (source, target) for line in lines)
        return [Translation((Hypothesis(function(line.text), 0.0, ()),)) for line in lines]

    texts = [TextToTranslate(text, source, target)]

    def fits(line, _):
        return len(line.split()) <= most_words and len(line) <= most_letters

    (result,) = run_steps(translation_steps(texts, fits), run)
    return result, steps


def brackets(line: str) -> str:
    return f"[{line}]"


TEXT = """A title

Two sentences. On a line that someone has
wrapped!

 * an item
 * 12:30
"""


def test_everything_but_the_sentences_stays():
    result, (lines,) = translate(TEXT, brackets)
    assert lines == [
        "A title",
        "Two sentences.",
        "On a line that someone has wrapped!",
        "an item",
    ]
    assert result.text == TEXT.replace("A title", "[A title]").replace(
        "Two sentences. On a line that someone has\nwrapped!",
        "[Two sentences.] [On a line that someone has\nwrapped!]",
    ).replace("an item", "[an item]")
    assert [sentence.source for sentence in result.sentences] == lines


@given(st.text("aB .!?\n-*19)。あ😀", max_size=40))
@settings(deadline=None, derandomize=True, max_examples=150)
def test_a_text_translated_to_itself_is_the_text(text):
    result, _ = translate(text, lambda line: line)
    assert result.text == text


def test_nothing_is_translated_in_a_text_without_letters():
    result, steps = translate(" 12 😀\n\n--- ", brackets)
    assert (result.text, result.sentences, steps) == (" 12 😀\n\n--- ", (), [])


def test_sentences_of_a_language_without_spaces_are_separated_in_others():
    result, _ = translate("你好。再见。", brackets, source="zh", target="en")
    assert result.text == "[你好。] [再见。]"
    result, _ = translate("你好。再见。", brackets, source="zh", target="ja")
    assert result.text == "[你好。][再见。]"


CHINESE = {"Hello.": "你好。", "Bye.": "再见。", '"Hello."': "“你好。”", '"Bye."': "“再见。”"}


@pytest.mark.parametrize(
    ("target", "text", "translation"),
    [
        ("zh", "Hello. Bye.\nBye.", "你好。再见。\n再见。"),
        ("zh", "Use it. Bye.", "Use it.再见。"),
        ("zh", "Use it. Go on.", "Use it. Go on."),  # no wide character beside the space
        ("zh", "Hello.  Bye. 5", "你好。  再见。 5"),
        ("zh", '"Hello." "Bye."', "“你好。”“再见。”"),
        ("zh", "Use it. 😀 Go on 😀. Go on.", "Use it. 😀 Go on 😀. Go on."),
        ("th", "Hello. Bye.", "你好。 再见。"),
        ("ko", "Hello. Bye.", "你好。 再见。"),
    ],
)
def test_a_space_between_sentences_is_left_out_beside_wide_characters(target, text, translation):
    result, _ = translate(text, lambda line: CHINESE.get(line, line), target=target)
    assert result.text == translation


def test_pieces_of_a_long_sentence_are_spaced_as_their_language():
    result, (lines,) = translate("一，二，三。", str, source="zh", target="en", most_letters=2)
    assert (lines, result.text) == (["一，", "二，", "三。"], "一， 二， 三。")
    result, (lines,) = translate(
        "one, two", {"one,": "一，", "two": "二"}.get, target="zh", most_words=1
    )
    assert (lines, result.text) == (["one,", "two"], "一，二")


def test_nothing_is_put_between_sentences_of_a_language_with_spaces():
    result, (lines,) = translate("See NiuTrans.LMT..., and go.", brackets)
    assert lines == ["See NiuTrans.", "Lmt...", ", and go."]
    assert result.text == "[See NiuTrans.][LMT...][, and go.]"


def test_capitals_are_translated_in_lower_case_and_returned_as_capitals():
    result, (lines,) = translate("STOP HERE, PLEASE! I go. A. ÖL", lambda line: f"ß {line}")
    assert lines[:2] == ["Stop here, please!", "I go."]
    assert result.text.startswith("SS STOP HERE, PLEASE! ß I go.")


@pytest.mark.parametrize(
    ("source", "target", "text", "line", "answer", "translation"),
    [
        ("tr", "en", "DİKKAT: ISLAK ZEMİN", "Dikkat: ıslak zemin", "Wet floor", "WET FLOOR"),
        ("tur_Latn", "en", "İYİ GÜNLER", "İyi günler", "Good day", "GOOD DAY"),
        ("az_Latn", "de", "IŞIK {i} VAR", "Işık {i} var", "Es {i} ist da", "ES {i} IST DA"),
        ("en", "tr", "GOOD LIGHT", "Good light", "iyi ışık", "İYİ IŞIK"),
    ],
)
def test_capitals_with_and_without_a_dot(source, target, text, line, answer, translation):
    result, steps = translate(text, {line: answer}.__getitem__, source=source, target=target)
    assert steps == [[line]] and result.text == translation


@pytest.mark.parametrize(
    ("text", "line", "translation"),
    [
        ("PRESS {key} NOW", "Press {key} now", "SO PRESS {key} NOW"),
        ("a@b.org IS NEW", "a@b.org is new", "SO a@b.org IS NEW"),
        ("{x} ab", "{x} ab", "so {x} ab"),
    ],
)
def test_capitals_around_placeholders(text, line, translation):
    result, steps = translate(text, lambda line: f"so {line}")
    assert steps == [[line]] and result.text == translation


def test_long_sentences_are_split_and_never_cut():
    text = "one two three, four five six; seven eight nine ten eleven"
    result, (lines,) = translate(text, brackets, most_words=6)
    assert lines == ["one two three, four five six;", "seven eight nine ten eleven"]
    assert result.text == "[one two three, four five six;] [seven eight nine ten eleven]"


PLACEHOLDERS = [
    "{name}",
    "{0}",
    "{{ user.name }}",
    "${VAR}",
    "%(count)d",
    "%s",
    "%1$s",
    "%.2f",
    "$HOME",
    "__VAR__",
    "%PATH%",
    "<0>",
    "https://example.org/a?b=c#d",
    "name.last@example.org",
    "%@",
    "%1$@",
    "%#@files@",
    "%%",
    "%%VAR%%",
    "%{name}",
    "#{name}",
    "{0!r}",
    "{n:>10}",
    "{n:>{width},.2f}",
    "{a[0].b}",
    "{name|upper}",
    "{{ day | date:'Y-m-d' }}",
    "{n, number}",
    "{day, date, short}",
    "{n, plural, =0 {no {x}} one {# file} other {# files}}",
]


@pytest.mark.parametrize("name", PLACEHOLDERS)
def test_placeholders_survive_byte_for_byte(name):
    """Also if the model changes everything: the text around them is translated then."""
    text = f"See {name}, or {name}."
    assert find_placeholders(text) == [name, name]
    kept, steps = translate(text, lambda line: line.replace("See", "Siehe"))
    assert kept.text == f"Siehe {name}, or {name}." and len(steps) == 1
    lost, steps = translate(text, lambda line: "".join(chr(ord(c) ^ 1) for c in line))
    assert lost.text.count(name) == 2 and len(steps) == 2
    assert not any(find_placeholders(line) for line in steps[1])


PARTS = (
    "a A _ __ @ . - + % $ { } {{ 0 1 s d %s (x) http:// www. < > / é $AB %A% "
    "# : | ! [ ] %% , {n,plural, 日 。"
).split(" ")


@given(st.lists(st.sampled_from([*PARTS, " "]), max_size=14).map("".join))
@settings(deadline=None, derandomize=True, max_examples=2000)
def test_placeholders_are_those_of_the_pattern(text):
    assert find_placeholders(text) == [
        match.group() for match in placeholders._PLACEHOLDER.finditer(text)
    ]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("写信到info@example.org吧。", "info@example.org"),
        ("ไปที่a@b.coนะ", "a@b.co"),
        ("见“https://x.org/中文”，再见。", "https://x.org/中文"),
        ("（www.x.org/a）", "www.x.org/a"),
        ("siehe ä.ö@ü-x.de", "ä.ö@ü-x.de"),
        ("詳細はhttps://example.comの設定をご覧ください。", "https://example.com"),
        ("ดูhttps://x.orgนะครับ", "https://x.org"),
        ("请看https://x.org!然后继续。", "https://x.org"),
        ("https://x.org｡次", "https://x.org"),
        ("https://x.org។", "https://x.org"),
        ("https://例え.jp/パス です", "https://例え.jp/パス"),
        ("人々info@example.orgへ", "info@example.org"),
        ("ｶﾅinfo@example.orgｶﾅ", "info@example.org"),
        ("བinfo@example.orgབ", "info@example.org"),
    ],
)
def test_addresses_end_where_a_text_without_spaces_continues(text, name):
    assert find_placeholders(text) == [name]


def test_what_is_no_placeholder():
    for text in ("{see: this}", "{a, b}", "50%1", "%1 of %2", "100% of", "{a | b c}"):
        assert find_placeholders(text) == [], text
    for text in ("100 % sure", "50% of", "a_b", "x {", "5 $", "say: (so)", "a@b", "100 %so"):
        assert find_placeholders(text) == [], text
    assert find_placeholders("(https://example.org/a).") == ["https://example.org/a"]
    assert not keeps_placeholders("{a}", "{a} {a}") and not keeps_placeholders("{a}", "{a} {b}")
    assert split_at_placeholders("a {b} c") == [("a ", "{b}"), (" c", "")]


# With a model


def test_a_line_of_one_sentence_is_translated_as_without_splitting():
    translator = made_translator("1", "register")
    job = SentenceJob.create(translator)
    plain = translator.translate_nbest(LINES, source="en", target="fr")
    numbered = list(job.number_lines(LINES, source="en", target="fr"))
    split = [translation for _, translation in job.in_order(numbered)]
    for line, one, other in zip(LINES, plain, split, strict=True):
        if one.hypotheses and not one.truncated and line == line.strip():
            assert (other.text, other.score) == (one.text, pytest.approx(one.score))


def test_a_text_is_its_sentences_translated():
    translator = made_translator("1", "register")
    first, second = "one two house.", "green river and three!"
    result = translator.translate_text(f"- {first}  {second}\n", source="en", target="de")
    sentences = translator.translate([first, second], source="en", target="de")
    assert result.text == f"- {sentences[0]}  {sentences[1]}\n"
    assert [one.text for one in result.sentences] == sentences


def test_no_end_of_a_long_line_is_lost():
    translator = made_translator("1", "register")
    line = "one two three house river green " * 8
    (cut,) = translator.translate_nbest([line], source="en", target="de")
    assert cut.truncated
    result = translator.translate_text(line, source="en", target="de")
    (sentence,) = result.sentences
    assert len(sentence.translations) > 1
    assert not any(piece.truncated for piece in sentence.translations)
    job = SentenceJob.create(translator)
    (numbered,) = job.number_lines([line], source="en", target="de")
    ((_, joined),) = job.as_completed([numbered])
    assert joined.text == result.text.strip() or joined.text == result.text
    assert not joined.truncated and len(BUCKETS) > 0


def test_scores_of_sentences_join_to_that_of_their_tokens():
    translator = made_translator("1", "register")
    job = SentenceJob.create(translator)
    (line,) = job.number_lines(["one two. three house."], source="en", target="de")
    ((_, joined),) = job.as_completed([line])
    parts = translator.translate_nbest(["one two.", "three house."], source="en", target="de")
    penalty = job.decode.length_penalty
    total = sum(p.score * len(p.hypotheses[0].tokens) ** penalty for p in parts)
    count = sum(len(p.hypotheses[0].tokens) for p in parts)
    assert joined.score == pytest.approx(total / count**penalty)
    ((_, done),) = [*job.as_completed([line], done=())]
    assert done == joined and not [*job.as_completed([line], done={0})]
