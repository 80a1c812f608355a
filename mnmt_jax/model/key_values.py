"""What decoding remembers: keys and values fixed at prefill, and those that grow with each step.

The growing ones never move. Each step writes the keys and values of all hypotheses of a sentence
side by side, and a table of small numbers says which of them each hypothesis descends from: that
table is all that a change of places gathers. A hypothesis meets the keys of every hypothesis and a
mask hides those that are not its own past, so the products of a step are matrix products. Keys lie
as `[..., head_dim, k]`, values as `[..., k, head_dim]`: each product meets its second factor as it
lies, and none is turned around in every step, which took a third of its time on CPU.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.attention.core import Readable
from mnmt_jax.config.sections import Model


@flax.struct.dataclass
class KeyValue:
    """Keys and values of one layer: `[batch, length, heads, head_dim]` as they are projected."""

    keys: Float[Array, ...]
    values: Float[Array, ...]

    def by_head(self) -> KeyValue:
        """Returns keys `[batch, heads, head_dim, length]` and values `[batch, heads, length, ...]`.

        So the steps of decoding read them.
        """
        return KeyValue(jnp.moveaxis(self.keys, 1, 3), jnp.swapaxes(self.values, 1, 2))

    def readable(self, segment_ids: Sequence[Int[Array, "batch part"]]) -> Readable:
        """Returns them as all hypotheses read them, those of padding hidden.

        Args:
            segment_ids: of spans that lie end to end.
        """
        kept = self.by_head()
        real = jnp.concatenate(segment_ids, axis=1) != 0
        return Readable(kept.keys, kept.values, real[:, None])


@flax.struct.dataclass
class LayerCache:
    """What one layer that holds the generated role remembers.

    Attributes:
        static: keys and values of the static roles that the generated role sees, once per
            sentence; None where it sees none.
        memory: the same of the projected cross-attention memory, or None.
        growing_kv: keys [batch, heads, head_dim, max_steps * beam], those of one step side by side,
            and values [batch, heads, max_steps * beam, head_dim].
    """

    static: Readable | None
    memory: Readable | None
    growing_kv: KeyValue


@flax.struct.dataclass
class Cache:
    """The state of a search's model.

    Attributes:
        layers: one `LayerCache` per layer that holds the generated role.
        index: int32 scalar, the number of steps taken.
        ancestry: int32 [batch, beam, max_steps], whose keys of each step are a hypothesis's own.
        languages: as in `mnmt_jax.model.context.Context`, of one sentence per row.
    """

    layers: tuple[LayerCache, ...]
    index: Int[Array, ""]
    ancestry: Int[Array, "batch beam steps"]
    languages: dict[str, Array] = dataclasses.field(default_factory=dict)

    def past(self) -> Bool[Array, "batch beam k"]:
        """Returns which growing keys each hypothesis may read, that of the next step among them."""
        batch, beam, steps = self.ancestry.shape
        own = self.ancestry[..., None] == jnp.arange(beam)[None, None, None]
        taken = (jnp.arange(steps) <= self.index)[None, None, :, None]
        return (own & taken).reshape(batch, beam, steps * beam)


def new_ancestry(batch: int, beam: int, steps: int) -> Int[Array, "batch beam steps"]:
    """Returns that each hypothesis descends from itself."""
    return jnp.broadcast_to(jnp.arange(beam)[None, :, None], (batch, beam, steps))


def reorder(cache: Cache, beam_indices: Int[Array, "batch beam"]) -> Cache:
    """Lets beam `w` continue hypothesis `beam_indices[:, w]`; keys and values stay where they are.

    A cache of more rows holds so many inputs of each sentence side by side, which share its
    hypotheses.
    """
    inputs = cache.ancestry.shape[0] // beam_indices.shape[0]
    if inputs > 1:
        beam_indices = jnp.repeat(beam_indices, inputs, axis=0)
    past = jnp.take_along_axis(cache.ancestry, beam_indices[:, :, None], axis=1)
    # What is not yet written will be each hypothesis's own.
    written = (jnp.arange(past.shape[2]) < cache.index)[None, None]
    ancestry = jnp.where(written, past, new_ancestry(*past.shape))
    return dataclasses.replace(cache, ancestry=ancestry)


def write(growing: KeyValue, new: KeyValue, index: Int[Array, ""]) -> KeyValue:
    """Writes the keys and values of a step.

    Args:
        growing: of a layer.
        new: [batch, beam, heads, head_dim].
        index: steps already taken.
    """
    start, own = index * new.keys.shape[1], new.by_head()
    put = jax.lax.dynamic_update_slice_in_dim
    return KeyValue(
        put(growing.keys, own.keys, start, axis=3), put(growing.values, own.values, start, axis=2)
    )


def new_growing(config: Model, rows: int, length: int) -> KeyValue:
    """Returns growing keys and values of zeros.

    Args:
        config: heads, their width and type.
        rows: of the batch.
        length: steps times hypotheses.
    """
    outer, dtype = (rows, config.heads), jnp.dtype(config.dtype)
    keys = jnp.zeros((*outer, config.head_dim, length), dtype)
    return KeyValue(keys, jnp.zeros((*outer, length, config.head_dim), dtype))


def enlarge(cache: Cache, steps: int, *, shared: int) -> Cache:
    """Appends empty positions; the old arrays are freed one by one as the new ones are made.

    Args:
        cache: of some steps.
        steps: that it is to hold.
        shared: to a multiple of which static keys and memory are filled up with hidden ones.
    """
    rows, beam, old = cache.ancestry.shape

    def longer(array: Array, axis: int, length: int) -> Array:
        if length == array.shape[axis]:
            return array
        padded = _pad(array, axis, length - array.shape[axis])
        array.delete()
        return padded

    def of_layer(layer: LayerCache) -> LayerCache:
        kept = layer.growing_kv
        growing = KeyValue(longer(kept.keys, 3, steps * beam), longer(kept.values, 2, steps * beam))
        return LayerCache(filled_up(layer.static), filled_up(layer.memory), growing)

    def filled_up(read: Readable | None) -> Readable | None:
        if read is None:
            return None
        length = -(-read.keys.shape[3] // shared) * shared
        keys, values = longer(read.keys, 3, length), longer(read.values, 2, length)
        return Readable(keys, values, _pad(read.mask, 2, length - read.mask.shape[2]))

    ancestry = new_ancestry(rows, beam, steps).at[:, :, :old].set(cache.ancestry)
    layers = tuple(map(of_layer, cache.layers))
    return dataclasses.replace(cache, layers=layers, ancestry=ancestry)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _pad(array: Array, axis: int, more: int) -> Array:
    return jnp.pad(array, [(0, more if each == axis else 0) for each in range(array.ndim)])
