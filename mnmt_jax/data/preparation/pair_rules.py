"""Rules that compare the two sentences of a pair, repeated n-grams, and scores."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Literal

import numpy as np

from mnmt_jax.data.preparation.characters import (
    CodePoints,
    character_table,
    digit_groups,
    fold,
)
from mnmt_jax.data.preparation.ngram_hashes import has_frequent_ngram
from mnmt_jax.data.preparation.steps import PairBatch, PairRule, Side, SideRule
from mnmt_jax.errors import UserError, join_names

_MAX_N = 100
_BLOCK = 500  # sentences whose n-grams fit the processor's cache


@dataclasses.dataclass(frozen=True)
class Copies(PairRule):
    """Target equals source.

    Attributes:
        ignore_case: whether sentences that differ by case only are copies.
        ignore_punctuation: whether sentences with equal letters, marks and digits are copies.
    """

    name = "copies"
    ignore_case: bool = False
    ignore_punctuation: bool = False

    def keeps(self, batch: PairBatch) -> np.ndarray:
        """Return which pairs are kept, bool `[n]`."""
        sources, targets = (
            fold(sentences, case=self.ignore_case, punctuation=self.ignore_punctuation)
            for sentences in (batch.sources, batch.targets)
        )
        differ = (source != target for source, target in zip(sources, targets, strict=True))
        return np.fromiter(differ, bool, len(batch))


@dataclasses.dataclass(frozen=True)
class Numbers(PairRule):
    """Numbers that differ.

    Groups of digits are compared in any order, digits of all scripts as equal: `1,000` and `1.000`
    both have the groups 1 and 000. Numbers in words or Han characters are not read.

    Attributes:
        max_different: maximum number of groups of one sentence that the other lacks, both sides
            added up.
    """

    name = "numbers"
    max_different: int = 0

    def __post_init__(self) -> None:
        """Check the limit."""
        self.require("max_different", self.max_different >= 0, expected="0 or more")

    def keeps(self, batch: PairBatch) -> np.ndarray:
        """Return which pairs are kept, bool `[n]`."""
        digits = character_table(r"\p{Nd}")
        first, second = (side.code_points.count(digits) for side in batch.sides)
        kept = np.ones(len(batch), bool)
        for index in np.flatnonzero(first + second).tolist():
            source, target = digit_groups(batch.sources[index]), digit_groups(batch.targets[index])
            kept[index] = source == target or self._are_close(source, target)
        return kept

    def _are_close(self, source: list[str], target: list[str]) -> bool:
        counts, other = Counter(source), Counter(target)
        return ((counts - other) + (other - counts)).total() <= self.max_different


@dataclasses.dataclass(frozen=True)
class RepeatedNgrams(SideRule):
    """An n-gram repeated many times on one side.

    N-grams may overlap. Words are separated by white space: use characters for languages without.

    Attributes:
        n: number of words or characters.
        max_count: maximum number of times that an n-gram occurs in a sentence.
        unit: `characters` or `words`.
    """

    name = "repeated_ngrams"
    n: int = 3
    max_count: int = 2
    unit: Literal["characters", "words"] = "words"

    def __post_init__(self) -> None:
        """Check the settings."""
        self.require("n", 1 <= self.n <= _MAX_N, expected=f"from 1 to {_MAX_N}")
        self.require("max_count", self.max_count >= 1, expected="1 or more")
        self.require_choice("unit", ("characters", "words"))

    def accepts_side(self, side: Side) -> np.ndarray:
        """Return which sentences pass, bool `[n]`."""
        starts = range(0, len(side.sentences), _BLOCK)
        blocks = (CodePoints(side.sentences[start : start + _BLOCK]) for start in starts)
        is_words = self.unit == "words"
        is_frequent = (
            has_frequent_ngram(block, self.n, self.max_count, words=is_words) for block in blocks
        )
        return ~np.concatenate([np.zeros(0, bool), *is_frequent])


@dataclasses.dataclass(frozen=True)
class Score(PairRule):
    """A score below a threshold.

    Attributes:
        column: name of the score, such as that of LASER or of a quality estimation model.
        minimum: smallest score that is kept. Pairs whose score is not a number are dropped.
    """

    name = "score"
    column: str
    minimum: float

    def __post_init__(self) -> None:
        """Check the settings."""
        self.require("column", bool(self.column), expected="the name of a score")
        self.require("minimum", math.isfinite(self.minimum), expected="a number")

    def keeps(self, batch: PairBatch) -> np.ndarray:
        """Return which pairs are kept, bool `[n]`.

        Raises:
            UserError: if the pairs do not have the score.
        """
        if self.column not in batch.scores:
            names = join_names(sorted(batch.scores)) or "none"
            direction = "-".join(batch.direction)
            raise UserError(
                f"score: column = {self.column!r}: {direction} has no such score; it has {names}"
            )
        return np.asarray(batch.scores[self.column]) >= self.minimum
