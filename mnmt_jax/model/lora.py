"""LoRA on parameter trees: selection of its parameters, and merging them into the weights.

A projection y = x W + b with LoRA computes y = x W + b + (x A) B, with A of `rank` columns
(`lora_a`) and B of `rank` rows (`lora_b`) beside `kernel` and `bias`. A starts as Gaussian and B as
zero, so the initial model is unchanged.

Hu et al. scale the change by alpha / rank, "a constant in r", and then "simply set alpha to the
first r we try and do not tune it", since under Adam it acts like the learning rate. Here alpha
equals the rank, so the scale is 1 and is not a setting.

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1. The paper
does not state the variance of the Gaussian; N(0, 1 / inputs) is our choice, so that x A has the
variance of x.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from mnmt_jax.files.lazy_array import LazyArray

LORA_A, LORA_B = "lora_a", "lora_b"
_KERNEL = "kernel"


def is_lora(name: str) -> bool:
    """Return whether a parameter belongs to LoRA.

    Args:
        name: its path, e.g. `layer_0/attention/query/lora_a`.
    """
    return name.rpartition("/")[2] in (LORA_A, LORA_B)


def split_lora(params: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return LoRA's parameters and the others, as two trees without empty branches."""
    flat = traverse_util.flatten_dict(params, sep="/")
    lora = {name: leaf for name, leaf in flat.items() if is_lora(name)}
    base = {name: leaf for name, leaf in flat.items() if not is_lora(name)}
    return traverse_util.unflatten_dict(lora, sep="/"), traverse_util.unflatten_dict(base, sep="/")


def merge_lora(params: Any) -> dict[str, Any]:
    """Merge LoRA into the weights that it changes: W + A B.

    Args:
        params: tree of NumPy arrays, with LoRA or without.

    Returns:
        A tree of lazy arrays without LoRA; only one merged weight is in memory at a time.
    """
    lora, base = (traverse_util.flatten_dict(tree, sep="/") for tree in split_lora(params))
    merged = {name: _merged(name, np.asarray(array), lora) for name, array in base.items()}
    return traverse_util.unflatten_dict(merged, sep="/")


def _merged(name: str, array: np.ndarray, lora: Mapping[str, Any]) -> LazyArray:
    module, _, kind = name.rpartition("/")
    if kind != _KERNEL or f"{module}/{LORA_A}" not in lora:
        return LazyArray.of(array)
    pair = lora[f"{module}/{LORA_A}"], lora[f"{module}/{LORA_B}"]
    return LazyArray(array.shape, array.dtype, functools.partial(_sum, array, *pair))


def _sum(kernel: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute W + A B in double precision, so that the weight is rounded once."""
    change = np.tensordot(np.asarray(a, np.float64), np.asarray(b, np.float64), axes=1)
    return (kernel + change).astype(kernel.dtype)
