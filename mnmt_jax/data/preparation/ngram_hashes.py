"""Hashes of n-grams of many sentences at once."""

from __future__ import annotations

import numpy as np

from mnmt_jax.data.preparation.characters import CodePoints
from mnmt_jax.vocabulary.seeded_permutation import hash64

# An odd factor for sums over the words of an n-gram.
_ODD = 0xD6E8FEB86659FD93
_POSITION_BITS = np.uint64(32)
_LOW_BITS = np.uint64((1 << 16) - 1)


def has_frequent_ngram(
    code_points: CodePoints, n: int, max_count: int, *, words: bool
) -> np.ndarray:
    """Return which sentences have an n-gram that occurs more than `max_count` times, bool `[n]`.

    Args:
        code_points: sentences.
        n: number of tokens of an n-gram.
        max_count: maximum number of times.
        words: whether tokens are words separated by white space, else characters.
    """
    hashes, sentences = ngram_hashes(code_points, n, words=words)
    salted = hashes + hash64(np.arange(len(code_points.lengths)))[sentences]
    ordered = np.sort(salted)
    repeated = ordered[max_count:][ordered[max_count:] == ordered[:-max_count]]
    is_frequent = np.zeros(len(code_points.lengths), bool)
    is_frequent[sentences[_are_in(salted, repeated)]] = True
    return is_frequent


def highest_ngram_count(text: str, n: int, *, words: bool) -> int:
    """Return how often the most frequent n-gram of a text occurs; 0 if it has none.

    Args:
        text: a sentence.
        n: number of tokens of an n-gram.
        words: whether tokens are words separated by white space, else characters.
    """
    hashes, _ = ngram_hashes(CodePoints([text]), n, words=words)
    return int(np.unique(hashes, return_counts=True)[1].max(initial=0))


def ngram_hashes(code_points: CodePoints, n: int, *, words: bool) -> tuple[np.ndarray, np.ndarray]:
    """Hash the n-grams of all sentences, in order.

    Args:
        code_points: sentences.
        n: number of tokens of an n-gram.
        words: whether tokens are words separated by white space, else characters.

    Returns:
        64-bit hashes, uint64 `[n-grams]`, and the index of the sentence of each, `[n-grams]`.
    """
    tokens, sentences = word_hashes(code_points) if words else _character_hashes(code_points)
    hashes = _window_sums(tokens, n)
    count = len(hashes)
    is_inside = sentences[:count] == sentences[n - 1 : n - 1 + count]
    return hash64(hashes[is_inside]), sentences[:count][is_inside]


def word_hashes(code_points: CodePoints) -> tuple[np.ndarray, np.ndarray]:
    """Hash the words of all sentences; return the hashes and the index of each one's sentence."""
    starts = np.flatnonzero(code_points.starts_word())
    sentences = np.searchsorted(code_points.ends, starts, side="right")
    if not len(starts):
        return np.zeros(0, np.uint64), sentences
    positions = np.arange(len(code_points.values)) - np.repeat(
        np.concatenate([[0], starts]),
        np.diff(np.concatenate([[0], starts, [len(code_points.values)]])),
    )
    values = hash64(code_points.values + (positions.astype(np.uint64) << _POSITION_BITS))
    values[code_points.is_space()] = 0
    return np.add.reduceat(values, starts), sentences


def _window_sums(tokens: np.ndarray, n: int) -> np.ndarray:
    """Return sums over n successive tokens with rising powers of a factor, modulo 2**64."""
    if n == 1:
        return tokens
    half = n // 2
    sums = _window_sums(tokens, half)
    count = max(len(tokens) - 2 * half + 1, 0)
    sums = sums[:count] * np.uint64(pow(_ODD, half, 1 << 64)) + sums[half : half + count]
    if n % 2:
        count = max(count - 1, 0)
        sums = sums[:count] * np.uint64(_ODD) + tokens[n - 1 : n - 1 + count]
    return sums


def _are_in(hashes: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the indices of the hashes that are among a few chosen ones."""
    has_low_bits = np.zeros(_LOW_BITS + 1, bool)
    has_low_bits[chosen & _LOW_BITS] = True
    candidates = np.flatnonzero(has_low_bits[hashes & _LOW_BITS])
    return candidates[np.isin(hashes[candidates], chosen)]


def _character_hashes(code_points: CodePoints) -> tuple[np.ndarray, np.ndarray]:
    sentences = np.repeat(np.arange(len(code_points.lengths), dtype=np.int32), code_points.lengths)
    return hash64(code_points.values), sentences
