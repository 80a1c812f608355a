"""Log-probabilities of labels, with the logits of a chunk of tokens in memory at a time."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def label_log_probs(
    heads: Sequence[tuple[Float[Array, "rows length embed"], Float[Array, "vocab embed"]]],
    labels: Int[Array, "rows length"],
    valid: Bool[Array, "rows length"],
    *,
    chunk: int,
) -> Float[Array, "rows length"]:
    """Return log p(label) at every position, float32; 0 where it is not valid.

    The logits are computed again for the gradient. Chunks are blocks of positions of all rows, so
    that rows stay on their devices.

    Args:
        heads: pairs of features and table; the logits are the sum of their products.
        labels: id of the next token.
        valid: whether the position counts.
        chunk: tokens whose logits are in memory at a time, over all devices together.
    """
    rows, length = labels.shape
    width = min(max(chunk // rows, 1), length)
    padding = -length % width

    def blocks(array: Array) -> Array:
        padded = jnp.pad(array, [(0, 0), (0, padding)] + [(0, 0)] * (array.ndim - 2))
        return jnp.moveaxis(padded.reshape(rows, -1, width, *array.shape[2:]), 1, 0)

    features, tables = zip(*heads, strict=True)

    @jax.checkpoint
    def log_probs(block: tuple[tuple[Array, ...], Array]) -> Array:
        states, block_labels = block
        terms = (
            jnp.einsum("rlm,vm->rlv", x, t.astype(x.dtype), preferred_element_type=jnp.float32)
            for x, t in zip(states, tables, strict=True)
        )
        logits = functools.reduce(jnp.add, terms)
        # By comparison: a gather would collect a vocabulary-sharded axis.
        is_label = (
            jax.lax.broadcasted_iota(labels.dtype, logits.shape, 2) == block_labels[..., None]
        )
        label_logit = jnp.where(is_label, logits, 0.0).sum(axis=-1)
        return label_logit - jax.nn.logsumexp(logits, axis=-1)

    values = jax.lax.map(log_probs, (tuple(map(blocks, features)), blocks(labels)))
    joined = jnp.moveaxis(values, 0, 1).reshape(rows, -1)[:, :length]
    return jnp.where(valid, joined, 0.0)
