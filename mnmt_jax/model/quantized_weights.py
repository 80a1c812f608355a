"""Quantized weights: bfloat16 and int8 replacements of kernels and tables in a parameter tree.

A kernel [inputs, features], of which either may be several axes, and a table [vocab, embed] of
token vectors, which also serves as an output kernel, are arrays in training. For decoding
`mnmt_jax.decoding.weight_precision` replaces them by these classes. `project` and `look_up` accept
either, so the model's modules do not distinguish them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mnmt_jax.distributed.per_device import sharded_embedding_lookup
from mnmt_jax.distributed.sharding import gather_table_width, param_axes_of, platform

KERNEL = "kernel"  # last part of a kernel's path
LARGEST = 127  # of the int8 values, symmetric around zero
_FAST_ROWS = 8  # rows of an int8 product on CPU; XLA's product of a single row is slower
_SMALLEST_MAXIMUM = 1e-30  # smallest maximum scaled to 127, so that the factor fits in float32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bfloat16:
    """Weights rounded to bfloat16; products round the states too, and are summed in float32.

    Attributes:
        values: bfloat16, of the kernel's shape.
        inputs: axes of the kernel that a product sums over.
    """

    values: Array
    inputs: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    def product(self, states: Float[Array, "*b"]) -> Float[Array, "*c"]:
        """Return the product of states with the weights, float32."""
        return _contract(states.astype(jnp.bfloat16), self.values, self.inputs, jnp.float32)

    def rows(self, tokens: Int[Array, "*b"]) -> Float[Array, "*b embed"]:
        """Return rows of a table, float32."""
        return gather_table_width(self.values)[tokens].astype(jnp.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Int8:
    """Weights as int8 values with a scale per feature.

    Products round the states too, so that the largest absolute value of a row of states becomes
    127. Integer products and sums are exact.

    Attributes:
        values: int8 from -127 to 127, of the kernel's shape.
        scale: float32, of the shape of the axes that are not `inputs`.
        inputs: axes of the kernel that a product sums over.
    """

    values: Array
    scale: Array
    inputs: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    def product(self, states: Float[Array, "*b"]) -> Float[Array, "*c"]:
        """Return the product of states with the weights, float32."""
        input_axes = tuple(range(states.ndim - len(self.inputs), states.ndim))
        rounded, scale = to_int8(states, input_axes)
        if states.shape[: input_axes[0]] in ((1,), (1, 1)) and platform() == "cpu":
            rounded = jnp.pad(rounded, [(0, _FAST_ROWS - 1), *[(0, 0)] * (states.ndim - 1)])
        sums = _contract(rounded, self.values, self.inputs, jnp.int32)
        sums = sums[: states.shape[0]].astype(jnp.float32)
        scale = scale.reshape(states.shape[: input_axes[0]] + (1,) * self.scale.ndim)
        return sums * scale * _as_last_axes(self.scale, sums.ndim)

    def rows(self, tokens: Int[Array, "*b"]) -> Float[Array, "*b embed"]:
        """Return rows of a table, float32."""
        vectors = gather_table_width(self.values)[tokens].astype(jnp.float32)
        return vectors * self.scale[tokens][..., None]


QUANTIZED_TYPES = (Bfloat16, Int8)


def to_int8(array: Float[Array, "*b"], axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Round an array to integers from -127 to 127.

    Args:
        array: of any float type.
        axes: axes that share a scale.

    Returns:
        int8 values of the same shape, and float32 scales with `axes` of length one. The scale is 1
        where all values are zero or below the smallest supported magnitude.
    """
    array = array.astype(jnp.float32)
    largest = jnp.max(jnp.abs(array), axis=axes, keepdims=True)
    largest = jnp.where(largest < _SMALLEST_MAXIMUM, jnp.float32(LARGEST), largest)
    # One multiplication per number is faster than a division.
    return jnp.round(array * (LARGEST / largest)).astype(jnp.int8), largest / LARGEST


def cast_kernels(
    params: Any, dtype: Any, extra_axes: Mapping[str, tuple[str, ...]] | None = None
) -> Any:
    """Return parameters with kernels cast to the dtype of the products.

    Products cast them anyway; casting earlier gathers fewer bytes from other devices. Tables keep
    their dtype, because vectors are looked up in float32. So do language branches, whose gradients
    are summed in the dtype of the parameters.

    Args:
        params: tree with the paths of parameters; quantized weights stay unchanged.
        dtype: `Model.dtype`.
        extra_axes: axes of the plan's own parameters (`mnmt_jax.design.plan.Plan.param_axes`).
    """

    def cast(path: tuple[Any, ...], leaf: Any) -> Any:
        if not isinstance(leaf, Array) or path[-1].key != KERNEL:
            return leaf
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        is_branch = "slot" in param_axes_of(name, extra_axes or {})
        return leaf if is_branch else leaf.astype(dtype)

    return jax.tree_util.tree_map_with_path(cast, params, is_leaf=is_quantized)


def is_quantized(leaf: Any) -> bool:
    """Return whether a leaf of a parameter tree is a quantized weight."""
    return isinstance(leaf, QUANTIZED_TYPES)


def affine(
    states: Float[Array, "*b"], kernel: Bfloat16 | Int8, bias: Array, dtype: Any
) -> Float[Array, "*c"]:
    """Return the product of states with a kernel, plus a bias.

    Args:
        states: whose last axes are the kernel's inputs.
        kernel: quantized.
        bias: of the kernel's features, float32; added in float32.
        dtype: of the result.
    """
    sums = kernel.product(states)
    return (sums + _as_last_axes(bias, sums.ndim)).astype(dtype)


def project(states: Float[Array, "*b embed"], table: Any) -> Float[Array, "*b vocab"]:
    """Return the products of states with all rows of a table, float32."""
    if isinstance(table, QUANTIZED_TYPES):
        return table.product(states)
    table = table.astype(states.dtype)
    return jnp.einsum("...m,vm->...v", states, table, preferred_element_type=jnp.float32)


def look_up(table: Any, tokens: Int[Array, "*b"]) -> Float[Array, "*b embed"]:
    """Return rows of a table, float32 unless it is an array of another dtype."""
    if isinstance(table, QUANTIZED_TYPES):
        return table.rows(tokens)
    return sharded_embedding_lookup(table, tokens)


def _contract(states: Array, values: Array, inputs: tuple[int, ...], sum_dtype: Any) -> Array:
    """Sum products over the last axes of states and `inputs` of values in the dtype `sum_dtype`."""
    input_axes = tuple(range(states.ndim - len(inputs), states.ndim))
    dimensions = (input_axes, inputs), ((), ())
    return jax.lax.dot_general(states, values, dimensions, preferred_element_type=sum_dtype)


def _as_last_axes(array: Array, ndim: int) -> Array:
    return array.reshape((1,) * (ndim - array.ndim) + array.shape)
