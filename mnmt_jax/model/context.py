"""Inputs of sublayers besides the states: positions, segments, languages, and attention.

A `Context` is passed with a batch through the layers of a stage. Its attention is
over all positions of the batch at once (`SpanAttention`), or from one new position of every beam to
the decoding cache (`StepAttention`). A layer therefore has a single forward pass.
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
from mnmt_jax.errors import UserError
from mnmt_jax.model.attention import IMPLEMENTATIONS
from mnmt_jax.model.attention.core import Dropout, StepKeyValues, attend, attend_beams
from mnmt_jax.model.key_values import KeyValue, LayerCache, write

Spans = dict[str, Array]
Memory = tuple[Array, Array]  # states [batch, k, embed], mask [batch, 1, q, k]


class KeyValueProjection(Protocol):
    """A module with the key and value projections of cross-attention."""

    def project_keys_values(self, states: Array) -> KeyValue:
        """Return keys and values of states."""


@flax.struct.dataclass
class SpanAttention:
    """Attention over all positions of the batch.

    Attributes:
        masks: from `make_masks` of the attention implementation.
        memory: role -> states for cross-attention, and their mask.
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
        """Return the attention output of each role, per head, and the keys and values."""
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
        self, role: str, attention: KeyValueProjection, queries: Array, dropout: Dropout
    ) -> tuple[Array, KeyValue]:
        """Return a role's cross-attention output, per head, and the memory's keys and values."""
        states, mask = self.memory[role]
        keys_values = attention.project_keys_values(states)
        return attend(
            queries, keys_values.keys, keys_values.values, mask=mask, dropout=dropout
        ), keys_values


@flax.struct.dataclass
class StepAttention:
    """Attention from the new position of each beam to a layer's cache.

    Attributes:
        layer: cache of the layer.
        index: steps already taken: a scalar for all sentences, or [batch].
        past: which of the growing keys each hypothesis may read, including this step's.
    """

    layer: LayerCache
    index: Int[Array, "*batch"]
    past: Bool[Array, "batch beam k"]

    def attend(
        self, queries: Spans, keys_values: Mapping[str, KeyValue], dropout: Dropout
    ) -> tuple[Spans, KeyValue]:
        """Return the attention output by head, and the growing keys and values after the step."""
        del dropout  # training only
        ((role, role_queries),) = queries.items()
        growing = write(self.layer.growing_kv, keys_values[role], self.index)
        past_readable = StepKeyValues(growing.keys, growing.values, self.past)
        static = () if self.layer.static is None else (self.layer.static,)
        return {role: attend_beams(role_queries, (*static, past_readable))}, growing

    def cross_attend(
        self, role: str, attention: KeyValueProjection, queries: Array, dropout: Dropout
    ) -> tuple[Array, KeyValue]:
        """Return the cross-attention output by head, and the memory's keys and values."""
        del role, attention, dropout
        memory = self.layer.memory
        assert memory is not None
        return attend_beams(queries, (memory,)), KeyValue(memory.keys, memory.values)


@flax.struct.dataclass
class Context:
    """Inputs that are passed with a batch through the layers of a stage.

    Attributes:
        positions: role -> int32 [batch, length], from 0 in each segment.
        segment_ids: role -> int32 [batch, length]; 0 is padding.
        languages: those that the plan's kinds use, int32 [batch, segments], -1 where there is no
            segment.
        tags: embedding vectors of the tags of these languages, from the source's table, float
            [batch, segments, embed], if any kind uses them.
        layers: states of each role after each earlier layer, before the first layer of a stage;
            empty elsewhere and in decoding steps.
        attention: `SpanAttention` or `StepAttention`; None outside layers.
        deterministic: no dropout.
        joined: apply positionwise functions to the concatenation of all spans. This is faster to
            trace, but copies arrays, and the compiler cannot remove the work of single roles.
    """

    positions: Spans
    segment_ids: Spans
    languages: dict[str, Array]
    attention: Any = None
    tags: dict[str, Array] = flax.struct.field(default_factory=dict)
    layers: tuple[Spans, ...] = ()
    deterministic: bool = flax.struct.field(pytree_node=False, default=True)
    joined: bool = flax.struct.field(pytree_node=False, default=False)

    def map(self, function: Callable[..., Any], *spans: Mapping[str, Any]) -> dict[str, Any]:
        """Apply a function to the arrays of each role; see `map_spans`."""
        return map_spans(function, self.joined, *spans)

    def map_states(self, function: Callable[..., Any], spans: Spans) -> Spans:
        """Apply a function of states and their `PositionInfo` to the states of each role."""
        if not self.joined:
            return {
                role: function(states, PositionInfo(self, (role,)))
                for role, states in spans.items()
            }
        info = PositionInfo(self, tuple(spans))
        return map_spans(lambda states: function(states, info), True, spans)


@dataclasses.dataclass(frozen=True, eq=False)
class PositionInfo:
    """Positions, segments and languages of states. Arrays are computed on access only.

    Attributes:
        context: of the stage.
        roles: whose states are concatenated.
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
        """Return the language of the sentence pair of each position.

        Args:
            name: `source_lang` or `target_lang`.

        Returns:
            Indices into the vocabulary's languages; arbitrary at padding.

        Raises:
            UserError: if the batch does not have it, or the kind does not name it.
        """
        if name not in self.context.languages:
            raise UserError(
                f"a layer asks for '{name}': name it in `languages` of its Kind, and in a test "
                "also in the batch"
            )
        return self._of_pairs(self.context.languages[name][..., None])[..., 0]

    def tag(self, name: str) -> Float[Array, "batch length embed"]:
        """Return the vector of that language's tag, scaled like embedded tokens.

        Args:
            name: as in `language`; the kind names it in `languages` and has `tags`.

        Raises:
            UserError: if it does not.
        """
        if name not in self.context.tags:
            raise UserError(
                f"a layer asks for the tag of '{name}': name it in `languages` of its Kind, and "
                "set `tags` to the number of the vocabulary's languages"
            )
        return self._of_pairs(self.context.tags[name])

    def states_after(self, layer: int) -> Float[Array, "batch length embed"]:
        """Return the states after an earlier layer, for sublayers before a stage.

        Args:
            layer: number of the layer, counted from 1 across stages; see `Context.layers`.

        Raises:
            UserError: if the layer is not an earlier one, or the sublayer not before a stage.
        """
        if not self.context.layers or layer > len(self.context.layers):
            raise UserError(
                f"a layer asks for the states after layer {layer}: only sublayers in "
                "`StagePlan.before` can have them, and of earlier layers"
            )
        spans = self.context.layers[layer - 1]
        return jnp.concatenate([spans[role] for role in self.roles], axis=1)

    def _of_pairs(self, values: Array) -> Array:
        """Return the rows of [batch, segments, width] that belong to the pair of each position."""
        segments = jnp.maximum(self.segment_ids - 1, 0)[..., None]
        return jnp.take_along_axis(values, segments, axis=1)


def map_spans(
    function: Callable[..., Any], joined: bool, *spans: Mapping[str, Any]
) -> dict[str, Any]:
    """Apply a positionwise function to each role's arrays, or once to their concatenation.

    Args:
        function: takes one array [batch, length, ...] per item of `spans`; returns a tree of such
            arrays.
        joined: concatenate the arrays of all roles before, and split the results after.
        spans: role -> array, with the same roles in every item.
    """
    roles = spans[0]
    if not joined:
        return {role: function(*(arrays[role] for arrays in spans)) for role in roles}
    ends = np.cumsum([states.shape[1] for states in roles.values()])[:-1]
    result = function(*(jnp.concatenate([arrays[r] for r in roles], axis=1) for arrays in spans))
    split_leaves = [jnp.split(leaf, ends, axis=1) for leaf in jax.tree.leaves(result)]
    structure = jax.tree.structure(result)
    return {
        r: jax.tree.unflatten(structure, leaves)
        for r, *leaves in zip(roles, *split_leaves, strict=True)
    }
