"""Code shared by the TPU and GPU kernels of `mnmt_jax.model.attention.fused`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mnmt_jax.distributed.dropout_mask import keep_at_indices

HIDDEN = float(np.finfo(np.float32).min)  # logit of a hidden key, as in `core.masked_softmax`


@dataclasses.dataclass(frozen=True)
class KernelSettings:
    """Static parameters of a kernel call, the same for every row and head.

    Attributes:
        sees: a letter of `Sees` for each key role.
        heads: of the whole array, whatever the mesh.
        keep_prob: fraction of the weights that dropout keeps; 1 disables dropout.
    """

    sees: str
    heads: int
    keep_prob: float


def dropout_keep_mask(
    settings: KernelSettings, numbers: Any, offset: tuple[Any, Any, int], query: Array, key: Array
) -> Bool[Array, "_ _"] | None:
    """Return which weights dropout keeps, as `keep_by_hash` draws them; None keeps all.

    Args:
        settings: static parameters of the call.
        numbers: int32 [4]: the two words of the dropout key, then the indices of the first row and
            the first head in the whole array.
        offset: row and head relative to those, and the number of queries.
        query: positions of the queries, along one axis.
        key: positions of the keys among all visible keys, along the other axis.
    """
    if settings.keep_prob == 1:
        return None
    word_0, word_1, row, head = (numbers[i].astype(jnp.uint32) for i in range(4))
    row, head = row + offset[0].astype(jnp.uint32), head + offset[1].astype(jnp.uint32)
    query = (row * settings.heads + head) * offset[2] + query.astype(jnp.uint32)
    return keep_at_indices((word_0, word_1), query, key.astype(jnp.uint32), settings.keep_prob)


def apply_keep_mask(states: Array, keep: Array | None) -> Array:
    """Return the states with the dropped elements set to 0."""
    return states if keep is None else jnp.where(keep, states, 0.0)


def matmul(left: Array, right: Array, axes: tuple[int, int]) -> Float[Array, "_ _"]:
    """Multiply two matrices over one axis of each, in float32."""
    dimensions = ((axes[0],), (axes[1],)), ((), ())
    return jax.lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)
