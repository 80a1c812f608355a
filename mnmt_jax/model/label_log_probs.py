"""Functions of logits, with the logits of a chunk of tokens in memory at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

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

    Args:
        heads: pairs of features and table; the logits are the sum of their products.
        labels: id of the next token.
        valid: whether the position counts.
        chunk: tokens whose logits are in memory at a time, over all devices together.
    """

    def log_probs(logits: Array, block_labels: Array) -> Array:
        # By comparison: a gather would collect a vocabulary-sharded axis.
        is_label = (
            jax.lax.broadcasted_iota(labels.dtype, logits.shape, 2) == block_labels[..., None]
        )
        label_logit = jnp.where(is_label, logits, 0.0).sum(axis=-1)
        return label_logit - jax.nn.logsumexp(logits, axis=-1)

    return jnp.where(valid, map_logits(log_probs, heads, (labels,), chunk=chunk), 0.0)


def map_logits(
    function: Callable[..., Array],
    heads: Sequence[tuple[Float[Array, "rows length embed"], Float[Array, "vocab embed"]]],
    arrays: Sequence[Array] = (),
    *,
    chunk: int,
) -> Array:
    """Apply a function to the logits of all positions, a block of positions at a time.

    The logits are computed again for the gradient. A block has the positions of all rows, so that
    rows stay on their devices.

    Args:
        function: takes float32 logits [rows, width, vocab] and the blocks [rows, width] of the
            arrays, and returns [any rows, width].
        heads: pairs of features and table; the logits are the sum of their products.
        arrays: further inputs, [rows, length] each.
        chunk: tokens whose logits are in memory at a time, over all devices together.

    Returns:
        [any rows, length].
    """
    features, tables = zip(*heads, strict=True)
    rows, length = features[0].shape[:2]
    width = min(max(chunk // rows, 1), length)
    padding = -length % width

    def blocks(array: Array) -> Array:
        padded = jnp.pad(array, [(0, 0), (0, padding)] + [(0, 0)] * (array.ndim - 2))
        return jnp.moveaxis(padded.reshape(rows, -1, width, *array.shape[2:]), 1, 0)

    @jax.checkpoint
    def apply(block: tuple[tuple[Array, ...], tuple[Array, ...]]) -> Array:
        states, others = block
        terms = (
            jnp.einsum("rlm,vm->rlv", x, t.astype(x.dtype), preferred_element_type=jnp.float32)
            for x, t in zip(states, tables, strict=True)
        )
        return function(functools.reduce(jnp.add, terms), *others)

    values = jax.lax.map(apply, (tuple(map(blocks, features)), tuple(map(blocks, arrays))))
    joined = jnp.moveaxis(values, 0, 1)
    return joined.reshape(joined.shape[0], -1)[:, :length]
