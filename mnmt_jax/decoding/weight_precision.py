"""Precision of the weights for decoding: as stored, or rounded to fewer bits.

The kernels of projections and the embedding tables are rounded, which are nearly all of a model.
Biases, norms, position embeddings, LoRA's own matrices, feed-forward branches of languages and what
other kinds of sublayers list in `axes` stay as they are, and so do products of attention, which has
no weights. Both sides of a product are rounded; see `mnmt_jax.model.quantized_weights`.

`int8` is symmetric, with a scale for each feature of a kernel and each row of a table, whose
largest number becomes 127. With `bfloat16` an accelerator computes everything else as with
`Model.dtype="bfloat16"`: norms, the softmax of attention and logits in float32. A CPU is fast in
bfloat16 only in products that are summed in float32, so there the states keep `Model.dtype`.

Source: Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", section 2, with zero-point 0 and a scale for each feature;
states are rounded dynamically, without calibration.
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
from mnmt_jax.distributed.sharding import has_library_name, platform
from mnmt_jax.model.quantized_weights import KERNEL, Bfloat16, Int8, is_quantized, to_int8

STORED = "stored"
_BIAS = "bias"


def compute_config(config: Model, weights: str) -> Model:
    """Return the model configuration for computing with weights of a precision.

    Args:
        config: model configuration of the run.
        weights: value of `Decode.weights`.
    """
    narrow = weights == "bfloat16" and platform() != "cpu"
    return dataclasses.replace(config, dtype="bfloat16") if narrow else config


def round_weights(params: Any, weights: str, tables: Collection[str]) -> Any:
    """Return parameters with kernels and tables rounded, one array at a time.

    Args:
        params: parameters as stored, on any mesh; a rounded array and its scales keep the sharding.
        weights: value of `Decode.weights`.
        tables: names of the embedding tables, whose rows are features.
    """
    if weights == STORED:
        return params
    flat = traverse_util.flatten_dict(params, sep="/")
    for name, array in flat.items():
        is_table = name in tables
        inputs = (1,) if is_table else _input_axes(name, array, flat)
        if inputs:
            flat[name] = jax.block_until_ready(_ROUND[weights](array, inputs))
    return traverse_util.unflatten_dict(flat, sep="/")


def has_quantized_params(params: Any) -> bool:
    """Return whether parameters are the result of `round_weights` with rounding."""
    return any(map(is_quantized, jax.tree.leaves(params, is_leaf=is_quantized)))


def _input_axes(name: str, array: Array, flat: Mapping[str, Array]) -> tuple[int, ...]:
    """Return the axes of a projection's kernel that products sum over; none for other arrays.

    Kernels that a kind of sublayers lists itself (`Kind.axes`) need not be of projections.
    """
    module, _, kind = name.rpartition("/")
    if kind != KERNEL or not has_library_name(name) or f"{module}/{_BIAS}" not in flat:
        return ()
    return tuple(range(array.ndim - flat[f"{module}/{_BIAS}"].ndim))


def _to_bfloat16(array: Array, inputs: tuple[int, ...]) -> Bfloat16:
    return Bfloat16(jnp.asarray(array).astype(jnp.bfloat16), inputs)


def _to_int8(array: Array, inputs: tuple[int, ...]) -> Int8:
    """Round an array on its devices, with the same sharding for features and their scales."""
    out_shardings = None
    if isinstance(sharding := getattr(array, "sharding", None), NamedSharding):
        spec = (*sharding.spec, *[None] * (array.ndim - len(sharding.spec)))
        features = [axis_name for axis, axis_name in enumerate(spec) if axis not in inputs]
        out_shardings = sharding, NamedSharding(sharding.mesh, PartitionSpec(*features))
    rounded = jax.jit(_values_and_scale, static_argnums=1, out_shardings=out_shardings)
    values, scale = rounded(array, inputs)
    return Int8(values, scale, inputs)


def _values_and_scale(array: Array, inputs: tuple[int, ...]) -> tuple[Array, Array]:
    values, scale = to_int8(array, inputs)
    return values, scale.squeeze(inputs)


_ROUND = {"bfloat16": _to_bfloat16, "int8": _to_int8}
