"""Character classes as lookup tables, and counts of characters in many sentences at once."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import regex

N_CODE_POINTS = 0x110000
LETTERS = r"\p{L}"
WORD_CHARACTERS = r"[\p{L}\p{M}\p{N}]"
_DIGITS = re.compile(r"\d+")


class CodePoints:
    """The characters of sentences as one array of numbers.

    Attributes:
        values: code points of all sentences in order, uint32 `[characters]`.
        lengths: number of characters per sentence, int64 `[n]`.
        starts: index in `values` of the first character of each sentence, int64 `[n]`.
        ends: index in `values` after the last character of each sentence, int64 `[n]`.
    """

    def __init__(self, sentences: Sequence[str]) -> None:
        text = "".join(sentences).encode("utf-32-le", "surrogatepass")
        self.values = np.frombuffer(text, np.dtype("<u4"))
        self.lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        self.ends = np.cumsum(self.lengths)
        self.starts = self.ends - self.lengths

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
        totals = np.zeros(len(flags) + 1, np.int32)
        np.cumsum(flags, out=totals[1:])
        return (totals[self.ends] - totals[self.starts]).astype(np.int64)

    def is_space(self) -> np.ndarray:
        """Return which characters separate words, bool `[characters]`."""
        return whitespace_table()[self.values]

    def starts_word(self) -> np.ndarray:
        """Return which characters start a word, bool `[characters]`.

        Words are separated by white space, as by `str.split`.
        """
        is_space = self.is_space()
        follows_space = np.ones(len(is_space), bool)
        follows_space[1:] = is_space[:-1]
        follows_space[self.starts[self.lengths > 0]] = True
        return ~is_space & follows_space

    def word_counts(self) -> np.ndarray:
        """Return the number of words per sentence, int64 `[n]`."""
        return self.sum(self.starts_word())


@functools.cache
def character_table(pattern: str) -> np.ndarray:
    r"""Return which characters match a pattern, bool `[0x110000]`, read-only.

    Args:
        pattern: a class of the package `regex`, such as `\p{L}` or `[\p{scx=Hira}\p{scx=Kana}]`.
    """
    table = np.zeros(N_CODE_POINTS, bool)
    for match in regex.finditer(f"{pattern}+", _all_characters()):
        table[match.start() : match.end()] = True
    return _read_only(table)


@functools.cache
def whitespace_table() -> np.ndarray:
    """Return which characters separate words in `str.split`, bool `[0x110000]`, read-only."""
    return _read_only(np.fromiter(map(str.isspace, _all_characters()), bool, N_CODE_POINTS))


def characters_table(characters: str) -> np.ndarray:
    """Return which characters are in a string, bool `[0x110000]`, read-only."""
    table = np.zeros(N_CODE_POINTS, bool)
    table[CodePoints([characters]).values] = True
    return _read_only(table)


def fold(sentences: Sequence[str], *, case: bool, punctuation: bool) -> list[str]:
    """Return sentences without differences of case, or of punctuation and white space.

    Args:
        sentences: sentences.
        case: whether to fold case (`str.casefold`).
        punctuation: whether to remove all characters but letters, marks and digits.
    """
    if case:
        sentences = [sentence.casefold() for sentence in sentences]
    if not punctuation:
        return list(sentences)
    code_points = CodePoints(sentences)
    is_kept = character_table(WORD_CHARACTERS)[code_points.values]
    text = code_points.values[is_kept].tobytes().decode("utf-32-le")
    ends = np.cumsum(code_points.sum(is_kept)).tolist()
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def digit_groups(sentence: str) -> list[str]:
    """Return the groups of digits of a sentence as ASCII, in order.

    Digits of all scripts are read; numbers in words or Han characters are not.
    """
    groups = _DIGITS.findall(sentence)
    if not sentence.isascii():
        groups = [group if group.isascii() else _to_ascii(group) for group in groups]
    return groups


def _to_ascii(digits: str) -> str:
    return "".join(str(unicodedata.decimal(digit)) for digit in digits)


@functools.cache
def _all_characters() -> str:
    """Return all code points in order."""
    return "".join(map(chr, range(N_CODE_POINTS)))


def _read_only(table: np.ndarray) -> np.ndarray:
    table.flags.writeable = False
    return table
