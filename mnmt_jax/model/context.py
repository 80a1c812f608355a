"""What a sublayer may ask for besides the states it changes, in training and at every decoded step.

A `Context` goes with a batch through the layers of a stage. Its reader answers what keys and values
a query meets: all positions of the batch at once (`SpanReader`), or one new position of every beam
with what decoding remembers (`StepReader`). So a layer has one forward pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.design.layout import Stage
from mnmt_jax.model.attention import IMPLEMENTATIONS
from mnmt_jax.model.attention.core import Dropout, Readable, attend, attend_beams
from mnmt_jax.model.key_values import KeyValue, LayerCache, write

Spans = dict[str, Array]
Memory = tuple[Array, Array]  # states [batch, k, embed], mask [batch, 1, q, k]


class Projects(Protocol):
    """What has the projections of an attention to memory."""

    def project_keys_values(self, states: Array) -> KeyValue:
        """Returns keys and values of states."""


@flax.struct.dataclass
class SpanReader:
    """Reads from all positions of the batch.

    Attributes:
        masks: from `make_masks` of the attention implementation.
        memory: reader role -> the states that it attends to besides.
        stage: roles and visibility.
        implementation: key of `mnmt_jax.model.attention.IMPLEMENTATIONS`.
    """

    masks: Any
    memory: dict[str, Memory]
    stage: Stage = flax.struct.field(pytree_node=False)
    implementation: str = flax.struct.field(pytree_node=False)

    def attend(
        self, queries: Spans, keys_values: Mapping[str, KeyValue], dropout: Dropout
    ) -> tuple[Spans, Mapping[str, KeyValue]]:
        """Returns what the heads of each role read of the stage, and the keys and values."""
        heads = IMPLEMENTATIONS[self.implementation].attend(
            self.stage,
            self.masks,
            queries,
            {role: kv.keys for role, kv in keys_values.items()},
            {role: kv.values for role, kv in keys_values.items()},
            dropout=dropout,
        )
        return heads, keys_values

    def cross_attend(
        self, role: str, attention: Projects, queries: Array, dropout: Dropout
    ) -> tuple[Array, KeyValue]:
        """Returns what the heads of a role read of its memory, and its keys and values."""
        states, mask = self.memory[role]
        read = attention.project_keys_values(states)
        return attend(queries, read.keys, read.values, mask=mask, dropout=dropout), read


@flax.struct.dataclass
class StepReader:
    """Reads from what a layer remembers and from the new position of each beam.

    Attributes:
        layer: what the layer remembers.
        index: steps already taken, of all sentences or of each.
        past: which of the growing keys each hypothesis may read, with this step's.
    """

    layer: LayerCache
    index: Int[Array, "*batch"]
    past: Bool[Array, "batch beam k"]

    def attend(
        self, queries: Spans, keys_values: Mapping[str, KeyValue], dropout: Dropout
    ) -> tuple[Spans, KeyValue]:
        """Returns what the heads read, and the growing keys and values with this step written."""
        del dropout  # of training
        ((role, asked),) = queries.items()
        growing = write(self.layer.growing_kv, keys_values[role], self.index)
        own = Readable(growing.keys, growing.values, self.past)
        fixed = () if self.layer.static is None else (self.layer.static,)
        return {role: attend_beams(asked, (*fixed, own))}, growing

    def cross_attend(
        self, role: str, attention: Projects, queries: Array, dropout: Dropout
    ) -> tuple[Array, KeyValue]:
        """Returns what the heads read of the memory, and what was projected of it at prefill."""
        del role, attention, dropout
        memory = self.layer.memory
        assert memory is not None
        return attend_beams(queries, (memory,)), KeyValue(memory.keys, memory.values)


@flax.struct.dataclass
class Context:
    """What goes with a batch through the layers of a stage.

    Attributes:
        positions: role -> int32 [batch, length], from 0 in each segment.
        segment_ids: role -> int32 [batch, length]; 0 is padding.
        languages: those that the plan's kinds ask for, int32 [batch, segments], -1 where no segment
            is.
        tags: vectors of the tags of these languages as the source's table has them, float
            [batch, segments, embed], if any kind asks for them.
        reader: answers attention; None outside layers.
        deterministic: no dropout.
        joined: apply what works position by position to all spans laid end to end, which is less to
            trace; arrays are laid out and cut for it, and no role's work can be left out.
    """

    positions: Spans
    segment_ids: Spans
    languages: dict[str, Array]
    reader: Any = None
    tags: dict[str, Array] = flax.struct.field(default_factory=dict)
    deterministic: bool = flax.struct.field(pytree_node=False, default=True)
    joined: bool = flax.struct.field(pytree_node=False, default=False)

    def map(self, function: Callable[..., Any], *spans: Mapping[str, Any]) -> dict[str, Any]:
        """Applies a function to the arrays of each role; see `map_spans`."""
        return map_spans(function, self.joined, *spans)

    def map_places(self, function: Callable[..., Any], spans: Spans) -> Spans:
        """Applies a function of states and their `PositionInfo` to the states of each role."""
        if not self.joined:
            return {role: function(own, PositionInfo(self, (role,))) for role, own in spans.items()}
        place = PositionInfo(self, tuple(spans))
        return map_spans(lambda states: function(states, place), True, spans)


@dataclasses.dataclass(frozen=True, eq=False)
class PositionInfo:
    """Where states stand. Every array is made when it is asked for, and costs nothing otherwise.

    Attributes:
        context: of the stage.
        roles: whose states lie end to end.
    """

    context: Context
    roles: tuple[str, ...]

    @property
    def deterministic(self) -> bool:
        """No dropout."""
        return self.context.deterministic

    @property
    def positions(self) -> Int[Array, "batch length"]:
        """Positions, from 0 in each segment."""
        return jnp.concatenate([self.context.positions[role] for role in self.roles], axis=1)

    @property
    def segment_ids(self) -> Int[Array, "batch length"]:
        """Segment of each position; 0 is padding."""
        return jnp.concatenate([self.context.segment_ids[role] for role in self.roles], axis=1)

    def language(self, name: str) -> Int[Array, "batch length"]:
        """Returns the language of the sentence pair that each position belongs to.

        Args:
            name: `source_lang` or `target_lang`.

        Returns:
            Indices into the vocabulary's languages; padding has any.

        Raises:
            ValueError: if the batch does not say, or the kind does not name it.
        """
        if name not in self.context.languages:
            raise ValueError(
                f"a layer asks for '{name}': name it in the kind's `languages` and in the batch"
            )
        return self._of_pairs(self.context.languages[name][..., None])[..., 0]

    def tag(self, name: str) -> Float[Array, "batch length embed"]:
        """Returns the vector of that language's tag, scaled as embedded tokens are.

        Args:
            name: as in `language`; the kind names it in `languages` and has `tags`.
        """
        return self._of_pairs(self.context.tags[name])

    def _of_pairs(self, values: Array) -> Array:
        """Returns of [batch, segments, width] what belongs to each position's pair."""
        segments = jnp.maximum(self.segment_ids - 1, 0)[..., None]
        return jnp.take_along_axis(values, segments, axis=1)


def map_spans(
    function: Callable[..., Any], joined: bool, *spans: Mapping[str, Any]
) -> dict[str, Any]:
    """Applies what works position by position to each role's arrays, or once to all of them.

    Args:
        function: takes one array [batch, length, ...] per item of `spans`; returns a tree of such.
        joined: lay the arrays of all roles end to end before, and cut the results after.
        spans: role -> array, the same roles in each.
    """
    roles = spans[0]
    if not joined:
        return {role: function(*(each[role] for each in spans)) for role in roles}
    ends = np.cumsum([states.shape[1] for states in roles.values()])[:-1]
    result = function(*(jnp.concatenate([each[r] for r in roles], axis=1) for each in spans))
    parts = [jnp.split(leaf, ends, axis=1) for leaf in jax.tree.leaves(result)]
    structure = jax.tree.structure(result)
    return {r: jax.tree.unflatten(structure, own) for r, *own in zip(roles, *parts, strict=True)}
