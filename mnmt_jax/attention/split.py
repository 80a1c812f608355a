"""Attention in which each role's queries meet only the keys that role may see.

Spans stay separate arrays through the whole stack, so the compiler removes the work that no output
needs (for registers: the source's queries in the last two layers) by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from mnmt_jax.attention.core import Dropout, pair_mask
from mnmt_jax.attention.core import attend as attend_masked
from mnmt_jax.design.layout import Stage

Spans = Mapping[str, Array]


def make_masks(stage: Stage, segment_ids: Spans) -> dict[str, Array]:
    """Returns role -> bool [batch, 1, query_length, length of that role's keys], once per stage."""
    masks = {}
    for query in stage.roles:
        cells = [
            pair_mask(stage.visibility(query, key), segment_ids[query], segment_ids[key])
            for key in stage.key_roles(query)
        ]
        masks[query] = jnp.concatenate(cells, axis=3)
    return masks


def attend(
    stage: Stage,
    masks: Mapping[str, Array],
    queries: Spans,
    keys: Spans,
    values: Spans,
    *,
    dropout: Dropout,
) -> dict[str, Array]:
    """Attends role by role, each over the keys its row of the table names.

    Args and result as in `dense.attend`, `masks` from this module's `make_masks`.
    """
    outputs = {}
    for query in stage.roles:
        read = [(keys[role], values[role]) for role in stage.key_roles(query)]
        outputs[query] = attend_role(masks[query], queries[query], read, dropout=dropout)
    return outputs


def attend_role(
    mask: Bool[Array, "batch 1 q k"],
    queries: Float[Array, "batch q heads head_dim"],
    read: Sequence[Sequence[Array]],
    *,
    dropout: Dropout,
) -> Float[Array, "batch q heads head_dim"]:
    """Attends from one role.

    Args:
        mask: of its queries and all keys that are read.
        queries: scaled.
        read: of each role that is read, first its keys and values.
        dropout: as in `core.attend`.
    """
    keys, values = (jnp.concatenate([own[place] for own in read], axis=1) for place in range(2))
    return attend_masked(queries, keys, values, mask=mask, dropout=dropout)
