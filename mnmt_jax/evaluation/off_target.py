"""Off-target ratio: how many translations are in another language than the one asked for.

Language detectors (`language_detectors`) work on any text and err on short phrases. Where an item
is known in every candidate language (the CLDR corpus, multi-parallel test sets), the nearest
rendering tells far more, and references are never blamed.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mnmt_jax.errors import UserError

_GRAM_SIZES = (2, 3)
_KNOWN_RENDERINGS = 1 << 15  # n-gram tables kept; each is a few kilobytes
# Kana and Han are written without blanks: there a word is one character.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")


@dataclass(frozen=True)
class OffTargetResult:
    """Holds what a detector says about the hypotheses of one direction.

    Attributes:
        ratio: share of hypotheses detected as another language, in percent; None if the detector
            does not know the target language.
        detected: per hypothesis the language's code, or the detector's label if no code has it; the
            target's code wherever the detector cannot tell the target from others; "" for a
            hypothesis without letters, which is in no language and never counts as off-target.
        note: why `ratio` is None; empty if it is not.
    """

    ratio: float | None
    detected: tuple[str, ...]
    note: str = ""


class NearestRendering:
    """Names the language of a translation from renderings of the same item in every language.

    Args:
        renderings: per item the text in each candidate language, at least one item.

    A hypothesis that equals renderings is in their languages. Any other is in the language with
    the largest sum of two terms: F1 of character bigrams and trigrams with the item's rendering,
    and the share of the hypothesis' words that occur anywhere in the renderings of that language.
    Without the second term a wrong name or number, which has little in common with any rendering,
    is assigned at random. Languages with one and the same rendering of an item always tie.
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
        self._known_words = words

    @property
    def signature(self) -> str:
        """Name the detector and its candidates."""
        return f"nearest-rendering|grams:2,3+words|languages:{' '.join(self.languages)}"

    def nearest(self, index: int, hypothesis: str) -> tuple[str, ...]:
        """List the languages a hypothesis may be in, best first; empty if it has no letters.

        Args:
            index: which item the hypothesis translates.
            hypothesis: output text.
        """
        renderings = self._renderings[index]
        text = hypothesis.strip()
        equal = tuple(code for code, rendering in renderings.items() if rendering == text)
        if equal:
            return equal
        if not has_letters(text):
            return ()
        words = _words(text)
        closeness = {
            code: _gram_similarity(text, rendering) + self._known_share(words, code)
            for code, rendering in renderings.items()
        }
        best = max(closeness.values())
        winners = {renderings[code] for code, value in closeness.items() if value >= best}
        tied = [code for code, rendering in renderings.items() if rendering in winners]
        return tuple(sorted(tied, key=closeness.__getitem__, reverse=True))

    def off_target(self, hypotheses: Sequence[str], target_language: str) -> OffTargetResult:
        """Detect the languages of one direction's translations.

        Args:
            hypotheses: output texts, one per item in the items' order.
            target_language: code of the language they should be in.

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

    def _known_share(self, words: Sequence[str], code: str) -> float:
        known = self._known_words[code]
        return sum(word in known for word in words) / len(words)


def off_target_ratio(detected: Sequence[str], target_language: str) -> float:
    """Return the share of detections that name another language, in percent."""
    return 100.0 * sum(code not in ("", target_language) for code in detected) / len(detected)


def has_letters(text: str) -> bool:
    """Return whether a text has a letter of any script; without one it has no language."""
    return any(character.isalpha() for character in text)


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


@functools.lru_cache(maxsize=_KNOWN_RENDERINGS)
def _grams(text: str) -> Counter[str]:
    """Count the character bigrams and trigrams of a text with a blank on either side."""
    padded = f" {text} "
    return Counter(
        padded[start : start + size]
        for size in _GRAM_SIZES
        for start in range(len(padded) - size + 1)
    )


def _gram_similarity(text: str, other: str) -> float:
    """Return F1 of the two texts' character n-grams, 0 to 1."""
    first, second = _grams(text), _grams(other)
    common = sum(min(count, second[gram]) for gram, count in first.items() if gram in second)
    return 2 * common / (first.total() + second.total())
