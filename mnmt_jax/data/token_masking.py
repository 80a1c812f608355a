"""Masks of packed sentences, as a pure function of each sentence's key."""

from __future__ import annotations

import numpy as np

from mnmt_jax.design.mask_shares import MaskShares
from mnmt_jax.vocabulary.seeded_permutation import hash64

# What a hash is of.
_COUNT, _PLACE, _KIND, _TOKEN = range(4)


def mask(
    tokens: np.ndarray,
    counts: np.ndarray,
    keys: np.ndarray,
    *,
    shares: MaskShares,
    symbol: int,
    drawn: range,
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses tokens of sentences and hides them.

    Args:
        tokens: of all sentences, one after the other, int `[total]`.
        counts: tokens of each sentence, int `[n]`.
        keys: of each sentence, uint64 `[n]`; the same key gives the same masks.
        shares: how many, and what stands for them.
        symbol: id of the mask.
        drawn: ids that may stand for a token.

    Returns:
        The tokens with what stands for those chosen, int `[total]`, and which were, bool `[total]`.
    """
    sentence = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(tokens)) - np.repeat(np.cumsum(counts) - counts, counts)
    own = np.asarray(keys, np.uint64)[sentence]
    wanted = mask_counts(counts, _uniform(hash64(keys, _COUNT)), shares.share)
    order = np.lexsort((hash64(own, _PLACE, place), sentence))
    chosen = np.zeros(len(tokens), bool)
    chosen[order] = place < wanted[sentence]  # the ranks in a sentence are its places in order
    kind = _uniform(hash64(own, _KIND, place))
    other = drawn.start + (hash64(own, _TOKEN, place) % np.uint64(len(drawn))).astype(tokens.dtype)
    masked = kind >= shares.random + shares.kept
    hidden = np.where(masked, np.asarray(symbol, tokens.dtype), other)
    hidden = np.where((kind < shares.kept) | ~chosen, tokens, hidden)
    return hidden.astype(tokens.dtype), chosen


def mask_counts(counts: np.ndarray, uniform: np.ndarray, share: float) -> np.ndarray:
    """Returns how many tokens of each sentence are asked for: floor(share * count + uniform).

    Args:
        counts: tokens of each sentence, eos included, int `[n]`.
        uniform: in [0, 1), float `[n]`.
        share: wanted on average.
    """
    return np.floor(share * counts + uniform).astype(np.int64)


def _uniform(hashes: np.ndarray) -> np.ndarray:
    """Returns numbers in [0, 1) of 53 bits."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
