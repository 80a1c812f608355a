"""Checks of translations: language, copies, loops, missing numbers; and of texts."""

from __future__ import annotations

import pytest

from mnmt_jax.decoding.guards import (
    TranslationChecker,
    TranslationChecks,
    is_copy,
    is_repetitive,
    missing_numbers,
)
from mnmt_jax.decoding.text.text_checks import checks_record, join_pieces, with_checks
from mnmt_jax.decoding.text.translated_text import (
    SentenceTranslation,
    TextToTranslate,
    TextTranslation,
)
from mnmt_jax.decoding.translation import Hypothesis, Translation
from mnmt_jax.vocabulary.language_detectors import LanguageDetector, make_lid176

ENGLISH = "The weather in the mountains was much better yesterday."
GERMAN = "Das Wetter in den Bergen war gestern viel besser."
FRENCH = "Hier, le temps était bien meilleur à la montagne."
CHECKER = TranslationChecker(make_lid176(), ("en", "de", "fr", "zh_Hant"))


def translation(text: str, **changes) -> Translation:
    return Translation((Hypothesis(text, -0.5, (1, 2)),), **changes)


def check(source: str, text: str, *, languages=("en", "de"), **changes) -> TranslationChecks:
    return CHECKER.check(source, languages[0], translation(text, **changes), languages[1])


# Language


def test_the_language_of_a_translation_is_detected():
    good, wrong = check(ENGLISH, GERMAN), check(ENGLISH, FRENCH)
    assert (good.language, good.off_target, good.failed) == ("de", False, False)
    assert (wrong.language, wrong.off_target, wrong.failed) == ("fr", True, True)
    assert good.probability > 0.9 and wrong.probability > 0.9
    untranslated = check(ENGLISH, ENGLISH)
    assert untranslated.off_target and untranslated.copied and untranslated.language == "en"


def test_a_language_is_named_by_the_code_of_the_target():
    text = "昨天山裡的天氣好多了，我們都很高興。"
    checker = TranslationChecker(make_lid176(), ("en", "zh_Hans", "zh_Hant"))
    checks = checker.check(ENGLISH, "en", translation(text), "zh_Hant")
    assert checks.language == "zh_Hant" and not checks.off_target
    assert checker.check(ENGLISH, "en", translation(text), "en").language == "zh_Hans"


@pytest.mark.parametrize("text", ["Restaurant", "Bonjour !", "12:30", "😀", "", "{name} (%s)"])
def test_short_texts_and_numbers_are_not_judged(text):
    checks = check(text, text)
    assert not checks.off_target and not checks.copied and not checks.repeated


def test_an_uncertain_language_is_not_judged():
    ranks = [("fr", 0.8), ("de", 0.2)]
    checker = TranslationChecker(LanguageDetector("made", "", lambda *_: ranks), ("en", "de", "fr"))
    checks = checker.check(ENGLISH, "en", translation(GERMAN), "de")
    assert (checks.language, checks.probability, checks.off_target) == ("fr", 0.8, False)
    ranks[:] = [("fr", 0.95), ("de", 0.05)]
    assert checker.check(ENGLISH, "en", translation(GERMAN), "de").off_target


def test_a_language_that_the_detector_does_not_know_is_not_judged():
    detector = LanguageDetector("made", "", lambda *_: [("fr", 1.0)], frozenset({"fr", "en"}))
    checker = TranslationChecker(detector, ("en", "de", "fr"))
    assert not checker.check(ENGLISH, "en", translation(GERMAN), "de").off_target


def test_placeholders_have_no_language():
    text = "https://example.org/das/wetter/in/den/bergen/war/gestern Hi"
    assert not check("x", text, languages=("de", "en")).off_target
    assert CHECKER.detect("https://example.org")[1] > 0  # would be read otherwise


# Copies


def test_copies_are_found_by_their_letters():
    assert is_copy("It has to be done.", "it has to be done!")
    assert not is_copy("It has to be done.", "it had to be done!")
    assert not is_copy("Elite League: Dundee Stars 5-3", "Elite League: Dundee Stars 5-3")
    assert not is_copy("Windows 3rd Edition Manual", "Windows 3rd Edition Manual")
    for text in ("十年前他在北京大学读书工作", "2024年5月3日に東京で会議が開かれました"):
        assert is_copy(text, text)
    assert not is_copy("hello world", "hello world")  # ten letters
    assert check(ENGLISH, ENGLISH, languages=("en", "en")).copied is False


def test_a_copy_of_text_that_is_in_the_target_language_is_right():
    checks = check(FRENCH, FRENCH, languages=("en", "fr"))
    assert not checks.copied and not checks.failed


def test_copies_are_found_between_languages_that_the_detector_does_not_know():
    detector = LanguageDetector("made", "", lambda *_: [("en", 1.0)], frozenset({"en"}))
    checker = TranslationChecker(detector, ("en", "de", "fr"))
    assert checker.check(ENGLISH, "de", translation(ENGLISH), "fr").copied
    assert not checker.check(ENGLISH, "de", translation(ENGLISH), "de").copied


# Repetition

LOOPS = [
    ("enrolled", "en", "matriculados matriculados matriculados", "pt"),
    ("заранее", "ru", "pre-pre- pre-pre- pre- pre- pre- pre-", "en"),
    ("increasingly", "en", "cada vez más cada vez más cada vez más", "es"),
    ("Good day.", "en", "to do this and to do this now to do this and to do this then "
     "to do this and to do this", "de"),
    ("hello", "en", "สวัสดี" * 8, "th"),
    ("hello", "en", "你好吗你好吗你好吗", "zh"),
    ("hello", "en", "abab" * 10, "de"),
    ("hello", "en", "a" * 40, "de"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "source_code", "text", "code"), LOOPS)
def test_loops_are_repetition(source, source_code, text, code):
    assert is_repetitive(source, source_code, text, code)
    assert not is_repetitive(text, code, text, code)


NO_LOOPS = [
    ("No, no, no, no!", "en", "Nein, nein, nein, nein!", "de"),
    ("いいえ、いいえ", "ja", "Nej nej", "sv"),
    ("Noooo!", "en", "Neeeeeeeeeein!", "de"),
    ("1,000,000,000,000", "en", "1 000 000 000 000", "fr"),
    ("Wait ...", "en", "等等............", "zh"),
    ("A. -------------", "en", "A. --------------------", "de"),
    ("very good", "en", "sehr, sehr gut", "de"),
    ("the the", "en", "", "de"),
]


@pytest.mark.parametrize(("source", "source_code", "text", "code"), NO_LOOPS)
def test_what_the_source_repeats_too_is_no_loop(source, source_code, text, code):
    assert not is_repetitive(source, source_code, text, code)


def test_top_ngram_count_needs_two_more_than_the_source():
    """The definition of Guerreiro et al.: four words, and a difference of two."""
    words = "a b c d"
    thrice = f"{words} x {words} y {words}"
    assert is_repetitive("q", "en", thrice, "de")
    assert not is_repetitive("q", "en", f"{words} x {words}", "de")
    assert not is_repetitive(f"{words} x {words}", "en", thrice, "de")


# What is missing


def test_what_is_missing_is_listed():
    checks = check("1,000 of 25 and ١٢", "1.000 von 52", truncated=True, unknown_characters="₿")
    assert checks.missing_numbers == ("25", "12")
    assert (checks.cut, checks.unknown_characters, checks.score) == (True, "₿", -0.5)
    assert check("a", "b", limited=True).cut and not check("a", "b").cut
    assert missing_numbers("7 7", "7") == ("7",) and missing_numbers("7", "7 8") == ()


def test_an_empty_translation_of_letters_fails():
    assert check("Hello.", " ").empty and check("Hello.", " ").failed
    assert CHECKER.check("Hello.", "en", Translation(), "de").empty
    assert not check("12", "").empty


# Texts


def text_checks(*pairs: tuple[str, str]) -> TextTranslation:
    sentences = tuple(SentenceTranslation(a, b, (translation(b),)) for a, b in pairs)
    result = TextTranslation("\n".join(b for _, b in pairs), sentences)
    text = TextToTranslate("\n".join(a for a, _ in pairs), "en", "de")
    return with_checks(result, text, CHECKER, 1.0)


def test_each_sentence_is_checked_and_the_whole_fails_if_one_does():
    result = text_checks((ENGLISH, GERMAN), (ENGLISH, FRENCH), ("I am 5.", "Ich bin."))
    flags = [sentence.checks.off_target for sentence in result.sentences]
    assert flags == [False, True, False] and result.checks.off_target
    assert result.checks.missing_numbers == ("5",)
    record = checks_record(result)
    assert [one["source"] for one in record["sentences"]] == [ENGLISH, ENGLISH, "I am 5."]
    assert record["sentences"][1]["language"] == "fr" and record["missing_numbers"] == ["5"]
    assert not text_checks((ENGLISH, GERMAN)).checks.failed
    assert checks_record(TextTranslation("", ())) is None
    assert with_checks(TextTranslation("12", ()), TextToTranslate("12", "en", "de"), CHECKER, 1)


def test_pieces_of_a_sentence_are_joined():
    pieces = [
        Translation((Hypothesis("a", -1.0, (1,)),), retried="contrast"),
        Translation((Hypothesis("b", -0.5, (1, 2)),), limited=True, retried="pivot"),
        Translation(),
    ]
    joined = join_pieces("a b", pieces, 1.0)
    assert joined.score == pytest.approx(-2 / 3) and joined.limited and joined.retried == "pivot"
    assert join_pieces("", [], 1.0).retried is None


def test_a_piece_without_tokens_has_no_part_in_the_score():
    """A sentence of characters that are copied, for a length penalty below 0."""
    copied = Translation((Hypothesis("漢字", 0.0, ()),))
    joined = join_pieces("漢字 a", [copied, translation("a")], -1.0)
    assert joined.score == pytest.approx(-0.5)
    assert join_pieces("漢字", [copied], -1.0).score == 0.0
