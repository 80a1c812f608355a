"""Seeded permutations that are pure functions of integers.

NumPy guarantees stable streams for its bit generators but not for `permutation` or `shuffle`, and a
stored permutation of every corpus would not fit in memory. So orders are computed by two functions
on uint64: a hash, and a keyed permutation of 0..n-1 that is evaluated at single positions. Both
give the same result on every host, in every process and in every version of Python and NumPy.
"""

from __future__ import annotations

import hashlib

import numpy as np

_ROUNDS = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hash64(*values: np.ndarray | int) -> np.ndarray:
    """Hash integers, element by element, to approximately uniform uint64.

    Args:
        *values: integers or integer arrays that broadcast; order matters.

    Returns:
        uint64 array of the broadcast shape (at least one-dimensional).

    Source: the finaliser of SplitMix64 (Steele, Lea and Flood 2014), chained over the values.
    """
    state = np.zeros(1, np.uint64)
    for value in values:
        state = _finalise((state ^ _as_uint64(value)) + _GOLDEN)
    return state


def text_hash64(text: str) -> int:
    """Return the first 64 bits of a text's SHA-256, the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def permuted_positions(
    positions: np.ndarray, sizes: np.ndarray | int, keys: np.ndarray | int
) -> np.ndarray:
    """Return the image of each position under a keyed random permutation of 0..size-1.

    For fixed size and key this is a bijection on 0..size-1. A Feistel network permutes the next
    power of four; values outside the range are permuted again until they are inside (cycle
    walking).

    Args:
        positions: integers, each in 0..size-1, `[n]`.
        sizes: size of each position's permutation, `[n]` or one for all.
        keys: key of each position's permutation, `[n]` or one for all.

    Returns:
        int64 array `[n]`.
    """
    values = np.array(positions, np.uint64, ndmin=1)
    sizes = np.broadcast_to(_as_uint64(sizes), values.shape)
    keys = np.broadcast_to(_as_uint64(keys), values.shape)
    half_bits = _half_bits(sizes)
    outside = np.arange(values.size)
    while outside.size:
        values[outside] = _feistel(values[outside], half_bits[outside], keys[outside])
        outside = outside[values[outside] >= sizes[outside]]
    return values.astype(np.int64)


def _finalise(state: np.ndarray) -> np.ndarray:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _as_uint64(value: np.ndarray | int) -> np.ndarray:
    if isinstance(value, int):
        return np.array([value % 2**64], np.uint64)
    return np.asarray(value).astype(np.uint64)


def _half_bits(sizes: np.ndarray) -> np.ndarray:
    """Return half the bits of the smallest power of four that is at least the size (and 4)."""
    half_bits = np.ones(sizes.shape, np.uint64)
    for bits in range(1, 31):
        half_bits += (sizes > np.uint64(4**bits)).astype(np.uint64)
    return half_bits


def _feistel(values: np.ndarray, half_bits: np.ndarray, keys: np.ndarray) -> np.ndarray:
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left, right = values >> half_bits, values & mask
    for number in range(_ROUNDS):
        round_keys = keys + np.uint64(number)
        left, right = right, left ^ (_finalise((right + _GOLDEN) ^ round_keys) & mask)
    return (left << half_bits) | right
