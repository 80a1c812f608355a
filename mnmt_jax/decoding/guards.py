"""Checks of translations without references: wrong language, copies, loops, missing numbers.

All checks read the source and the translation alone. Those that make a translation fail are rare on
correct ones, because they do not judge what they cannot: languages of fewer than 12 letters or with
a probability below 0.9, copies of names, and repetition that the source has, too (docs/serving.md
has the measured rates).

Source: for repetition, top n-gram count: Guerreiro et al., "Hallucinations in Large Multilingual
Translation Models", TACL 2023 (arXiv 2303.16104), after Raunak, Menezes and Junczys-Dowmunt, "The
Curious Case of Hallucinations in Neural Machine Translation", NAACL 2021: the most frequent 4-gram
of the translation occurs at least twice more often than that of the source. Immediate repetitions
are ours: they end in short outputs before a 4-gram is repeated ("enrolled" as "matriculados
matriculados matriculados").
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import regex

from mnmt_jax.data.preparation.characters import digit_groups, fold
from mnmt_jax.data.preparation.ngram_hashes import highest_ngram_count
from mnmt_jax.decoding.text.placeholders import split_at_placeholders
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.vocabulary.language_codes import is_spaceless, parse_code
from mnmt_jax.vocabulary.language_detectors import LanguageDetector
from mnmt_jax.vocabulary.normalization import has_letters

MIN_LETTERS = 12
"""Letters of a text from which on its detected language and copies count."""
MIN_PROBABILITY = 0.9
"""Probability from which on a detected language counts."""
_MORE_OFTEN = 2  # times that an n-gram occurs more often than in the source
_WORDS, _CHARACTERS = 4, 8  # of an n-gram
_LOOP = regex.compile(r"(.{2,32}?)\1{4,}", regex.DOTALL)  # within a word, or without spaces
_SPACELESS_LOOP = regex.compile(r"(.{2,8}?)\1{2,}", regex.DOTALL)
_STRETCHED = 30  # characters of a letter that is repeated on purpose ("noooo"), at most
_NO_WORD = regex.compile(r"[^\p{L}\p{M}\p{N}]+")
_NO_LETTER = regex.compile(r"[^\p{L}\p{M}]+")
_UNCASED = regex.compile(r"\p{Lo}")  # letters of scripts without capitals


@dataclasses.dataclass(frozen=True)
class TranslationChecks:
    """Results of the checks of a translation.

    Attributes:
        language: detected language: the model's code if it has the language, else the detector's
            label; None if the translation has no letters.
        probability: its probability among the languages of the model.
        off_target: whether it is another language than the target.
        copied: whether the translation is the source, and not in the target language.
        repeated: whether it repeats words in a loop.
        empty: whether it has neither letters nor digits, though the source has letters.
        cut: whether the source was truncated, or the translation has the maximum length.
        unknown_characters: characters of the source that no piece of the vocabulary covers.
        missing_numbers: groups of digits of the source that it lacks.
        score: log-probability divided by length, as in `Hypothesis`; None for a blank line.
        retried: search that made it after the first failed, as in `Translation`.
    """

    language: str | None
    probability: float
    off_target: bool
    copied: bool
    repeated: bool
    empty: bool
    cut: bool
    unknown_characters: str
    missing_numbers: tuple[str, ...]
    score: float | None
    retried: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the results as an object of JSON."""
        return dataclasses.asdict(self) | {"missing_numbers": list(self.missing_numbers)}

    @property
    def failed(self) -> bool:
        """Whether the translation should not be used: wrong language, copy, loop or nothing."""
        return self.off_target or self.copied or self.repeated or self.empty


@dataclasses.dataclass(frozen=True, eq=False)
class TranslationChecker:
    """Checks of translations between the languages of a model.

    Attributes:
        detector: detector of languages.
        languages: codes of the model's languages.
    """

    detector: LanguageDetector
    languages: Sequence[str]

    @functools.cached_property
    def _by_label(self) -> dict[str, list[str]]:
        """Codes by label; scripts of a language without a label come after those with one."""
        labels = {code: self.detector.expected(code) for code in self.languages}
        label_of = {
            parse_code(code).language: label for code, label in labels.items() if label is not None
        }
        by_label: dict[str, list[str]] = {}
        for code in sorted(labels, key=lambda code: labels[code] is None):
            label = labels[code] or label_of.get(parse_code(code).language)
            if label is not None:
                by_label.setdefault(label, []).append(code)
        return by_label

    def detect(self, text: str) -> tuple[str, float]:
        """Return the label of the language of a text and its probability; ("", 0) if undecided."""
        if not has_letters(text):
            return "", 0.0
        return self.detector.best_among(text, self._by_label.keys())

    def code(self, label: str) -> str | None:
        """Return the model's code of a label; None if the model does not have the language."""
        return next(iter(self.codes(label)), None)

    def codes(self, label: str) -> Sequence[str]:
        """Return the model's codes of a label: several for languages in several regions or scripts.

        They include scripts for which the detector has no label, such as `sr_Latn` of lid.176.
        """
        return self._by_label.get(label, ())

    def detect_target(self, text: str, target_language: str) -> tuple[str | None, float]:
        """Return the language of a translation and its probability; see `TranslationChecks`.

        Args:
            text: the translation.
            target_language: code that is preferred to others with the same label.
        """
        label, probability = self.detect(_prose(text))
        if label and label == self.detector.expected(target_language):
            return target_language, probability
        return self.code(label) or label or None, probability

    def check(
        self, source: str, source_language: str, translation: Translation, target_language: str
    ) -> TranslationChecks:
        """Check a translation.

        Args:
            source: the source text.
            source_language: the model's code of its language.
            translation: its translation.
            target_language: the model's code of the requested language.
        """
        text = translation.text
        language, probability = self.detect_target(text, target_language)
        expected = self.detector.expected(target_language)
        is_certain = probability >= MIN_PROBABILITY and _letters(_prose(text)) >= MIN_LETTERS
        is_target = language == target_language
        return TranslationChecks(
            language=language,
            probability=probability,
            off_target=is_certain and expected is not None and not is_target,
            copied=must_differ_from_source(self.detector, source_language, target_language)
            and not (is_certain and is_target)
            and is_copy(source, text),
            repeated=is_repetitive(source, source_language, text, target_language),
            empty=is_empty(source, text),
            cut=translation.truncated or translation.limited,
            unknown_characters=translation.unknown_characters,
            missing_numbers=missing_numbers(source, text),
            score=translation.score,
            retried=translation.retried,
        )


def must_differ_from_source(
    detector: LanguageDetector, source_language: str, target_language: str
) -> bool:
    """Return whether a translation must differ from its source.

    It need not between languages that share a label of the detector, such as varieties.
    """
    label = detector.expected(source_language)
    if label is None:
        return source_language != target_language
    return label != detector.expected(target_language)


def is_empty(source: str, translation: str) -> bool:
    """Return whether a translation has neither letters nor digits, but its source letters."""
    return has_letters(source) and not any(map(str.isalnum, translation))


def is_copy(source: str, translation: str) -> bool:
    """Return whether a translation is its source, apart from case and punctuation.

    Texts of few letters, and those in which all words begin with a capital or a digit, may be names
    and are no copies.
    """
    if _letters(source) < MIN_LETTERS:
        return False
    first, second = fold([source, translation], case=True, punctuation=True)
    words = [word for word in _NO_WORD.split(source) if word]
    return first == second and not all(map(_begins_name, words))


def _begins_name(word: str) -> bool:
    """Return whether a word begins with a capital, or with a digit in a script that has them."""
    return word[0].isupper() or (word[0].isdecimal() and not _UNCASED.search(word))


def is_repetitive(
    source: str, source_language: str, translation: str, target_language: str
) -> bool:
    """Return whether a translation repeats something much more often than its source.

    The most frequent n-gram, or the n-gram that is repeated most often without anything between, is
    counted. Tokens are words, in languages without spaces letters.
    """
    if has_loop(translation, target_language) and not has_loop(source, source_language):
        return True
    limit = max(highest_count(source, source_language), 1) + _MORE_OFTEN
    if highest_count(translation, target_language) >= limit:
        return True
    if is_spaceless(target_language):
        return False
    return longest_run(translation) >= longest_run(source) + _MORE_OFTEN


def has_loop(text: str, language: str) -> bool:
    """Return whether characters of a text are repeated without anything between.

    At least two characters five times; of a language without spaces letters, three times.
    """
    if is_spaceless(language):
        return bool(_SPACELESS_LOOP.search(_NO_LETTER.sub("", text)))
    return any(
        has_letters(match[1]) and (len(set(match[1])) > 1 or len(match[0]) > _STRETCHED)
        for match in _LOOP.finditer(text)
    )


def highest_count(text: str, language: str) -> int:
    """Return how often the most frequent n-gram of four words or eight letters occurs."""
    if is_spaceless(language):
        return highest_ngram_count(_NO_LETTER.sub("", text), _CHARACTERS, words=False)
    return highest_ngram_count(" ".join(_words(text)), _WORDS, words=True)


def longest_run(text: str) -> int:
    """Return the largest number of immediate repetitions of one to four words."""
    words, longest = _words(text), 1
    for size in range(1, _WORDS + 1):
        equal = 0
        for word, earlier in zip(words[size:], words, strict=False):
            equal = equal + 1 if word == earlier else 0
            longest = max(longest, equal // size + 1)
    return longest


def missing_numbers(source: str, translation: str) -> tuple[str, ...]:
    """Return the groups of digits of a source that its translation lacks, in order.

    `1,000` and `1.000` have the same groups; numbers in words are not read.
    """
    present, missing = Counter(digit_groups(translation)), []
    for group in digit_groups(source):
        present[group] -= 1
        if present[group] < 0:
            missing.append(group)
    return tuple(missing)


def _words(text: str) -> list[str]:
    """Return the words of a text without case and punctuation."""
    return _NO_WORD.sub(" ", text.casefold()).split()


def _prose(text: str) -> str:
    """Return a text without addresses and placeholders, which have no language."""
    return " ".join(piece for piece, _ in split_at_placeholders(text))


def _letters(text: str) -> int:
    return sum(map(str.isalpha, text))
