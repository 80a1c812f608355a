"""What the kernels of `mnmt_jax.model.attention.fused` share, whatever the device."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mnmt_jax.distributed.dropout_mask import kept_at

HIDDEN = float(np.finfo(np.float32).min)  # as `core.masked_softmax` hides


@dataclasses.dataclass(frozen=True)
class Reading:
    """What is the same for every row and head.

    Attributes:
        sees: a letter of `Sees` for each key role.
        heads: of the whole array, whatever the mesh.
        share: of the weights that dropout leaves; 1 is without.
    """

    sees: str
    heads: int
    share: float


def kept(
    reading: Reading, numbers: Any, place: tuple[Any, Any, int], query: Array, key: Array
) -> Bool[Array, "_ _"] | None:
    """Returns which weights stay, as `keep_by_hash` draws them; None is all.

    Args:
        reading: as above.
        numbers: int32 [4]: the two words of dropout's key, then the place of the first row and the
            first head in the whole array.
        place: row and head after those, and the number of queries.
        query: places of queries, along one axis.
        key: places of keys among all that are read, along the other.
    """
    if reading.share == 1:
        return None
    first, last, row, head = (numbers[number].astype(jnp.uint32) for number in range(4))
    row, head = row + place[0].astype(jnp.uint32), head + place[1].astype(jnp.uint32)
    query = (row * reading.heads + head) * place[2] + query.astype(jnp.uint32)
    return kept_at((first, last), query, key.astype(jnp.uint32), reading.share)


def dropped(states: Array, left: Array | None) -> Array:
    """Returns the states that are left."""
    return states if left is None else jnp.where(left, states, 0.0)


def product(left: Array, right: Array, axes: tuple[int, int]) -> Float[Array, "_ _"]:
    """Multiplies two matrices over an axis of each, in float32."""
    numbers = ((axes[0],), (axes[1],)), ((), ())
    return jax.lax.dot_general(left, right, numbers, preferred_element_type=jnp.float32)
