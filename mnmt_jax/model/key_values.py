"""What decoding remembers: keys and values fixed at prefill, and those that grow with each step."""

from __future__ import annotations

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


@flax.struct.dataclass
class KeyValue:
    """Keys and values of one layer, `[..., length, heads, head_dim]`."""

    keys: Float[Array, ...]
    values: Float[Array, ...]


Shared = tuple[Array, Array, Bool[Array, "batch k"]]


@flax.struct.dataclass
class LayerCache:
    """What one layer that holds the generated role remembers.

    Attributes:
        static: keys, values [batch, k, heads, head_dim] and validity [batch, k] of the static roles
            that the generated role sees, once per sentence; None where it sees none.
        memory: the same of the projected cross-attention memory, or None.
        growing_kv: [batch, beam, max_steps, heads, head_dim]; the only part with a beam.
    """

    static: Shared | None
    memory: Shared | None
    growing_kv: KeyValue


@flax.struct.dataclass
class Cache:
    """The state of a search's model.

    Attributes:
        layers: one `LayerCache` per layer that holds the generated role.
        index: int32 scalar, the number of steps taken.
        languages: as in `mnmt_jax.model.context.Context`, of one sentence per row.
    """

    layers: tuple[LayerCache, ...]
    index: Int[Array, ""]
    languages: dict[str, Array] = dataclasses.field(default_factory=dict)


def reorder(cache: Cache, beam_indices: Int[Array, "batch beam"]) -> Cache:
    """Gathers the growing part so that beam `w` continues hypothesis `beam_indices[:, w]`.

    A cache of more rows holds so many inputs of each sentence side by side, which share its
    hypotheses.
    """
    inputs = cache.layers[0].growing_kv.keys.shape[0] // beam_indices.shape[0]
    if inputs > 1:
        beam_indices = jnp.repeat(beam_indices, inputs, axis=0)
    indices = beam_indices[:, :, None, None, None]

    def gather(layer: LayerCache) -> LayerCache:
        growing = jax.tree.map(lambda a: jnp.take_along_axis(a, indices, axis=1), layer.growing_kv)
        return dataclasses.replace(layer, growing_kv=growing)

    return dataclasses.replace(cache, layers=tuple(gather(layer) for layer in cache.layers))
