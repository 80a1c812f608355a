"""The weights that decoding computes with: as they are stored, or rounded to fewer bits.

Rounded are the kernels of projections and the tables of tokens' vectors, which are nearly all of a
model. Biases, norms, vectors of positions, LoRA's own matrices and feed-forward branches of
languages stay as they are, and so do products of attention, which has no weights. Both sides of
a product are rounded; see `mnmt_jax.model.quantized_weights`.

`int8` is symmetric, with a scale for each feature of a kernel and each row of a table: the largest
number of which becomes 127. With `bfloat16` an accelerator computes everything else as with
`Model.dtype="bfloat16"`: norms, the softmax of attention and logits in float32. A CPU is fast in
bfloat16 only in products that are summed in float32, so there states stay as `Model.dtype` says.

Source: Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", section 2, with zero-point 0 and a scale for each feature;
states are rounded as they come, without calibration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from mnmt_jax.config.sections import Model
from mnmt_jax.distributed.sharding import param_axes_of, platform
from mnmt_jax.model.quantized_weights import KERNEL, Bfloat16, Int8, is_rounded, to_int8

STORED = "stored"
_BIAS = "bias"


def compute_config(config: Model, weights: str) -> Model:
    """Returns the configuration of the model that computes with weights.

    Args:
        config: of the run.
        weights: value of `Decode.weights`.
    """
    narrow = weights == "bfloat16" and platform() != "cpu"
    return dataclasses.replace(config, dtype="bfloat16") if narrow else config


def round_weights(
    params: Any,
    weights: str,
    tables: Collection[str],
    extra_axes: Mapping[str, tuple[str, ...]] | None = None,
) -> Any:
    """Returns parameters with kernels and tables rounded, one after the other.

    Args:
        params: as they are stored, on any mesh; a rounded array lies where it lay, and its scales
            beside it.
        weights: value of `Decode.weights`.
        tables: names of the tables of tokens' vectors, whose rows are features.
        extra_axes: axes of the plan's own parameters (`mnmt_jax.design.plan.Plan.param_axes`).
    """
    if weights == STORED:
        return params
    flat = traverse_util.flatten_dict(params, sep="/")
    for name, array in flat.items():
        is_table = name in tables
        inputs = (1,) if is_table else _inputs(name, array, flat, extra_axes or {})
        if inputs:
            flat[name] = jax.block_until_ready(_ROUND[weights](array, inputs))
    return traverse_util.unflatten_dict(flat, sep="/")


def is_rounded_params(params: Any) -> bool:
    """Returns whether `round_weights` rounded parameters."""
    return any(map(is_rounded, jax.tree.leaves(params, is_leaf=is_rounded)))


def _inputs(
    name: str, array: Array, flat: Mapping[str, Array], extra_axes: Mapping[str, tuple[str, ...]]
) -> tuple[int, ...]:
    """Returns the axes of a kernel that products sum over; none if it is none of a projection."""
    module, _, kind = name.rpartition("/")
    if kind != KERNEL or "slot" in param_axes_of(name, extra_axes):
        return ()
    return tuple(range(array.ndim - flat[f"{module}/{_BIAS}"].ndim))


def _to_bfloat16(array: Array, inputs: tuple[int, ...]) -> Bfloat16:
    return Bfloat16(jnp.asarray(array).astype(jnp.bfloat16), inputs)


def _to_int8(array: Array, inputs: tuple[int, ...]) -> Int8:
    """Rounds an array where it lies; features of it and their scales are split alike."""
    found = None
    if isinstance(sharding := getattr(array, "sharding", None), NamedSharding):
        spec = (*sharding.spec, *[None] * (array.ndim - len(sharding.spec)))
        features = [part for axis, part in enumerate(spec) if axis not in inputs]
        found = sharding, NamedSharding(sharding.mesh, PartitionSpec(*features))
    rounded = jax.jit(_rounded, static_argnums=1, out_shardings=found)
    values, scale = rounded(array, inputs)
    return Int8(values, scale, inputs)


def _rounded(array: Array, inputs: tuple[int, ...]) -> tuple[Array, Array]:
    values, scale = to_int8(array, inputs)
    return values, scale.squeeze(inputs)


_ROUND = {"bfloat16": _to_bfloat16, "int8": _to_int8}
