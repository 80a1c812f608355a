"""Flax modules that own parameters: attention, feed-forward, adaption, and the block they form.

Structure, biases and initialisation are fairseq's (MITRE spec 4.2 to 4.5: q, k, v Xavier-uniform
with gain 1/sqrt(2), output projection Xavier-uniform, everything else PyTorch's Linear default).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from mnmt_jax.attention import IMPLEMENTATIONS
from mnmt_jax.attention.core import attend, attend_beams
from mnmt_jax.cache import KeyValue, LayerCache
from mnmt_jax.config import Model
from mnmt_jax.layout import Stage
from mnmt_jax.lora import LORA_A, LORA_B
from mnmt_jax.patterns import matches
from mnmt_jax.sharding import split_rows

Spans = dict[str, Array]
Memory = tuple[Array, Array]  # states [batch, k, embed], mask [batch, 1, q, k]

LAYER_NORM_EPS = 1e-5
_FIRST_ROW = 2  # fairseq counts positions from padding_idx + 1


def sinusoid(
    positions: Int[Array, "*b"], embed: int, base: float = 10000.0
) -> Float[Array, "*b embed"]:
    """Computes fairseq's sinusoidal position vectors.

    Args:
        positions: from 0 inside each segment; position p is row p + 2 of fairseq's table.
        embed: width, even; sines fill the first half, cosines the second.
        base: of the wavelengths, 10000 as published.

    Returns:
        float32 vectors.

    Source: MITRE spec 1.6; the exponent's denominator is embed / 2 - 1.
    """
    half = embed // 2
    rates = jnp.exp(jnp.arange(half, dtype=jnp.float32) * (-math.log(base) / max(half - 1, 1)))
    rows = (positions + _FIRST_ROW).astype(jnp.float32)
    angles = rows[..., None] * rates.reshape((1,) * rows.ndim + (half,))
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


# Flax asks for the shape of every parameter's first value each time a model is traced. One compiled
# function for all parameters of a kind is traced once for each shape.
_draws = functools.partial(jax.jit, static_argnums=(1, 2))


@functools.cache
def _uniform_fan_in(fan_in: int) -> Callable[..., Array]:
    bound = 1.0 / math.sqrt(fan_in)

    def init(rng: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        return jax.random.uniform(rng, shape, dtype, -bound, bound)

    return _draws(init)


@functools.cache
def _xavier_uniform(gain: float) -> Callable[..., Array]:
    return _draws(nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform"))


class Projection(nn.DenseGeneral, kw_only=True):
    """A linear map with bias, and beside it the low-rank change that `Model.lora` gives it.

    Parameters: `kernel` [inputs, features] and `bias` [features] as those of Flax's layer, of which
    either axis may be several; with LoRA `lora_a` [inputs, rank] and `lora_b` [rank, features].

    Source: Hu et al. 2021, section 4.1; see `mnmt_jax.lora` for the scale and the first values.
    """

    config: Model

    @nn.compact
    def __call__(self, states: Float[Array, "*b"]) -> Float[Array, "*c"]:
        """Applies the map to the last axes, as many as `axis` names."""
        path = "/".join(self.path)
        mapped = split_rows(super().__call__(states), f"{path}/bias")
        if not self._carries_lora(path):
            return mapped
        read = (
            states.shape[-len(self.axis) :] if isinstance(self.axis, tuple) else states.shape[-1:]
        )
        features = self.features if isinstance(self.features, tuple) else (self.features,)
        rank, gaussian = self.config.lora_rank, nn.initializers.normal(math.prod(read) ** -0.5)
        a = self.param(LORA_A, gaussian, (*read, rank), jnp.float32).astype(mapped.dtype)
        b = self.param(LORA_B, nn.initializers.zeros, (rank, *features), jnp.float32)
        narrow = jnp.tensordot(states.astype(mapped.dtype), a, axes=len(read))
        return mapped + jnp.tensordot(narrow, b.astype(mapped.dtype), axes=1)

    def _carries_lora(self, path: str) -> bool:
        return self.config.lora_rank > 0 and any(matches(p, path) for p in self.config.lora)


def _projection(config: Model, features: int | tuple[int, ...], **options: Any) -> Projection:
    return Projection(features, config=config, dtype=jnp.dtype(config.dtype), **options)


def _linear(config: Model, features: int, fan_in: int) -> Projection:
    init = _uniform_fan_in(fan_in)
    return _projection(config, features, kernel_init=init, bias_init=init)


class Attention(nn.Module):
    """Projections of multi-head attention, with biases; the softmax is in `attention/`."""

    config: Model

    def setup(self) -> None:
        """Creates query, key, value [embed, heads, kv] and out [heads, kv, embed]."""
        config = self.config

        def projection() -> Projection:
            return _projection(
                config,
                (config.heads, config.head_dim),
                kernel_init=_xavier_uniform(1 / math.sqrt(2)),
                bias_init=_uniform_fan_in(config.embed),
            )

        self.query, self.key, self.value = projection(), projection(), projection()
        self.out = _projection(
            config, config.embed, axis=(-2, -1), kernel_init=_xavier_uniform(1.0)
        )
        self.drop = nn.Dropout(config.attention_dropout)

    def project_queries(
        self, states: Float[Array, "*b embed"]
    ) -> Float[Array, "*b heads head_dim"]:
        """Returns queries scaled by head_dim ** -0.5, after the bias."""
        return self.query(states) * jnp.asarray(self.config.head_dim**-0.5, states.dtype)

    def project_keys_values(self, states: Float[Array, "*b embed"]) -> KeyValue:
        """Returns keys and values [*b, heads, head_dim]."""
        return KeyValue(self.key(states), self.value(states))

    def dropout(self, deterministic: bool) -> Callable[[Array], Array]:
        """Returns the function applied to attention weights."""
        return lambda weights: self.drop(weights, deterministic=deterministic)


class FeedForward(nn.Module):
    """wo(relu(wi(x))), with biases, PyTorch's Linear initialisation."""

    config: Model
    hidden: int
    dropout: float = 0.0

    def setup(self) -> None:
        """Creates wi [embed, hidden] and wo [hidden, embed]."""
        config = self.config
        self.wi = _linear(config, self.hidden, config.embed)
        self.wo = _linear(config, config.embed, self.hidden)
        self.drop = nn.Dropout(self.dropout)

    def __call__(self, states: Float[Array, "*b embed"]) -> Float[Array, "*b embed"]:
        """Applies the two layers at each position."""
        return self.wo(nn.relu(self.wi(states)))


class Adaption(FeedForward):
    """Adaption module: h + dropout(W2 relu(W1 h + b1) + b2), no norm.

    Source: TDO paper, section 4.1; the residual is in the authors' code only (spec 4.4).
    """

    def adapt(
        self, states: Float[Array, "*b embed"], deterministic: bool
    ) -> Float[Array, "*b embed"]:
        """Applies the module at each position."""
        return states + self.drop(self(states), deterministic=deterministic)


def map_spans(function: Callable[..., Any], joined: bool, *spans: Spans) -> dict[str, Any]:
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


class Block(nn.Module):
    """One layer over all spans: self-attention, memory attention if any, feed-forward."""

    config: Model
    has_memory: bool = False

    def setup(self) -> None:
        """Creates the sub-layers and their norms."""
        self.attention, self.attention_norm = Attention(self.config), self._norm()
        if self.has_memory:
            self.memory_attention, self.memory_attention_norm = Attention(self.config), self._norm()
        self.mlp = FeedForward(self.config, self.config.mlp)
        self.mlp_norm = self._norm()
        self.drop = nn.Dropout(self.config.dropout)

    def __call__(
        self,
        stage: Stage,
        spans: Spans,
        masks: Any,
        memory: Mapping[str, Memory],
        deterministic: bool,
        joined: bool,
    ) -> tuple[Spans, dict[str, KeyValue]]:
        """Applies the layer to every span.

        Args:
            stage: roles and visibility; static.
            spans: role -> [batch, length, embed].
            masks: from `make_masks` of the attention implementation.
            memory: reader role -> what it cross-attends to.
            deterministic: no dropout.
            joined: apply projections to all spans laid end to end; `fsdp` then collects each
                parameter once instead of once a role, but no role's work can be left out.

        Returns:
            The new spans, and role -> keys and values of the self-attention.
        """
        spans, keys_values = self._self_attention(stage, spans, masks, deterministic, joined)
        for reader, (states, mask) in memory.items():
            attention, norm = self.memory_attention, self.memory_attention_norm
            queries = attention.project_queries(self._enter(norm, spans[reader]))
            read = attention.project_keys_values(states)
            dropout = attention.dropout(deterministic)
            heads = attend(queries, read.keys, read.values, mask=mask, dropout=dropout)
            change = attention.out(heads)
            spans[reader] = self._leave(norm, spans[reader], change, deterministic)
        feed_forward = functools.partial(self._feed_forward, deterministic=deterministic)
        return map_spans(feed_forward, joined, spans), keys_values

    def step(
        self, states: Float[Array, "batch beam embed"], layer: LayerCache, index: Int[Array, ""]
    ) -> tuple[Float[Array, "batch beam embed"], KeyValue]:
        """Applies the layer to one new position of every beam.

        Args:
            states: the new position.
            layer: what the layer remembers.
            index: steps already taken.

        Returns:
            The new states and the layer's growing keys and values with this step written at
            `index`.
        """
        new = self._enter(self.attention_norm, states)
        queries, own = self.attention.project_queries(new), self.attention.project_keys_values(new)
        growing = jax.tree.map(
            lambda kept, one: jax.lax.dynamic_update_index_in_dim(kept, one, index, axis=2),
            layer.growing_kv,
            own,
        )
        taken = jnp.arange(growing.keys.shape[2]) <= index
        heads = attend_beams(queries, layer.static, (growing.keys, growing.values, taken))
        states = self._leave(self.attention_norm, states, self.attention.out(heads), True)
        if layer.memory is not None:
            attention, norm = self.memory_attention, self.memory_attention_norm
            queries = attention.project_queries(self._enter(norm, states))
            change = attention.out(attend_beams(queries, layer.memory, None))
            states = self._leave(norm, states, change, True)
        return self._feed_forward(states, True), growing

    def _self_attention(
        self, stage: Stage, spans: Spans, masks: Any, deterministic: bool, joined: bool
    ) -> tuple[Spans, dict[str, KeyValue]]:
        attention, norm = self.attention, self.attention_norm

        def leave(states: Array, heads: Array) -> Array:
            return self._leave(norm, states, attention.out(heads), deterministic)

        entered = map_spans(functools.partial(self._enter, norm), joined, spans)
        queries = map_spans(attention.project_queries, joined, entered)
        read = map_spans(attention.project_keys_values, joined, entered)
        heads = IMPLEMENTATIONS[self.config.attention].attend(
            stage,
            masks,
            queries,
            {role: kv.keys for role, kv in read.items()},
            {role: kv.values for role, kv in read.items()},
            dropout=attention.dropout(deterministic),
        )
        return map_spans(leave, joined, spans, heads), read

    def _feed_forward(self, states: Array, deterministic: bool) -> Array:
        change = self.mlp(self._enter(self.mlp_norm, states))
        return self._leave(self.mlp_norm, states, change, deterministic)

    def _norm(self) -> nn.LayerNorm:
        return layer_norm(self.config)

    def _enter(self, norm: nn.LayerNorm, states: Array) -> Array:
        return norm(states) if self.config.norm == "pre" else states

    def _leave(
        self, norm: nn.LayerNorm, states: Array, change: Array, deterministic: bool
    ) -> Array:
        states = states + self.drop(change, deterministic=deterministic)
        return states if self.config.norm == "pre" else norm(states)


def layer_norm(config: Model) -> nn.LayerNorm:
    """Returns fairseq's LayerNorm: affine, epsilon 1e-5, statistics in float32."""
    return nn.LayerNorm(epsilon=LAYER_NORM_EPS, dtype=jnp.dtype(config.dtype))
