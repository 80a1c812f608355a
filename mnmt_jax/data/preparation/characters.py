"""Character classes as lookup tables, and counts of characters in many sentences at once."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import regex

_CODE_POINTS = 0x110000


class CodePoints:
    """The characters of sentences as one array of numbers.

    Attributes:
        values: code points of all sentences in order, uint32 `[characters]`.
        lengths: number of characters per sentence, int64 `[n]`.
        ends: index in `values` after the last character of each sentence, int64 `[n]`.
    """

    def __init__(self, sentences: Sequence[str]) -> None:
        text = "".join(sentences).encode("utf-32-le", "surrogatepass")
        self.values = np.frombuffer(text, np.dtype("<u4"))
        self.lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        self.ends = np.cumsum(self.lengths)

    def count(self, is_counted: np.ndarray) -> np.ndarray:
        """Count characters of a class per sentence.

        Args:
            is_counted: which characters belong to the class, bool `[0x110000]`.

        Returns:
            Counts, int64 `[n]`.
        """
        return self.sum(is_counted[self.values])

    def sum(self, flags: np.ndarray) -> np.ndarray:
        """Sum flags of characters per sentence.

        Args:
            flags: bool `[characters]`.

        Returns:
            Sums, int64 `[n]`.
        """
        totals = np.zeros(len(flags) + 1, np.int64)
        np.cumsum(flags, out=totals[1:])
        return totals[self.ends] - totals[self.ends - self.lengths]


@functools.cache
def character_table(pattern: str) -> np.ndarray:
    r"""Return which characters match a pattern, bool `[0x110000]`, read-only.

    Args:
        pattern: a class of the package `regex`, such as `\p{L}` or `[\p{scx=Hira}\p{scx=Kana}]`.
    """
    table = np.zeros(_CODE_POINTS, bool)
    for match in regex.finditer(f"{pattern}+", _all_characters()):
        table[match.start() : match.end()] = True
    table.flags.writeable = False
    return table


@functools.cache
def _all_characters() -> str:
    """Return all code points in order."""
    return "".join(map(chr, range(_CODE_POINTS)))
