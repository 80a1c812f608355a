"""What decoding remembers: keys and values fixed at prefill, and those that grow with each step.

The growing ones never move. Each step writes the keys and values of all hypotheses of a sentence
side by side, and a table of small numbers says which of them each hypothesis descends from: that
table is all that a change of places gathers. A hypothesis meets the keys of every hypothesis and a
mask hides those that are not its own past, so the products of a step are matrix products.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.attention.core import Readable


@flax.struct.dataclass
class KeyValue:
    """Keys and values of one layer: `[batch, length, heads, head_dim]` as they are projected."""

    keys: Float[Array, ...]
    values: Float[Array, ...]

    def by_head(self) -> KeyValue:
        """Returns them as `[batch, heads, length, head_dim]`, as the steps of decoding read."""
        return jax.tree.map(lambda array: jnp.swapaxes(array, 1, 2), self)

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
        growing_kv: [batch, heads, max_steps * beam, head_dim], those of one step side by side.
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

    def put(kept: Array, one: Array) -> Array:
        start = index * one.shape[2]
        return jax.lax.dynamic_update_slice_in_dim(kept, one, start, axis=2)

    return jax.tree.map(put, growing, new.by_head())
