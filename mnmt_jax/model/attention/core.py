"""Masked softmax attention and visibility masks, shared by all implementations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.design.layout import Sees, Stage
from mnmt_jax.distributed.dropout_mask import DropoutMask

Spans = Mapping[str, Array]
Dropout = Callable[[], DropoutMask]  # called for each softmax: a new mask


class StepKeyValues(NamedTuple):
    """The keys and values that the hypotheses of one decoding step may attend to.

    Attributes:
        keys: per sentence and head; `keys_axis` gives the axis of the positions.
        values: laid out as the second factor of the product of weights and values.
        mask: True where a hypothesis may attend to a key; a single row of queries applies to all
            hypotheses.
    """

    keys: Float[Array, "batch heads _ _"]
    values: Float[Array, "batch heads k head_dim"]
    mask: Bool[Array, "batch queries k"]


def keys_axis(beam: int) -> int:
    """Return the axis of positions in `StepKeyValues.keys`.

    Axis 3 needs no transpose when several queries are multiplied by the keys. For a single query,
    axis 2 (the layout of the values) is faster.
    """
    return 3 if beam > 1 else 2


def masked_softmax(
    logits: Float[Array, "*b k"], mask: Bool[Array, "*#b k"]
) -> Float[Array, "*b k"]:
    """Normalise over the keys that a query may see.

    Args:
        logits: float32.
        mask: True where the query may attend. A query that sees no key (padding) averages all keys;
            its output is meaningless but never NaN.

    Returns:
        float32 weights; hidden keys get exactly 0 in every row that sees at least one key.
    """
    return jax.nn.softmax(jnp.where(mask, logits, jnp.finfo(logits.dtype).min), axis=-1)


def attend(
    queries: Float[Array, "batch q heads head_dim"],
    keys: Float[Array, "batch k heads head_dim"],
    values: Float[Array, "batch k heads head_dim"],
    *,
    mask: Bool[Array, "batch 1 q k"],
    dropout: Dropout,
) -> Float[Array, "batch q heads head_dim"]:
    """Attend with one softmax per query, computed in float32.

    Args:
        queries: already scaled by head_dim ** -0.5.
        keys: one per position that some query may see.
        values: as `keys`.
        mask: True where a query may attend to a key.
        dropout: applied to the attention weights.
    """
    logits = jnp.einsum("bqhd,bkhd->bhqk", queries, keys, preferred_element_type=jnp.float32)
    weights = dropout()(masked_softmax(logits, mask)).astype(values.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, values)


def attend_by_role(
    stage: Stage, attend_role: Callable[..., Array], queries: Spans, keys: Spans, values: Spans
) -> dict[str, Array]:
    """Attend from each role in turn and collect the outputs.

    Args:
        stage: the visibility table.
        attend_role: takes a role, its queries, and lists of the keys and values of the roles that
            it sees, in the order of `stage.key_roles`; returns the attention output.
        queries: of each role.
        keys: of each role.
        values: as `keys`.
    """
    outputs = {}
    for role in stage.roles:
        keys_values = ([spans[r] for r in stage.key_roles(role)] for spans in (keys, values))
        outputs[role] = attend_role(role, queries[role], *keys_values)
    return outputs


def pair_mask(
    sees: Sees, query_segment_ids: Int[Array, "batch q"], key_segment_ids: Int[Array, "batch k"]
) -> Bool[Array, "batch 1 q k"]:
    """Return which keys of one role are visible to the queries of another (or the same) role.

    A key is visible if it is in the query's segment and, for CAUSAL, not after the query. Within a
    segment the order in the span is the order of positions, so the lower triangle of the span is
    exact for packed rows too.
    """
    same_segment = query_segment_ids[:, :, None] == key_segment_ids[:, None, :]
    visible = same_segment & (query_segment_ids[:, :, None] != 0)
    if sees is Sees.CAUSAL:
        visible &= jnp.tri(visible.shape[1], visible.shape[2], dtype=bool)[None]
    elif sees is Sees.NONE:
        visible = jnp.zeros_like(visible)
    return visible[:, None]


def attend_beams(
    queries: Float[Array, "batch beam heads head_dim"], read: Sequence[StepKeyValues]
) -> Float[Array, "batch beam heads head_dim"]:
    """Attend from every hypothesis of one decoding step, with one softmax over all its keys.

    Args:
        queries: one per hypothesis, scaled.
        read: the keys and values of each sentence, as one or more blocks.
    """
    layout = "bhdk" if keys_axis(queries.shape[1]) == 3 else "bhkd"
    logits = [_float32_einsum(f"bwhd,{layout}->bhwk", queries, block.keys) for block in read]
    masks = (jnp.broadcast_to(read[i].mask[:, None], block.shape) for i, block in enumerate(logits))
    weights = masked_softmax(jnp.concatenate(logits, -1), jnp.concatenate([*masks], -1))
    ends = np.cumsum([block.values.shape[2] for block in read])[:-1]
    block_weights = jnp.split(weights.astype(queries.dtype), ends, axis=-1)
    # `einsum` makes the values the first factor, which takes 14 times as long on CPU.
    outputs = (
        weights_of_block @ block.values
        for weights_of_block, block in zip(block_weights, read, strict=True)
    )
    return jnp.swapaxes(functools.reduce(jnp.add, outputs), 1, 2)


def _float32_einsum(equation: str, left: Array, right: Array) -> Array:
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)
