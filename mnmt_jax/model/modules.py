"""Flax modules that own parameters: projections, attention, feed-forward.

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
from flax import linen as nn
from jaxtyping import Array, Float, Int

from mnmt_jax.config.sections import Model
from mnmt_jax.distributed.dropout_mask import DropoutMask
from mnmt_jax.distributed.sharding import split_rows
from mnmt_jax.model.context import Context, PositionInfo, Spans
from mnmt_jax.model.dropout import Dropout
from mnmt_jax.model.intermediates import KEYS, QUERIES, record
from mnmt_jax.model.key_values import KeyValue
from mnmt_jax.model.lora import LORA_A, LORA_B
from mnmt_jax.model.param_patterns import matches
from mnmt_jax.model.quantized_weights import FEWER_BITS, affine

LAYER_NORM_EPS = 1e-5
# fairseq's `gelu` is the exact one (Hendrycks and Gimpel 2016, section 2), not the tanh form.
ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "gelu": functools.partial(nn.gelu, approximate=False),
}
FIRST_ROW = 2  # of fairseq's tables, that of position 0: it counts from padding_idx + 1


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
    rows = (positions + FIRST_ROW).astype(jnp.float32)
    angles = rows[..., None] * rates.reshape((1,) * rows.ndim + (half,))
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


# Flax asks for the shape of every parameter's first value each time a model is traced. One compiled
# function for all parameters of a kind is traced once for each shape.
_draws = functools.partial(jax.jit, static_argnums=(1, 2))


@functools.cache
def uniform_fan_in(fan_in: int) -> Callable[..., Array]:
    """Returns the initialiser U(-b, b) with b = 1 / sqrt(fan_in), PyTorch's of Linear."""
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
    either axis may be several; a kernel may be in fewer bits (`mnmt_jax.model.quantized_weights`). With LoRA
    `lora_a` [inputs, rank] and `lora_b` [rank, features].

    Source: Hu et al. 2021, section 4.1; see `mnmt_jax.model.lora` for scale and first values.
    """

    config: Model
    extra_axes: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @nn.compact
    def __call__(self, states: Float[Array, "*b"]) -> Float[Array, "*c"]:
        """Applies the map to the last axes, as many as `axis` names."""
        path = "/".join(self.path)
        mapped = split_rows(self._mapped(states), f"{path}/bias", dict(self.extra_axes))
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

    def _mapped(self, states: Float[Array, "*b"]) -> Float[Array, "*c"]:
        kernel: Any = self.get_variable("params", "kernel")
        if isinstance(kernel, FEWER_BITS):
            return affine(states, kernel, self.get_variable("params", "bias"), self.dtype)
        return super().__call__(states)

    def _carries_lora(self, path: str) -> bool:
        return self.config.lora_rank > 0 and any(matches(p, path) for p in self.config.lora)


def _projection(config: Model, features: int | tuple[int, ...], **options: Any) -> Projection:
    return Projection(features, config=config, dtype=jnp.dtype(config.dtype), **options)


def _linear(config: Model, features: int, fan_in: int) -> Projection:
    init = uniform_fan_in(fan_in)
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
                bias_init=uniform_fan_in(config.embed),
            )

        self.query, self.key, self.value = projection(), projection(), projection()
        self.out = _projection(
            config, config.embed, axis=(-2, -1), kernel_init=_xavier_uniform(1.0)
        )
        self.drop = Dropout(config.attention_dropout)

    def project_queries(
        self, states: Float[Array, "*b embed"]
    ) -> Float[Array, "*b heads head_dim"]:
        """Returns queries scaled by head_dim ** -0.5, after the bias."""
        return self.query(states) * jnp.asarray(self.config.head_dim**-0.5, states.dtype)

    def project_keys_values(self, states: Float[Array, "*b embed"]) -> KeyValue:
        """Returns keys and values [*b, heads, head_dim]."""
        return KeyValue(self.key(states), self.value(states))

    def show(self, place: PositionInfo, queries: Array, read: KeyValue) -> None:
        """Hands out queries and keys as taps `queries` and `keys`, of which maps are drawn.

        Args:
            place: of the queries.
            queries: scaled.
            read: of the same role; of the memory in attention to it.
        """
        record(self, place, QUERIES, queries)
        record(self, place, KEYS, read.keys)

    def dropout(self, deterministic: bool) -> Callable[[], DropoutMask]:
        """Returns what draws the dropout of attention weights."""
        return functools.partial(self.drop.drawn, deterministic)


class SelfAttention(Attention):
    """Attention of the positions of a stage to each other, as its table says."""

    def read(self, states: Spans, context: Context) -> tuple[Spans, Any]:
        """Returns what each head read, and what the reader keeps of the keys and values."""
        queries = context.map(self.project_queries, states)
        keys_values = context.map(self.project_keys_values, states)
        for role, own in queries.items():
            self.show(PositionInfo(context, (role,)), own, keys_values[role])
        return context.reader.attend(queries, keys_values, self.dropout(context.deterministic))


class CrossAttention(Attention):
    """Attention to the states of a role that has ended."""

    def read(self, states: Spans, context: Context) -> tuple[Spans, Any]:
        """Returns what each head read; nothing is kept."""
        dropout = self.dropout(context.deterministic)
        heads = {}
        for role, own in states.items():
            queries = self.project_queries(own)
            heads[role], memory = context.reader.cross_attend(role, self, queries, dropout)
            self.show(PositionInfo(context, (role,)), queries, memory)
        return heads, None


class FeedForward(nn.Module):
    """wo(f(wi(x))), with biases, PyTorch's Linear initialisation; f is one of `ACTIVATIONS`."""

    config: Model
    hidden: int
    dropout: float = 0.0
    activation: str = "relu"

    def setup(self) -> None:
        """Creates wi [embed, hidden] and wo [hidden, embed]."""
        config = self.config
        self.wi = _linear(config, self.hidden, config.embed)
        self.wo = _linear(config, config.embed, self.hidden)
        self.drop = Dropout(self.dropout)

    def __call__(
        self, states: Float[Array, "*b embed"], deterministic: bool
    ) -> Float[Array, "*b embed"]:
        """Applies the two layers, then the dropout of its own, at each position."""
        inner = ACTIVATIONS[self.activation](self.wi(states))
        return self.drop(self.wo(inner), deterministic=deterministic)


def layer_norm(config: Model) -> nn.LayerNorm:
    """Returns fairseq's LayerNorm: affine, epsilon 1e-5, statistics in float32."""
    return nn.LayerNorm(epsilon=LAYER_NORM_EPS, dtype=jnp.dtype(config.dtype))
