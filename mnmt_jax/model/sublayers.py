"""Sublayers of a plain transformer, and the plan of a model from its layout and methods.

A sublayer is a Flax module that is also a `Kind`: the plan holds it unbound, as plain data with its
settings; the network clones it under the sublayer's name, and `mnmt_jax.model.flops` counts its
operations. Methods may add kinds.

Structure, biases and initialisation follow fairseq (MITRE spec 4.2 to 4.5: q, k, v Xavier-uniform
with gain 1/sqrt(2), output projection Xavier-uniform, everything else PyTorch's Linear default).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from mnmt_jax.config.sections import Model
from mnmt_jax.design.layout import Layout, Stage
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.design.plan import Kind, Layer, Lengths, Maps, Plan, StagePlan, Sublayer
from mnmt_jax.distributed.dropout_mask import DropoutMask
from mnmt_jax.errors import UserError
from mnmt_jax.model.context import Context, PositionInfo, Spans
from mnmt_jax.model.dropout import Dropout
from mnmt_jax.model.intermediates import KEYS, QUERIES, record
from mnmt_jax.model.key_values import KeyValue
from mnmt_jax.model.modules import (
    ACTIVATIONS,
    Projection,
    layer_norm,
    linear,
    projection,
    uniform_fan_in,
    xavier_uniform,
)
from mnmt_jax.model.rematerialization import ATTENTION, MLP


class Attention(nn.Module, Kind):
    """Projections of multi-head attention, with biases; the softmax is in `attention/`."""

    config: Model

    attends = True

    def setup(self) -> None:
        """Create query, key, value [embed, heads, kv] and out [heads, kv, embed]."""
        config = self.config

        def per_head() -> Projection:
            return projection(
                config,
                (config.heads, config.head_dim),
                kernel_init=xavier_uniform(1 / math.sqrt(2)),
                bias_init=uniform_fan_in(config.embed),
            )

        self.query, self.key, self.value = per_head(), per_head(), per_head()
        self.out = projection(config, config.embed, axis=(-2, -1), kernel_init=xavier_uniform(1.0))
        self.drop = Dropout(config.attention_dropout)

    def project_queries(
        self, states: Float[Array, "*b embed"]
    ) -> Float[Array, "*b heads head_dim"]:
        """Return queries scaled by head_dim ** -0.5, after the bias."""
        queries = self.query(states) * jnp.asarray(self.config.head_dim**-0.5, states.dtype)
        return checkpoint_name(queries, ATTENTION)

    def project_keys_values(self, states: Float[Array, "*b embed"]) -> KeyValue:
        """Return keys and values [*b, heads, head_dim]."""
        keys, values = self.key(states), self.value(states)
        return KeyValue(checkpoint_name(keys, ATTENTION), checkpoint_name(values, ATTENTION))

    def record_queries_keys(
        self, info: PositionInfo, queries: Array, keys_values: KeyValue
    ) -> None:
        """Record queries and keys as the intermediates `queries` and `keys`, for attention maps.

        Args:
            info: of the queries.
            queries: scaled.
            keys_values: keys and values of the same role, or of the memory in cross-attention.
        """
        record(self, info, QUERIES, queries)
        record(self, info, KEYS, keys_values.keys)

    def dropout(self, deterministic: bool) -> Callable[[], DropoutMask]:
        """Return the function that draws dropout masks of attention weights."""
        return functools.partial(self.drop.draw_mask, deterministic)

    def _matmuls(self, query_positions: float, key_positions: float) -> Maps:
        square = self.config.embed, self.config.embed
        for name, positions in (
            ("query", query_positions),
            ("key", key_positions),
            ("value", key_positions),
            ("out", query_positions),
        ):
            yield name, positions, square


class SelfAttention(Attention):
    """Multi-head attention among the positions of a stage, by its visibility table."""

    component = "attention"
    other_norm = "self_attn_layer_norm"

    def read(self, states: Spans, context: Context) -> tuple[Spans, Any]:
        """Return the attention output, per head, and the keys and values that it read."""
        queries = context.map(self.project_queries, states)
        keys_values = context.map(self.project_keys_values, states)
        for role, role_queries in queries.items():
            self.record_queries_keys(
                PositionInfo(context, (role,)), role_queries, keys_values[role]
            )
        return context.attention.attend(queries, keys_values, self.dropout(context.deterministic))

    def entries(self, names: Any, path: tuple[str, ...], prefix: str) -> Iterator[Any]:
        """Yield the parameter names of the projections in fairseq and Hugging Face."""
        return names.attention(path, f"{prefix}self_attn")

    def matmuls(self, stage: Stage, roles: Sequence[str], lengths: Lengths) -> Maps:
        """Yield the projections, with keys and values of all roles that `roles` see."""
        key_roles = {key for role in roles for key in stage.key_roles(role)}
        query_positions = sum(lengths[role] for role in roles)
        return self._matmuls(query_positions, sum(lengths[role] for role in key_roles))

    def attention_pairs(self, stage: Stage, roles: Sequence[str], lengths: Lengths) -> float:
        """Return the number of query-key pairs."""
        visible_keys = {role: sum(lengths[key] for key in stage.key_roles(role)) for role in roles}
        return sum(lengths[role] * count for role, count in visible_keys.items())


class CrossAttention(Attention):
    """Multi-head attention to the states of a role that has ended."""

    component = "memory_attention"
    other_norm = "encoder_attn_layer_norm"

    def read(self, states: Spans, context: Context) -> tuple[Spans, Any]:
        """Return the attention output, per head, and None because nothing is cached per step."""
        dropout = self.dropout(context.deterministic)
        heads = {}
        for role, role_states in states.items():
            queries = self.project_queries(role_states)
            heads[role], memory = context.attention.cross_attend(role, self, queries, dropout)
            self.record_queries_keys(PositionInfo(context, (role,)), queries, memory)
        return heads, None

    def entries(self, names: Any, path: tuple[str, ...], prefix: str) -> Iterator[Any]:
        """Yield the parameter names of the projections in fairseq and Hugging Face."""
        return names.attention(path, f"{prefix}encoder_attn")

    def matmuls(self, stage: Stage, roles: Sequence[str], lengths: Lengths) -> Maps:
        """Yield the projections of each memory edge."""
        for role, memory in _edges(stage, roles):
            yield from self._matmuls(lengths[role], lengths[memory])

    def attention_pairs(self, stage: Stage, roles: Sequence[str], lengths: Lengths) -> float:
        """Return the number of query-key pairs."""
        return sum(lengths[role] * lengths[memory] for role, memory in _edges(stage, roles))


class FeedForward(nn.Module, Kind):
    """wo(f(wi(x))), with biases and PyTorch's Linear initialisation; f is one of `ACTIVATIONS`.

    Attributes:
        config: sizes of the model.
        hidden: width between the two layers.
        component: name under which `describe` counts the parameters.
        other: names of the two layers in fairseq and Hugging Face.
        activation: key of `mnmt_jax.model.modules.ACTIVATIONS`; empty for `Model.activation`.
        dropout: rate of its own dropout, which replaces the residual stream's; None for the latter.
    """

    config: Model
    hidden: int
    component: str = "mlp"
    other: tuple[str, str] = ("fc1", "fc2")
    activation: str = ""
    dropout: float | None = None

    other_norm = "final_layer_norm"

    def setup(self) -> None:
        """Create wi [embed, hidden] and wo [hidden, embed]."""
        self.wi = linear(self.config, self.hidden, self.config.embed)
        self.wo = linear(self.config, self.config.embed, self.hidden)
        self.drop = Dropout(self.dropout or 0.0)

    @property
    def has_dropout(self) -> bool:
        """Whether it has its own dropout."""
        return self.dropout is not None

    def change(self, states: Float[Array, "*b embed"], info: PositionInfo) -> Array:
        """Return the two layers' output at each position, after its own dropout if it has one."""
        inner = self.activate(checkpoint_name(self.wi(states), MLP))
        return self.drop(self.wo(inner), deterministic=info.deterministic)

    def activate(self, states: Array) -> Array:
        """Return the activation of states."""
        return ACTIVATIONS[self.activation or self.config.activation](states)

    def entries(self, names: Any, path: tuple[str, ...], prefix: str) -> Iterator[Any]:
        """Yield the parameter names of the two layers in fairseq and Hugging Face."""
        first, second = self.other
        return names.mlp(path, (prefix + first, prefix + second), self.hidden)

    def matmuls(self, stage: Stage, roles: Sequence[str], lengths: Lengths) -> Maps:
        """Yield the two layers."""
        del stage
        positions = sum(lengths[role] for role in roles)
        yield "wi", positions, (self.config.embed, self.hidden)
        yield "wo", positions, (self.hidden, self.config.embed)


class StageNorm(nn.Module, Kind):
    """The norm at the end of a stage of pre-norm layers."""

    config: Model

    has_dropout = True  # so that no residual dropout is applied
    component = "norms"

    def setup(self) -> None:
        """Create the norm; its parameters are the stage norm's own."""
        self.norm = layer_norm(self.config)
        nn.share_scope(self, self.norm)

    def change(self, states: Array, info: PositionInfo) -> Array:
        """Return the normalised states."""
        del info
        return self.norm(states)

    def entries(self, names: Any, path: tuple[str, ...], prefix: str) -> Iterator[Any]:
        """Yield the parameter names of the norm in fairseq and Hugging Face."""
        return names.norm(path, f"{prefix}layer_norm")


def plain_plan(config: Model, layout: Layout) -> Plan:
    """Return the plan of a transformer: self-attention, cross-attention if any, feed-forward."""
    stages = []
    for number, stage in enumerate(layout.stages):
        layer = [Sublayer("attention", SelfAttention(config), config.norm)]
        if stage.memory:
            readers = tuple(reader for reader, _ in stage.memory)
            cross_attention = CrossAttention(config)
            layer.append(Sublayer("memory_attention", cross_attention, config.norm, roles=readers))
        layer.append(Sublayer("mlp", FeedForward(config, config.mlp_width(number)), config.norm))
        norm = Sublayer(f"stage_{number}_norm", StageNorm(config), residual=False)
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
        if not isinstance(plan, Plan):
            raise UserError(f"{type(method).__name__}.edit returned {plan!r}; return the plan")
    plan.check()
    return plan


def param_axes(config: Model) -> dict[str, tuple[str, ...]]:
    """Return the logical axes of the parameters that only this model's methods have."""
    return make_plan(config, get_layout(config.layout, config.stage_layers)).param_axes()


def cross_attending(layer: Layer) -> Sublayer | None:
    """Return a layer's cross-attention, or None."""
    return next((sublayer for sublayer in layer if isinstance(sublayer.kind, CrossAttention)), None)


def feed_forward_of(layer: Layer) -> FeedForward | None:
    """Return a layer's feed-forward, or None."""
    kinds = (sublayer.kind for sublayer in layer if sublayer.name == "mlp")
    return next((kind for kind in kinds if isinstance(kind, FeedForward)), None)


def _edges(stage: Stage, roles: Sequence[str]) -> Iterator[tuple[str, str]]:
    for role in roles:
        memory = stage.memory_role(role)
        if memory:
            yield role, memory
