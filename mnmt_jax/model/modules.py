"""Flax modules with parameters: projections, attention, feed-forward.

Structure, biases and initialisation follow fairseq (MITRE spec 4.2 to 4.5: q, k, v Xavier-uniform
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
FIRST_ROW = 2  # row of position 0 in fairseq's tables, which start at padding_idx + 1


def sinusoid(
    positions: Int[Array, "*b"], embed: int, base: float = 10000.0
) -> Float[Array, "*b embed"]:
    """Compute fairseq's sinusoidal position vectors.

    Args:
        positions: from 0 within each segment; position p is row p + 2 of fairseq's table.
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


# Flax evaluates the shape of every initial value each time a model is traced. A shared jitted
# initialiser is traced only once per shape.
_jit_initializer = functools.partial(jax.jit, static_argnums=(1, 2))


@functools.cache
def uniform_fan_in(fan_in: int) -> Callable[..., Array]:
    """Return the initialiser U(-b, b) with b = 1 / sqrt(fan_in), as in PyTorch's Linear."""
    bound = 1.0 / math.sqrt(fan_in)

    def init(rng: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        return jax.random.uniform(rng, shape, dtype, -bound, bound)

    return _jit_initializer(init)


@functools.cache
def _xavier_uniform(gain: float) -> Callable[..., Array]:
    return _jit_initializer(nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform"))


class Projection(nn.DenseGeneral, kw_only=True):
    """A linear map with bias, plus a low-rank change if `Model.lora` selects it.

    Parameters: `kernel` [inputs, features] and `bias` [features] as in Flax's layer, where inputs
        and
    features may be several axes; a kernel may be quantized (`mnmt_jax.model.quantized_weights`).
    With LoRA, `lora_a` [inputs, rank] and `lora_b` [rank, features].

    Source: Hu et al. 2021, section 4.1; see `mnmt_jax.model.lora` for scale and initial values.
    """

    config: Model
    extra_axes: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @nn.compact
    def __call__(self, states: Float[Array, "*b"]) -> Float[Array, "*c"]:
        """Apply the map to the last axes, as many as `axis` names."""
        path = "/".join(self.path)
        mapped = split_rows(self._mapped(states), f"{path}/bias", dict(self.extra_axes))
        if not self._carries_lora(path):
            return mapped
        inputs = (
            states.shape[-len(self.axis) :] if isinstance(self.axis, tuple) else states.shape[-1:]
        )
        features = self.features if isinstance(self.features, tuple) else (self.features,)
        rank, gaussian = self.config.lora_rank, nn.initializers.normal(math.prod(inputs) ** -0.5)
        a = self.param(LORA_A, gaussian, (*inputs, rank), jnp.float32).astype(mapped.dtype)
        b = self.param(LORA_B, nn.initializers.zeros, (rank, *features), jnp.float32)
        narrow = jnp.tensordot(states.astype(mapped.dtype), a, axes=len(inputs))
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
        """Create query, key, value [embed, heads, kv] and out [heads, kv, embed]."""
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
        """Return queries scaled by head_dim ** -0.5, after the bias."""
        return self.query(states) * jnp.asarray(self.config.head_dim**-0.5, states.dtype)

    def project_keys_values(self, states: Float[Array, "*b embed"]) -> KeyValue:
        """Return keys and values [*b, heads, head_dim]."""
        return KeyValue(self.key(states), self.value(states))

    def show(self, place: PositionInfo, queries: Array, read: KeyValue) -> None:
        """Record queries and keys as the intermediates `queries` and `keys`, for attention maps.

        Args:
            place: of the queries.
            queries: scaled.
            read: keys and values of the same role, or of the memory in cross-attention.
        """
        record(self, place, QUERIES, queries)
        record(self, place, KEYS, read.keys)

    def dropout(self, deterministic: bool) -> Callable[[], DropoutMask]:
        """Return the function that draws dropout masks of attention weights."""
        return functools.partial(self.drop.drawn, deterministic)


class SelfAttention(Attention):
    """Attention among the positions of a stage, by its visibility table."""

    def read(self, states: Spans, context: Context) -> tuple[Spans, Any]:
        """Return the attention output, per head, and the reader's keys and values."""
        queries = context.map(self.project_queries, states)
        keys_values = context.map(self.project_keys_values, states)
        for role, role_queries in queries.items():
            self.show(PositionInfo(context, (role,)), role_queries, keys_values[role])
        return context.reader.attend(queries, keys_values, self.dropout(context.deterministic))


class CrossAttention(Attention):
    """Attention to the states of a role that has ended."""

    def read(self, states: Spans, context: Context) -> tuple[Spans, Any]:
        """Return the attention output, per head, and None because nothing is cached per step."""
        dropout = self.dropout(context.deterministic)
        heads = {}
        for role, role_states in states.items():
            queries = self.project_queries(role_states)
            heads[role], memory = context.reader.cross_attend(role, self, queries, dropout)
            self.show(PositionInfo(context, (role,)), queries, memory)
        return heads, None


class FeedForward(nn.Module):
    """wo(f(wi(x))), with biases and PyTorch's Linear initialisation; f is one of `ACTIVATIONS`."""

    config: Model
    hidden: int
    dropout: float = 0.0
    activation: str = "relu"

    def setup(self) -> None:
        """Create wi [embed, hidden] and wo [hidden, embed]."""
        config = self.config
        self.wi = _linear(config, self.hidden, config.embed)
        self.wo = _linear(config, config.embed, self.hidden)
        self.drop = Dropout(self.dropout)

    def __call__(
        self, states: Float[Array, "*b embed"], deterministic: bool
    ) -> Float[Array, "*b embed"]:
        """Apply the two layers, then dropout at rate `dropout`, at each position."""
        inner = ACTIVATIONS[self.activation](self.wi(states))
        return self.drop(self.wo(inner), deterministic=deterministic)


def layer_norm(config: Model) -> nn.LayerNorm:
    """Return fairseq's LayerNorm: affine, epsilon 1e-5, statistics in float32."""
    return nn.LayerNorm(epsilon=LAYER_NORM_EPS, dtype=jnp.dtype(config.dtype))
