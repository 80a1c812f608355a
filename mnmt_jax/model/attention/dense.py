"""Dense attention with one full mask over all spans: the slow reference implementation."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from mnmt_jax.design.layout import Stage
from mnmt_jax.model.attention.core import Dropout, Spans, pair_mask
from mnmt_jax.model.attention.core import attend as attend_masked


def dense_mask(stage: Stage, segment_ids: Spans) -> Bool[Array, "batch 1 q k"]:
    """Build the mask over the concatenated spans of a stage.

    For the register layout with two source tokens, one register and three target tokens, of which
    the last one is padding (as drawn in `tests/golden/masks/register.txt`):

              S S R T T T
        S     1 1 . . . .
        S     1 1 . . . .
        R     1 1 1 . . .
        T     . . 1 1 . .
        T     . . 1 1 1 .

    Args:
        stage: the visibility table.
        segment_ids: role -> int32 [batch, length]; 0 marks padding.
    """
    rows = []
    for query in stage.roles:
        cells = [
            pair_mask(stage.visibility(query, key), segment_ids[query], segment_ids[key])
            for key in stage.roles
        ]
        rows.append(jnp.concatenate(cells, axis=3))
    return jnp.concatenate(rows, axis=2)


def make_masks(stage: Stage, segment_ids: Spans) -> Bool[Array, "batch 1 q k"]:
    """Return the mask that `attend` takes, once per stage."""
    return dense_mask(stage, segment_ids)


def attend(
    stage: Stage,
    masks: Bool[Array, "batch 1 q k"],
    queries: Spans,
    keys: Spans,
    values: Spans,
    *,
    dropout: Dropout,
) -> dict[str, Array]:
    """Attend over the concatenation of all spans.

    Args:
        stage: the visibility table.
        masks: from `make_masks`.
        queries: role -> [batch, length, heads, head_dim], scaled.
        keys: role -> [batch, length, heads, head_dim].
        values: as `keys`.
        dropout: applied to the attention weights.

    Returns:
        role -> [batch, length, heads, head_dim].
    """
    joined = [
        jnp.concatenate([spans[r] for r in stage.roles], axis=1)
        for spans in (queries, keys, values)
    ]
    outputs = attend_masked(*joined, mask=masks, dropout=dropout)
    ends = np.cumsum([queries[role].shape[1] for role in stage.roles])[:-1]
    return dict(zip(stage.roles, jnp.split(outputs, ends, axis=1), strict=True))
