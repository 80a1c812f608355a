"""Decoding caches: static keys and values from prefill, and those that grow with each step.

The growing arrays are never reordered. Each step writes the keys and values of all hypotheses of a
sentence side by side, and a small table (`Cache.ancestry`) records the ancestors of each
hypothesis. Reordering beams gathers only this table. A hypothesis is multiplied with the keys of
every hypothesis, and a mask hides those outside its own past, so the products of a step are matrix
products. With several hypotheses keys have the layout `[..., head_dim, k]` and values `[..., k,
head_dim]`: no product transposes its second factor, which took a third of a step's time on CPU.
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
from mnmt_jax.model.attention.core import StepKeyValues, keys_axis


@flax.struct.dataclass
class KeyValue:
    """Keys and values of one layer: `[batch, length, heads, head_dim]` as they are projected."""

    keys: Float[Array, ...]
    values: Float[Array, ...]

    def by_head(self, beam: int) -> KeyValue:
        """Return them in the layout of decoding steps with `beam` hypotheses.

        Returns:
            Values `[batch, heads, length, head_dim]`, and keys with `length` at their `keys_axis`.
        """
        return KeyValue(
            jnp.moveaxis(self.keys, 1, keys_axis(beam)), jnp.swapaxes(self.values, 1, 2)
        )


SpanKeyValue = tuple[KeyValue, Sequence[Int[Array, "batch part"]]]


def step_key_values(keys_values: SpanKeyValue | None, beam: int) -> StepKeyValues | None:
    """Return keys and values in the layout of decoding steps, with padding masked.

    Args:
        keys_values: of concatenated spans, with the segment ids of each span; None returns None.
        beam: number of hypotheses.
    """
    if keys_values is None:
        return None
    by_head = keys_values[0].by_head(beam)
    is_token = jnp.concatenate(keys_values[1], axis=1) != 0
    return StepKeyValues(by_head.keys, by_head.values, is_token[:, None])


@flax.struct.dataclass
class LayerCache:
    """Cache of one layer that holds the generated role.

    Attributes:
        static: keys and values of the static roles that the generated role sees, once per
            sentence; None if it sees none.
        memory: the same for the projected cross-attention memory, or None.
        growing_kv: by head, of length max_steps * beam, with those of one step side by side.
    """

    static: StepKeyValues | None
    memory: StepKeyValues | None
    growing_kv: KeyValue


@flax.struct.dataclass
class Cache:
    """The decoding state of a model.

    Attributes:
        layers: one `LayerCache` per layer that holds the generated role.
        index: int32, the number of steps taken: a scalar for all sentences, or [batch].
        ancestry: int32 [batch, beam, max_steps], the beam whose keys belong to a hypothesis at each
            step.
        languages: as in `mnmt_jax.model.context.Context`, one sentence per row.
    """

    layers: tuple[LayerCache, ...]
    index: Int[Array, "*batch"]
    ancestry: Int[Array, "batch beam steps"]
    languages: dict[str, Array] = dataclasses.field(default_factory=dict)

    def past(self) -> Bool[Array, "batch beam k"]:
        """Return which growing keys each hypothesis may read, including those of the next step."""
        batch, beam, steps = self.ancestry.shape
        is_ancestor = self.ancestry[..., None] == jnp.arange(beam)[None, None, None]
        is_written = jnp.arange(steps)[None] <= self.index.reshape(-1, 1)
        return (is_ancestor & is_written[:, None, :, None]).reshape(batch, beam, steps * beam)


def new_ancestry(batch: int, beam: int, steps: int) -> Int[Array, "batch beam steps"]:
    """Return the ancestry in which each hypothesis descends from itself."""
    return jnp.broadcast_to(jnp.arange(beam)[None, :, None], (batch, beam, steps))


def reorder(cache: Cache, beam_indices: Int[Array, "batch beam"]) -> Cache:
    """Let beam `w` continue hypothesis `beam_indices[:, w]` without moving keys and values.

    If the cache has more rows than `beam_indices`, it holds several inputs of each sentence side by
    side, which share its hypotheses.
    """
    inputs = cache.ancestry.shape[0] // beam_indices.shape[0]
    if inputs > 1:
        beam_indices = jnp.repeat(beam_indices, inputs, axis=0)
    past = jnp.take_along_axis(cache.ancestry, beam_indices[:, :, None], axis=1)
    # At steps that are not yet written each hypothesis is its own ancestor.
    written = jnp.arange(past.shape[2])[None] < cache.index.reshape(-1, 1)
    ancestry = jnp.where(written[:, None], past, new_ancestry(*past.shape))
    return dataclasses.replace(cache, ancestry=ancestry)


def write(growing: KeyValue, new: KeyValue, index: Int[Array, "*batch"]) -> KeyValue:
    """Write the keys and values of a step.

    Args:
        growing: of a layer.
        new: [batch, beam, heads, head_dim].
        index: steps already taken: a scalar for all sentences, or [batch].
    """
    beam = new.keys.shape[1]
    start, update_by_head = index * beam, new.by_head(beam)

    def write_at(cached: Array, update: Array, axis: int) -> Array:
        if not index.ndim:
            return jax.lax.dynamic_update_slice_in_dim(cached, update, start, axis)
        update_row = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=axis - 1)
        return jax.vmap(update_row)(cached, update, start)

    return KeyValue(
        write_at(growing.keys, update_by_head.keys, keys_axis(beam)),
        write_at(growing.values, update_by_head.values, 2),
    )


def new_growing(config: Model, rows: int, beam: int, steps: int) -> KeyValue:
    """Return growing keys and values of zeros.

    Args:
        config: number of heads, their width and dtype.
        rows: of the batch.
        beam: hypotheses per sentence.
        steps: maximum number of steps.
    """
    shape = rows, steps * beam, config.heads, config.head_dim
    zeros = jnp.zeros(shape, jnp.dtype(config.dtype))
    return KeyValue(zeros, zeros).by_head(beam)
