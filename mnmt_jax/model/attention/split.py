"""Split attention: the queries of each role attend only to the keys that the role may see.

Spans stay separate arrays through the whole stack, so the compiler removes the work that no output
needs (for registers: the source's queries in the last two layers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from mnmt_jax.design.layout import Stage
from mnmt_jax.model.attention.core import Dropout, Spans, attend_by_role, pair_mask
from mnmt_jax.model.attention.core import attend as attend_masked


def make_masks(stage: Stage, segment_ids: Spans) -> dict[str, Array]:
    """Return role -> bool [batch, 1, query_length, length of its visible keys], once per stage."""
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
    """Attend role by role, each over the keys that its row of the visibility table names.

    Arguments and result as in `dense.attend`, with `masks` from this module's `make_masks`.
    """

    def attend_one(role: str, *keys_values: Any) -> Array:
        return attend_role(masks[role], *keys_values, dropout=dropout)

    return attend_by_role(stage, attend_one, queries, keys, values)


def attend_role(
    mask: Bool[Array, "batch 1 q k"],
    queries: Float[Array, "batch q heads head_dim"],
    keys: Sequence[Float[Array, "batch _ heads head_dim"]],
    values: Sequence[Float[Array, "batch _ heads head_dim"]],
    *,
    dropout: Dropout,
) -> Float[Array, "batch q heads head_dim"]:
    """Attend from one role.

    Args:
        mask: for the queries of the role and all keys that they attend to.
        queries: scaled.
        keys: one array per visible role.
        values: as `keys`.
        dropout: as in `core.attend`.
    """
    joined = (jnp.concatenate(spans, axis=1) for spans in (keys, values))
    return attend_masked(queries, *joined, mask=mask, dropout=dropout)
