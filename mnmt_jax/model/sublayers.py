"""Sublayer kinds of a plain transformer, and the plan of a model from its layout and methods.

A kind describes a sublayer as plain data. The network creates a module from it and
`mnmt_jax.model.flops` counts its operations. Methods may add kinds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from flax import linen as nn
from jaxtyping import Array

from mnmt_jax.config.sections import Model
from mnmt_jax.design.layout import Layout, Stage
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.design.plan import Kind, Layer, Lengths, Maps, Plan, StagePlan, Sublayer
from mnmt_jax.model import modules
from mnmt_jax.model.context import PositionInfo


@dataclasses.dataclass(frozen=True)
class SelfAttention(Kind):
    """Multi-head attention among the positions of a stage, by its visibility table."""

    attends = True
    component = "attention"
    other_norm = "self_attn_layer_norm"

    def module(self, config: Model) -> modules.SelfAttention:
        """Return the projections."""
        return modules.SelfAttention(config)

    def entries(self, names: Any, path: tuple[str, ...], theirs: str) -> Iterator[Any]:
        """Yield the parameter names of the projections in fairseq and Hugging Face."""
        return names.attention(path, f"{theirs}self_attn")

    def matmuls(self, config: Model, stage: Stage, roles: Sequence[str], lengths: Lengths) -> Maps:
        """Yield the projections, with keys and values of all roles that `roles` see."""
        key_roles = {key for role in roles for key in stage.key_roles(role)}
        query_positions, key_positions = (
            sum(lengths[role] for role in roles),
            sum(lengths[role] for role in key_roles),
        )
        return _attention_maps(config, query_positions, key_positions)

    def attention_pairs(self, stage: Stage, roles: Sequence[str], lengths: Lengths) -> float:
        """Return the number of query-key pairs."""
        visible_keys = {role: sum(lengths[key] for key in stage.key_roles(role)) for role in roles}
        return sum(lengths[role] * count for role, count in visible_keys.items())


@dataclasses.dataclass(frozen=True)
class CrossAttention(Kind):
    """Multi-head attention to the states of a role that has ended."""

    attends = True
    component = "memory_attention"
    other_norm = "encoder_attn_layer_norm"

    def module(self, config: Model) -> modules.CrossAttention:
        """Return the projections."""
        return modules.CrossAttention(config)

    def entries(self, names: Any, path: tuple[str, ...], theirs: str) -> Iterator[Any]:
        """Yield the parameter names of the projections in fairseq and Hugging Face."""
        return names.attention(path, f"{theirs}encoder_attn")

    def matmuls(self, config: Model, stage: Stage, roles: Sequence[str], lengths: Lengths) -> Maps:
        """Yield the projections of each memory edge."""
        for role, memory in _edges(stage, roles):
            yield from _attention_maps(config, lengths[role], lengths[memory])

    def attention_pairs(self, stage: Stage, roles: Sequence[str], lengths: Lengths) -> float:
        """Return the number of query-key pairs."""
        return sum(lengths[role] * lengths[memory] for role, memory in _edges(stage, roles))


@dataclasses.dataclass(frozen=True)
class FeedForward(Kind):
    """Two linear layers with an activation between them.

    Attributes:
        hidden: width between them.
        component: name under which `describe` counts the parameters.
        other: names of the two layers in fairseq and Hugging Face.
        activation: key of `mnmt_jax.model.modules.ACTIVATIONS`; empty for `Model.activation`.
    """

    hidden: int
    component: str = "mlp"
    other: tuple[str, str] = ("fc1", "fc2")
    activation: str = ""

    other_norm = "final_layer_norm"

    def module(self, config: Model) -> modules.FeedForward:
        """Return the two layers."""
        return self._layers(config)

    def entries(self, names: Any, path: tuple[str, ...], theirs: str) -> Iterator[Any]:
        """Yield the parameter names of the two layers in fairseq and Hugging Face."""
        first, second = self.other
        return names.mlp(path, (theirs + first, theirs + second), self.hidden)

    def change(self, module: Any, states: Array, place: PositionInfo) -> Array:
        """Return the change of states."""
        return module(states, place.deterministic)

    def matmuls(self, config: Model, stage: Stage, roles: Sequence[str], lengths: Lengths) -> Maps:
        """Yield the two layers."""
        del stage
        positions = sum(lengths[role] for role in roles)
        yield "wi", positions, (config.embed, self.hidden)
        yield "wo", positions, (self.hidden, config.embed)

    def _layers(self, config: Model, dropout: float = 0.0) -> modules.FeedForward:
        activation = self.activation or config.activation
        return modules.FeedForward(config, self.hidden, dropout, activation)


@dataclasses.dataclass(frozen=True)
class DroppingFeedForward(FeedForward):
    """A `FeedForward` with its own dropout instead of the residual stream's.

    Attributes:
        rate: of the dropout.
    """

    rate: float = 0.0

    has_dropout = True

    def module(self, config: Model) -> modules.FeedForward:
        """Return the two layers and the dropout."""
        return self._layers(config, self.rate)


@dataclasses.dataclass(frozen=True)
class StageNorm(Kind):
    """The norm at the end of a stage of pre-norm layers."""

    has_dropout = True  # so that no residual dropout is applied
    component = "norms"

    def module(self, config: Model) -> nn.LayerNorm:
        """Return the norm."""
        return modules.layer_norm(config)

    def entries(self, names: Any, path: tuple[str, ...], theirs: str) -> Iterator[Any]:
        """Yield the parameter names of the norm in fairseq and Hugging Face."""
        return names.norm(path, f"{theirs}layer_norm")

    def change(self, module: Any, states: Array, place: PositionInfo) -> Array:
        """Return the normalised states."""
        del place
        return module(states)


def plain_plan(config: Model, layout: Layout) -> Plan:
    """Return the plan of a transformer: self-attention, cross-attention if any, feed-forward."""
    stages = []
    for number, stage in enumerate(layout.stages):
        layer = [Sublayer("attention", SelfAttention(), config.norm)]
        if stage.memory:
            readers = tuple(reader for reader, _ in stage.memory)
            cross_attention = CrossAttention()
            layer.append(Sublayer("memory_attention", cross_attention, config.norm, roles=readers))
        layer.append(Sublayer("mlp", FeedForward(config.mlp), config.norm))
        norm = Sublayer(f"stage_{number}_norm", StageNorm(), residual=False)
        after = (norm,) if config.norm == "pre" else ()
        stages.append(StagePlan(stage, (), (tuple(layer),) * stage.layers, after))
    return Plan(layout, tuple(stages))


def make_plan(config: Model, layout: Layout) -> Plan:
    """Return the plan of the model that a configuration describes, with its methods' edits.

    Raises:
        UserError: if a method does not fit the layout, or if the edited plan is invalid.
    """
    plan = plain_plan(config, layout)
    for method in config.methods:
        plan = method.edit(plan, config)
    plan.check()
    return plan


def param_axes(config: Model) -> dict[str, tuple[str, ...]]:
    """Return the logical axes of the parameters that only this model's methods have."""
    return make_plan(config, get_layout(config.layout, config.stage_layers)).param_axes()


def cross_attending(layer: Layer) -> Sublayer | None:
    """Return a layer's cross-attention, or None."""
    return next((sublayer for sublayer in layer if isinstance(sublayer.kind, CrossAttention)), None)


def _attention_maps(config: Model, query_positions: float, key_positions: float) -> Maps:
    square = config.embed, config.embed
    for name, positions in (
        ("query", query_positions),
        ("key", key_positions),
        ("value", key_positions),
        ("out", query_positions),
    ):
        yield name, positions, square


def _edges(stage: Stage, roles: Sequence[str]) -> Iterator[tuple[str, str]]:
    for role in roles:
        memory = stage.memory_role(role)
        if memory:
            yield role, memory
