"""Token masking of packed sentences, as a pure function of a key per sentence."""

from __future__ import annotations

import numpy as np

from mnmt_jax.design.mask_shares import MaskShares
from mnmt_jax.vocabulary.seeded_permutation import hash64

# Purposes of a hash, so that the draws are independent.
_COUNT, _RANK, _KIND, _TOKEN = range(4)


def mask(
    tokens: np.ndarray,
    counts: np.ndarray,
    keys: np.ndarray,
    *,
    mask_shares: MaskShares,
    symbol: int,
    random_ids: range,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose tokens of sentences and replace them.

    Args:
        tokens: tokens of all sentences, concatenated, int `[total]`.
        counts: number of tokens of each sentence, int `[n]`.
        keys: key of each sentence, uint64 `[n]`; equal keys give equal masks.
        mask_shares: fraction of chosen tokens, and fractions of their replacements.
        symbol: id of the mask token.
        random_ids: range of ids for random replacements.

    Returns:
        The tokens after replacement, int `[total]`, and which were chosen, bool `[total]`.
    """
    sentence = np.repeat(np.arange(len(counts)), counts)
    position = np.arange(len(tokens)) - np.repeat(np.cumsum(counts) - counts, counts)
    token_keys = np.asarray(keys, np.uint64)[sentence]
    num_masked = mask_counts(counts, _uniform(hash64(keys, _COUNT)), mask_shares.share)
    order = np.lexsort((hash64(token_keys, _RANK, position), sentence))
    is_chosen = np.zeros(len(tokens), bool)
    is_chosen[order] = position < num_masked[sentence]  # in sorted order, position is rank
    draw = _uniform(hash64(token_keys, _KIND, position))
    random_tokens = random_ids.start + (
        hash64(token_keys, _TOKEN, position) % np.uint64(len(random_ids))
    ).astype(tokens.dtype)
    use_mask_id = draw >= mask_shares.random + mask_shares.kept
    replaced = np.where(use_mask_id, np.asarray(symbol, tokens.dtype), random_tokens)
    replaced = np.where((draw < mask_shares.kept) | ~is_chosen, tokens, replaced)
    return replaced.astype(tokens.dtype), is_chosen


def mask_counts(counts: np.ndarray, uniform: np.ndarray, fraction: float) -> np.ndarray:
    """Return the number of tokens to choose per sentence: floor(share * count + uniform).

    Args:
        counts: number of tokens of each sentence, including eos, int `[n]`.
        uniform: random numbers in [0, 1), float `[n]`.
        fraction: average fraction of chosen tokens.
    """
    return np.floor(fraction * counts + uniform).astype(np.int64)


def _uniform(hashes: np.ndarray) -> np.ndarray:
    """Return numbers in [0, 1) with 53 random bits."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
