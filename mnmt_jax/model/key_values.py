"""What decoding remembers: keys and values fixed at prefill, and those that grow with each step.

The growing ones never move. Each step writes the keys and values of all hypotheses of a sentence
side by side, and a table of small numbers says which of them each hypothesis descends from: that
table is all that a change of places gathers. A hypothesis meets the keys of every hypothesis and a
mask hides those that are not its own past, so the products of a step are matrix products. Of
several hypotheses keys lie as `[..., head_dim, k]`, values as `[..., k, head_dim]`: each product
meets its second factor as it lies, and none is turned around in every step, which took a third of
its time on CPU.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.config.sections import Model
from mnmt_jax.model.attention.core import Readable, keys_axis


@flax.struct.dataclass
class KeyValue:
    """Keys and values of one layer: `[batch, length, heads, head_dim]` as they are projected."""

    keys: Float[Array, ...]
    values: Float[Array, ...]

    def by_head(self, beam: int) -> KeyValue:
        """Returns them as the steps of so many hypotheses read them.

        Returns:
            Values `[batch, heads, length, head_dim]`, and keys with `length` at their `keys_axis`.
        """
        return KeyValue(
            jnp.moveaxis(self.keys, 1, keys_axis(beam)), jnp.swapaxes(self.values, 1, 2)
        )


Kept = tuple[KeyValue, Sequence[Int[Array, "batch part"]]]


def readable(kept: Kept | None, beam: int) -> Readable | None:
    """Returns keys and values as all hypotheses read them, those of padding hidden.

    Args:
        kept: of spans that lie end to end, with the segments of each span; None stays None.
        beam: number of the hypotheses.
    """
    if kept is None:
        return None
    by_head = kept[0].by_head(beam)
    real = jnp.concatenate(kept[1], axis=1) != 0
    return Readable(by_head.keys, by_head.values, real[:, None])


@flax.struct.dataclass
class LayerCache:
    """What one layer that holds the generated role remembers.

    Attributes:
        static: keys and values of the static roles that the generated role sees, once per
            sentence; None where it sees none.
        memory: the same of the projected cross-attention memory, or None.
        growing_kv: by head, of length max_steps * beam, those of one step side by side.
    """

    static: Readable | None
    memory: Readable | None
    growing_kv: KeyValue


@flax.struct.dataclass
class Cache:
    """The state of a search's model.

    Attributes:
        layers: one `LayerCache` per layer that holds the generated role.
        index: int32, the number of steps taken: of all sentences, or [batch] of each.
        ancestry: int32 [batch, beam, max_steps], whose keys of each step are a hypothesis's own.
        languages: as in `mnmt_jax.model.context.Context`, of one sentence per row.
    """

    layers: tuple[LayerCache, ...]
    index: Int[Array, "*batch"]
    ancestry: Int[Array, "batch beam steps"]
    languages: dict[str, Array] = dataclasses.field(default_factory=dict)

    def past(self) -> Bool[Array, "batch beam k"]:
        """Returns which growing keys each hypothesis may read, that of the next step among them."""
        batch, beam, steps = self.ancestry.shape
        own = self.ancestry[..., None] == jnp.arange(beam)[None, None, None]
        taken = jnp.arange(steps)[None] <= self.index.reshape(-1, 1)
        return (own & taken[:, None, :, None]).reshape(batch, beam, steps * beam)


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
    written = jnp.arange(past.shape[2])[None] < cache.index.reshape(-1, 1)
    ancestry = jnp.where(written[:, None], past, new_ancestry(*past.shape))
    return dataclasses.replace(cache, ancestry=ancestry)


def write(growing: KeyValue, new: KeyValue, index: Int[Array, "*batch"]) -> KeyValue:
    """Writes the keys and values of a step.

    Args:
        growing: of a layer.
        new: [batch, beam, heads, head_dim].
        index: steps already taken, of all sentences or [batch] of each.
    """
    beam = new.keys.shape[1]
    start, own = index * beam, new.by_head(beam)

    def put(into: Array, update: Array, axis: int) -> Array:
        if not index.ndim:
            return jax.lax.dynamic_update_slice_in_dim(into, update, start, axis)
        each = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=axis - 1)
        return jax.vmap(each)(into, update, start)

    return KeyValue(
        put(growing.keys, own.keys, keys_axis(beam)), put(growing.values, own.values, 2)
    )


def new_growing(config: Model, rows: int, beam: int, steps: int) -> KeyValue:
    """Returns growing keys and values of zeros.

    Args:
        config: heads, their width and type.
        rows: of the batch.
        beam: hypotheses per sentence.
        steps: that may be taken.
    """
    shape = rows, steps * beam, config.heads, config.head_dim
    zeros = jnp.zeros(shape, jnp.dtype(config.dtype))
    return KeyValue(zeros, zeros).by_head(beam)
