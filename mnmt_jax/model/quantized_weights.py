"""Weights in fewer bits: what stands in a parameter tree in the place of a kernel or a table.

A kernel [inputs, features], of which either may be several axes, and a table [vocab, embed] of
tokens' vectors, which is the kernel of a head too, are arrays in training. For decoding
`mnmt_jax.decoding.weight_precision` puts one of these in their place, and `product` and `look_up` compute
with whichever they find: a model's modules do not ask which.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mnmt_jax.distributed.sharding import param_axes_of, whole_width

KERNEL = "kernel"  # end of the path of one
LARGEST = 127  # of int8 as it is used here, the same on both sides of zero
_LEAST = 1e-30  # of what is multiplied to be 127, which a float32 must hold


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bfloat16:
    """Weights rounded to bfloat16; products round the states too, and are summed in float32.

    Attributes:
        values: bfloat16, of the kernel's shape.
        inputs: its axes that a product sums over.
    """

    values: Array
    inputs: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    def product(self, states: Float[Array, "*b"]) -> Float[Array, "*c"]:
        """Returns states' product with them, float32."""
        return _contract(states.astype(jnp.bfloat16), self.values, self.inputs, jnp.float32)

    def rows(self, tokens: Int[Array, "*b"]) -> Float[Array, "*b embed"]:
        """Returns rows of a table, float32."""
        return whole_width(self.values)[tokens].astype(jnp.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Int8:
    """Weights as whole numbers, with a scale for each feature that they are multiples of.

    Products round the states too: the largest number of a row of states becomes 127. Products of
    whole numbers and their sums are exact.

    Attributes:
        values: int8 of -127 to 127, of the kernel's shape.
        scale: float32, of the shape of the axes that are not `inputs`.
        inputs: axes of the kernel that a product sums over.
    """

    values: Array
    scale: Array
    inputs: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    def product(self, states: Float[Array, "*b"]) -> Float[Array, "*c"]:
        """Returns states' product with them, float32."""
        last = tuple(range(states.ndim - len(self.inputs), states.ndim))
        rounded, scale = to_int8(states, last)
        sums = _contract(rounded, self.values, self.inputs, jnp.int32).astype(jnp.float32)
        scale = scale.reshape(states.shape[: last[0]] + (1,) * self.scale.ndim)
        return sums * scale * _as_last_axes(self.scale, sums.ndim)

    def rows(self, tokens: Int[Array, "*b"]) -> Float[Array, "*b embed"]:
        """Returns rows of a table, float32."""
        found = whole_width(self.values)[tokens].astype(jnp.float32)
        return found * self.scale[tokens][..., None]


FEWER_BITS = (Bfloat16, Int8)


def to_int8(array: Float[Array, "*b"], axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Rounds an array to whole numbers of -127 to 127.

    Args:
        array: of any float type.
        axes: whose numbers share a scale.

    Returns:
        int8 of the same shape, and float32 scales of which they are multiples, with `axes` of
        length one; 1 where all is zero, or below the least that can be told from it.
    """
    array = array.astype(jnp.float32)
    largest = jnp.max(jnp.abs(array), axis=axes, keepdims=True)
    largest = jnp.where(largest < _LEAST, jnp.float32(LARGEST), largest)
    # A multiplication of every number, which is faster than a division.
    return jnp.round(array * (LARGEST / largest)).astype(jnp.int8), largest / LARGEST


def as_multiplied(
    params: Any, dtype: Any, extra_axes: Mapping[str, tuple[str, ...]] | None = None
) -> Any:
    """Returns parameters with kernels in the type that products have them in.

    Products round them to it by themselves; done before, less is collected from other devices.
    Tables stay as they are, because vectors are read from them in float32, and branches of
    languages, whose gradients are added up in the type of the parameters.

    Args:
        params: tree with the paths of parameters; what is in fewer bits stays as it is.
        dtype: `Model.dtype`.
        extra_axes: axes of the plan's own parameters (`mnmt_jax.design.plan.Plan.param_axes`).
    """

    def one(path: tuple[Any, ...], leaf: Any) -> Any:
        if not isinstance(leaf, Array) or path[-1].key != KERNEL:
            return leaf
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        is_branch = "slot" in param_axes_of(name, extra_axes or {})
        return leaf if is_branch else leaf.astype(dtype)

    return jax.tree_util.tree_map_with_path(one, params, is_leaf=is_rounded)


def is_rounded(leaf: Any) -> bool:
    """Returns whether what stands in a parameter tree are weights in fewer bits."""
    return isinstance(leaf, FEWER_BITS)


def affine(
    states: Float[Array, "*b"], kernel: Bfloat16 | Int8, bias: Array, dtype: Any
) -> Float[Array, "*c"]:
    """Returns states' product with a kernel, plus a bias.

    Args:
        states: whose last axes are the kernel's inputs.
        kernel: in fewer bits.
        bias: of the kernel's features, float32, as which it is added.
        dtype: of the result.
    """
    sums = kernel.product(states)
    return (sums + _as_last_axes(bias, sums.ndim)).astype(dtype)


def project(states: Float[Array, "*b embed"], table: Any) -> Float[Array, "*b vocab"]:
    """Returns states' products with all rows of a table, float32."""
    if isinstance(table, FEWER_BITS):
        return table.product(states)
    table = table.astype(states.dtype)
    return jnp.einsum("...m,vm->...v", states, table, preferred_element_type=jnp.float32)


def look_up(table: Any, tokens: Int[Array, "*b"]) -> Float[Array, "*b embed"]:
    """Returns rows of a table, float32 unless it is an array of another type."""
    return table.rows(tokens) if isinstance(table, FEWER_BITS) else whole_width(table)[tokens]


def _contract(states: Array, values: Array, inputs: tuple[int, ...], total: Any) -> Array:
    """Sums products over the last axes of states and `inputs` of values, in the type `total`."""
    last = tuple(range(states.ndim - len(inputs), states.ndim))
    dimensions = (last, inputs), ((), ())
    return jax.lax.dot_general(states, values, dimensions, preferred_element_type=total)


def _as_last_axes(array: Array, ndim: int) -> Array:
    return array.reshape((1,) * (ndim - array.ndim) + array.shape)
