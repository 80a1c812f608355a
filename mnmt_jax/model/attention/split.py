"""Attention in which each role's queries meet only the keys that role may see.

Spans stay separate arrays through the whole stack, so the compiler removes the work that no output
needs (for registers: the source's queries in the last two layers) by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from mnmt_jax.design.layout import Stage
from mnmt_jax.model.attention.core import Dropout, Spans, by_role, pair_mask
from mnmt_jax.model.attention.core import attend as attend_masked


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

    def own(role: str, *read: Any) -> Array:
        return attend_role(masks[role], *read, dropout=dropout)

    return by_role(stage, own, queries, keys, values)


def attend_role(
    mask: Bool[Array, "batch 1 q k"],
    queries: Float[Array, "batch q heads head_dim"],
    keys: Sequence[Float[Array, "batch _ heads head_dim"]],
    values: Sequence[Float[Array, "batch _ heads head_dim"]],
    *,
    dropout: Dropout,
) -> Float[Array, "batch q heads head_dim"]:
    """Attends from one role.

    Args:
        mask: of its queries and all keys that are read.
        queries: scaled.
        keys: of each role that is read.
        values: as `keys`.
        dropout: as in `core.attend`.
    """
    joined = (jnp.concatenate(own, axis=1) for own in (keys, values))
    return attend_masked(queries, *joined, mask=mask, dropout=dropout)
