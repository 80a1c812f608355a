"""Parts of sublayers: projections with LoRA, initialisers, activations, norms and sinusoids."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.custom_derivatives import linear_call
from jaxtyping import Array, Float, Int

from mnmt_jax.config.sections import Model
from mnmt_jax.distributed.sharding import constrain_row_sharding, platform
from mnmt_jax.model.lora import LORA_A, LORA_B
from mnmt_jax.model.param_patterns import matches
from mnmt_jax.model.quantized_weights import QUANTIZED_TYPES, affine

LAYER_NORM_EPS = 1e-5
# fairseq's `gelu` is the exact one (Hendrycks and Gimpel 2016, section 2), not the tanh form.
ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "gelu": functools.partial(nn.gelu, approximate=False),
}
_ROWS_OF_ONES = 8  # of a tile on TPU
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
def xavier_uniform(gain: float) -> Callable[..., Array]:
    """Return PyTorch's Xavier-uniform initialiser with a gain."""
    return _jit_initializer(nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform"))


class Projection(nn.DenseGeneral, kw_only=True):
    """A linear map with bias, plus a low-rank change if `Model.lora` selects it.

    Parameters: `kernel` [inputs, features] and `bias` [features] as in Flax's layer, where inputs
    and features may be several axes; a kernel may be quantized
    (`mnmt_jax.model.quantized_weights`). With LoRA, `lora_a` [inputs, rank] and `lora_b` [rank,
    features].

    Source: Hu et al. 2021, section 4.1; see `mnmt_jax.model.lora` for scale and initial values.
    """

    config: Model
    extra_axes: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @nn.compact
    def __call__(self, states: Float[Array, "*b"]) -> Float[Array, "*c"]:
        """Apply the map to the last axes, as many as `axis` names."""
        path = "/".join(self.path)
        mapped = constrain_row_sharding(self._mapped(states), f"{path}/bias", dict(self.extra_axes))
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
        if isinstance(kernel, QUANTIZED_TYPES):
            return affine(states, kernel, self.get_variable("params", "bias"), self.dtype)
        if self.is_initializing() or platform() != "tpu":
            return super().__call__(states)
        bias: Any = self.get_variable("params", "bias")
        states, kernel, bias = nn.dtypes.promote_dtype(states, kernel, bias, dtype=self.dtype)
        product = jnp.tensordot(states, kernel, axes=kernel.ndim - bias.ndim)
        return product + _spread(bias, product.shape)

    def _carries_lora(self, path: str) -> bool:
        return self.config.lora_rank > 0 and any(matches(p, path) for p in self.config.lora)


def _spread(bias: Float[Array, "*features"], shape: tuple[int, ...]) -> Float[Array, "*c"]:
    """Repeat a bias at all positions; the gradient of the bias is a matrix product with ones.

    libtpu estimates half of the cycles of a sum over positions, which are the last axis in memory.
    The call is linear, so both modes of differentiation work (attribution uses forward mode).
    """
    axes = len(shape) - bias.ndim

    def repeat(_: Any, bias: Array) -> Array:
        return jnp.broadcast_to(bias, shape)

    def add_up(_: Any, gradient: Array) -> Array:
        ones = jnp.ones((_ROWS_OF_ONES, *shape[:axes]), gradient.dtype)
        total = jnp.tensordot(ones, gradient, axes=axes, preferred_element_type=jnp.float32)
        return total[0].astype(bias.dtype)

    return linear_call(repeat, add_up, (), bias)


def projection(config: Model, features: int | tuple[int, ...], **options: Any) -> Projection:
    """Return a projection in the compute dtype of a model; the options are Flax's."""
    return Projection(features, config=config, dtype=jnp.dtype(config.dtype), **options)


def linear(config: Model, features: int, fan_in: int, **options: Any) -> Projection:
    """Return a `projection` with PyTorch's Linear initialisation."""
    init = uniform_fan_in(fan_in)
    return projection(config, features, kernel_init=init, bias_init=init, **options)


def layer_norm(config: Model) -> nn.LayerNorm:
    """Return fairseq's LayerNorm: affine, epsilon 1e-5, statistics in float32."""
    return nn.LayerNorm(epsilon=LAYER_NORM_EPS, dtype=jnp.dtype(config.dtype))
