"""Rules on the lengths of sentences, in characters, words or pieces."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from mnmt_jax.data.preparation.steps import PairBatch, PairRule, PieceRule, Side, SideRule

UNITS = ("characters", "words")


@dataclasses.dataclass(frozen=True)
class Length(SideRule):
    """Too short or too long.

    Words are separated by white space: use characters for languages without it.

    Attributes:
        min_characters: minimum number of characters of each sentence.
        max_characters: maximum; no limit if absent.
        min_words: minimum number of words of each sentence.
        max_words: maximum; no limit if absent.
    """

    name = "length"
    min_characters: int = 1
    max_characters: int | None = None
    min_words: int = 0
    max_words: int | None = None

    def __post_init__(self) -> None:
        """Check the limits."""
        self.require_range("min_characters", "max_characters")
        self.require_range("min_words", "max_words")

    def accepts_side(self, side: Side) -> np.ndarray:
        """Return which sentences pass, bool `[n]`."""
        accepted = _within(side.code_points.lengths, self.min_characters, self.max_characters)
        if self.min_words or self.max_words is not None:
            accepted &= _within(side.code_points.word_counts(), self.min_words, self.max_words)
        return accepted


@dataclasses.dataclass(frozen=True)
class LengthRatio(PairRule):
    """One sentence much longer than the other.

    Attributes:
        max_ratio: maximum ratio of the longer to the shorter sentence.
        unit: `characters` or `words`.
    """

    name = "length_ratio"
    max_ratio: float
    unit: Literal["characters", "words"] = "words"

    def __post_init__(self) -> None:
        """Check the settings."""
        self.require_ratio("max_ratio")
        self.require_choice("unit", UNITS)

    def keeps(self, batch: PairBatch) -> np.ndarray:
        """Return which pairs are kept, bool `[n]`."""
        first, second = (side.code_points for side in batch.sides)
        if self.unit == "words":
            return within_ratio(first.word_counts(), second.word_counts(), self.max_ratio)
        return within_ratio(first.lengths, second.lengths, self.max_ratio)


@dataclasses.dataclass(frozen=True)
class PieceLength(PieceRule):
    """Too few or too many pieces.

    Attributes:
        min_pieces: minimum number of pieces of each sentence.
        max_pieces: maximum; no limit if absent.
    """

    name = "piece_length"
    min_pieces: int = 1
    max_pieces: int | None = None

    def __post_init__(self) -> None:
        """Check the limits."""
        self.require_range("min_pieces", "max_pieces")

    def keeps(self, lengths: np.ndarray) -> np.ndarray:
        """Return which pairs are kept, bool `[n]`."""
        is_within = _within(lengths, self.min_pieces, self.max_pieces)
        return is_within[:, 0] & is_within[:, 1]


@dataclasses.dataclass(frozen=True)
class PieceRatio(PieceRule):
    """One sentence with many more pieces than the other.

    Source: `clean-corpus-n.perl --ratio` of Moses.

    Attributes:
        max_ratio: maximum ratio of the larger to the smaller number of pieces.
    """

    name = "piece_ratio"
    max_ratio: float

    def __post_init__(self) -> None:
        """Check the ratio."""
        self.require_ratio("max_ratio")

    def keeps(self, lengths: np.ndarray) -> np.ndarray:
        """Return which pairs are kept, bool `[n]`."""
        return within_ratio(lengths[:, 0], lengths[:, 1], self.max_ratio)


def within_ratio(first: np.ndarray, second: np.ndarray, max_ratio: float) -> np.ndarray:
    """Return where the larger number is at most `max_ratio` times the smaller, bool `[n]`."""
    longer, shorter = np.maximum(first, second), np.minimum(first, second)
    # Quotients, because a product with max_ratio is rounded: 1.4 * 45 is below 63.
    is_within = (shorter > 0) & (longer / np.maximum(shorter, 1) <= max_ratio)
    return is_within | (longer == 0)


def _within(values: np.ndarray, low: int, high: int | None) -> np.ndarray:
    is_within = values >= low
    return is_within if high is None else is_within & (values <= high)
