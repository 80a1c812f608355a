"""Off-target ratio: the share of translations in a language other than the target.

Language detectors (`mnmt_jax.vocabulary.language_detectors`) work on any text, but err on short
phrases. If every item is available in all candidate languages (the CLDR corpus, multi-parallel test
sets), the nearest rendering is far more accurate, and references never count as off-target.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_detectors import LanguageDetector, make_lid176
from mnmt_jax.vocabulary.normalization import has_letters

_GRAM_SIZES = (2, 3)
_GRAM_CACHE_SIZE = 1 << 15  # number of cached n-gram tables, a few kilobytes each
# Kana and Han are written without spaces: there a word is one character.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")


@dataclass(frozen=True)
class OffTargetResult:
    """Detected languages of the hypotheses of one direction.

    Attributes:
        ratio: share of hypotheses detected as another language, in percent; None if the detector
            has no reliable label for the target language.
        detected: language code per hypothesis, or the detector's label if it has no code. Ties
            that include the target count as the target. "" for a hypothesis without letters, which
            never counts as off-target.
        note: why `ratio` is None; empty if it is not None.
    """

    ratio: float | None
    detected: tuple[str, ...]
    note: str = ""


class NearestRendering:
    """Language detector that compares a translation with renderings of its item in all languages.

    A hypothesis equal to renderings is in their languages. Any other hypothesis is in the language
    with the largest sum of two terms: F1 of character bigrams and trigrams with the item's
    rendering, and the share of the hypothesis' words that occur in any rendering of that language.
    Without the second term, a wrong name or number, which has little in common with any rendering,
    is assigned at random. Languages with identical renderings of an item always tie.

    Args:
        renderings: per item, the text by language code; at least one item.

    Attributes:
        languages: codes of all candidate languages.
    """

    def __init__(self, renderings: Sequence[Mapping[str, str]]) -> None:
        self._renderings = [
            {code: text.strip() for code, text in item.items()} for item in renderings
        ]
        self.languages = tuple(dict.fromkeys(code for item in renderings for code in item))
        words: dict[str, set[str]] = {code: set() for code in self.languages}
        for item in self._renderings:
            for code, text in item.items():
                words[code].update(_words(text))
        self._vocabularies = words

    @property
    def signature(self) -> str:
        """Signature of the detector with its candidate languages."""
        return f"nearest-rendering|grams:2,3+words|languages:{' '.join(self.languages)}"

    def nearest(self, index: int, hypothesis: str) -> tuple[str, ...]:
        """List the possible languages of a hypothesis, best first; empty if it has no letters.

        Args:
            index: index of the item that the hypothesis translates.
            hypothesis: output text.
        """
        renderings = self._renderings[index]
        text = hypothesis.strip()
        exact = tuple(code for code, rendering in renderings.items() if rendering == text)
        if exact:
            return exact
        if not has_letters(text):
            return ()
        words = _words(text)
        similarity = {
            code: _gram_similarity(text, rendering) + self._known_word_share(words, code)
            for code, rendering in renderings.items()
        }
        best = max(similarity.values())
        winners = {renderings[code] for code, value in similarity.items() if value >= best}
        tied = [code for code, rendering in renderings.items() if rendering in winners]
        return tuple(sorted(tied, key=similarity.__getitem__, reverse=True))

    def off_target(self, hypotheses: Sequence[str], target_language: str) -> OffTargetResult:
        """Detect the languages of one direction's translations.

        Args:
            hypotheses: output texts, one per item in the order of the items.
            target_language: code of the target language.

        Raises:
            UserError: if the number of hypotheses is not the number of items.
        """
        if len(hypotheses) != len(self._renderings):
            raise UserError(
                f"{target_language}: {len(hypotheses)} hypotheses for "
                f"{len(self._renderings)} items; each item needs one"
            )
        detected = []
        for index, hypothesis in enumerate(hypotheses):
            candidates = self.nearest(index, hypothesis)
            on_target = target_language in candidates
            detected.append(target_language if on_target else next(iter(candidates), ""))
        return OffTargetResult(off_target_ratio(detected, target_language), tuple(detected))

    def _known_word_share(self, words: Sequence[str], code: str) -> float:
        vocabulary = self._vocabularies[code]
        return sum(word in vocabulary for word in words) / len(words)


def off_target_ratio(detected: Sequence[str], target_language: str) -> float:
    """Return the share of detections of another language than the target, in percent."""
    return 100.0 * sum(code not in ("", target_language) for code in detected) / len(detected)


def detect_off_target(
    detector: LanguageDetector, hypotheses: Sequence[str], target_language: str
) -> OffTargetResult:
    """Detect the languages of one direction's translations.

    Args:
        detector: language detector.
        hypotheses: output texts, at least one.
        target_language: code of the target language.
    """
    expected = detector.expected(target_language)
    labels = [detector.label(text) if has_letters(text) else "" for text in hypotheses]
    detected = tuple(target_language if label == expected else label for label in labels)
    if expected is None:
        note = f"{detector.name} has no reliable label for {target_language}: no ratio"
        return OffTargetResult(None, detected, note)
    return OffTargetResult(off_target_ratio(detected, target_language), detected)


def lid_off_target(hypotheses: Sequence[str], target_language: str) -> OffTargetResult:
    """Detect languages with lid.176; see `detect_off_target`."""
    return detect_off_target(make_lid176(), hypotheses, target_language)


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


@functools.lru_cache(maxsize=_GRAM_CACHE_SIZE)
def _grams(text: str) -> Counter[str]:
    """Count the character bigrams and trigrams of a text padded with a space on both sides."""
    padded = f" {text} "
    return Counter(
        padded[start : start + size]
        for size in _GRAM_SIZES
        for start in range(len(padded) - size + 1)
    )


def _gram_similarity(text: str, other: str) -> float:
    """Return F1 of the character n-grams of two texts, from 0 to 1."""
    grams, other_grams = _grams(text), _grams(other)
    common = sum(
        min(count, other_grams[gram]) for gram, count in grams.items() if gram in other_grams
    )
    return 2 * common / (grams.total() + other_grams.total())
