"""Batches in a single array, which reach a device by one transfer instead of one per array.

Each argument of a compiled program takes the host some microseconds.
"""

from __future__ import annotations

import math

import flax.struct
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from mnmt_jax.data.converter import HostBatch
from mnmt_jax.decoding.search_arrays import AnyArray


@flax.struct.dataclass
class PackedBatch:
    """Arrays of a batch, one after the other.

    Attributes:
        values: their values, int32.
        shapes: name and shape of each array.
    """

    values: Int[AnyArray, " values"]
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = flax.struct.field(pytree_node=False)


AnyBatch = dict[str, Array] | PackedBatch


def pack_batch(batch: HostBatch) -> PackedBatch:
    """Pack the int32 arrays of a batch."""
    values = np.concatenate([array.reshape(-1) for array in batch.values()])
    assert values.dtype == np.int32
    return PackedBatch(values, tuple((name, array.shape) for name, array in batch.items()))


def unpack_batch(batch: AnyBatch) -> dict[str, Array]:
    """Return the arrays of a batch by their names, in a compiled program."""
    if not isinstance(batch, PackedBatch):
        return batch
    arrays, end = dict[str, Array](), 0
    for name, shape in batch.shapes:
        start, end = end, end + math.prod(shape)
        arrays[name] = jnp.reshape(batch.values[start:end], shape)
    return arrays
