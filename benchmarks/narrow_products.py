r"""Estimate what int8 or float8 products of a training step's layers would gain on a TPU.

    python benchmarks/narrow_products.py int8 --topology=v5e:2x2 --vocab_size=160025 \
        --programs=train_step --gin_file=... (flags of `mnmt compile-ahead`)

Compiles the step as `mnmt compile-ahead` does, with the products of all projections in another
type: both factors are divided by the largest magnitude along the summed axes, rounded, multiplied,
and scaled back. `int8` and `float8_e4m3fn` do so forward and in both products of the backward pass,
`int8-forward` forward alone; `bfloat16` changes nothing. The products of attention and of the
output logits stay as they are. Compare `cycles` of the JSON; nothing says that such a model learns.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array

from mnmt_jax.commands.mnmt import run
from mnmt_jax.model import modules
from mnmt_jax.model.quantized_weights import to_int8

KINDS = ("bfloat16", "int8", "int8-forward", "float8_e4m3fn")
_SMALLEST = 1e-12  # maximum that is scaled to the type's


def main() -> None:
    """Change the products and run `mnmt compile-ahead`."""
    if len(sys.argv) < 2 or (kind := sys.argv[1]) not in KINDS:
        raise SystemExit(f"usage: narrow_products.py {{{','.join(KINDS)}}} FLAGS")
    if kind != "bfloat16":
        name, _, passes = kind.partition("-")
        _replace_products(narrow_product(jnp.dtype(name), backward=not passes))
    sys.argv[:2] = ["mnmt", "compile-ahead"]
    run()


def narrow_product(dtype: Any, *, backward: bool) -> Callable[[Array, Array, int], Array]:
    """Return a `jnp.tensordot` of the last axes of states and the first of a kernel.

    Args:
        dtype: of the factors.
        backward: whether the products of the backward pass have it too.
    """

    @functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
    def product(states: Array, kernel: Array, axes: int) -> Array:
        inputs = range(states.ndim - axes, states.ndim), range(axes)
        return multiply(states, kernel, *inputs, dtype).astype(states.dtype)

    def forward(states: Array, kernel: Array, axes: int) -> tuple[Array, tuple[Array, Array]]:
        return product(states, kernel, axes), (states, kernel)

    def gradients(axes: int, factors: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
        (states, kernel), rows = factors, range(factors[0].ndim - axes)
        outputs = range(len(rows), gradient.ndim), range(axes, kernel.ndim)
        times = functools.partial(multiply, dtype=dtype if backward else states.dtype)
        of_states = times(gradient, kernel, *outputs)
        of_kernel = times(states, gradient, rows, rows)
        return of_states.astype(states.dtype), of_kernel.astype(kernel.dtype)

    product.defvjp(forward, gradients)
    return product


def multiply(
    left: Array, right: Array, left_axes: Sequence[int], right_axes: Sequence[int], dtype: Any
) -> Array:
    """Sum products over axes with factors in a type; float32."""
    axes = (tuple(left_axes), tuple(right_axes))
    if dtype not in (jnp.int8, jnp.float8_e4m3fn):
        return jnp.tensordot(left, right, axes, preferred_element_type=jnp.float32)
    (left, left_scale), (right, right_scale) = (
        _quantize(factor, summed, dtype) for factor, summed in zip((left, right), axes, strict=True)
    )
    sums = jnp.int32 if dtype == jnp.int8 else jnp.float32
    out = jax.lax.dot_general(left, right, (axes, ((), ())), preferred_element_type=sums)
    left_scale = left_scale.reshape(*left_scale.shape, *[1] * right_scale.ndim)
    return out.astype(jnp.float32) * left_scale * right_scale


def _quantize(factor: Array, summed: tuple[int, ...], dtype: Any) -> tuple[Array, Array]:
    """Return a factor in the type, and its scales along the axes that are not summed."""
    if dtype == jnp.int8:
        values, scale = to_int8(factor, summed)
        return values, jnp.squeeze(scale, summed)
    factor = factor.astype(jnp.float32)
    largest = jnp.maximum(jnp.abs(factor).max(summed, keepdims=True), _SMALLEST)
    limit = float(jnp.finfo(dtype).max)
    return (factor * (limit / largest)).astype(dtype), jnp.squeeze(largest / limit, summed)


def _replace_products(product: Callable[[Array, Array, int], Array]) -> None:
    ordinary = modules.Projection._mapped

    def mapped(self: modules.Projection, states: Array) -> Array:
        if self.is_initializing():
            return ordinary(self, states)
        kernel: Any = self.get_variable("params", "kernel")
        bias: Any = self.get_variable("params", "bias")
        states, kernel, bias = nn.dtypes.promote_dtype(states, kernel, bias, dtype=self.dtype)
        out = product(states, kernel, kernel.ndim - bias.ndim)
        return out + modules._spread(bias, out.shape)

    setattr(modules.Projection, "_mapped", mapped)  # noqa: B010


if __name__ == "__main__":
    main()
