"""Fingerprints of arrays and parameter trees, to detect damaged checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mnmt_jax.distributed.sharding import wait_on_cpu

_WORDS = 1 << 18  # summed at a time: a megabyte, which fits in the processor's cache
_EVEN = 2 * (0x4F1BBCDC >> np.arange(32))  # even factors, by axis


def tree_fingerprint(tree: Any) -> int:
    """Return 32 bits that change with any single bit of a tree's arrays, on any mesh."""
    hashes = {
        param_path(path): array_fingerprint(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    return combine_fingerprints(hashes)


def param_path(path: Any) -> str:
    """Return the keys of a leaf joined by slashes, e.g. `layer_0/mlp/wi/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def combine_fingerprints(hashes: Mapping[str, Any]) -> int:
    """Return a tree's fingerprint from the fingerprints of its arrays by path."""
    total = 0
    for _, fingerprint in sorted(hashes.items()):
        total = (total * 31 + int(fingerprint)) % (1 << 32)
    return total


def array_fingerprint(array: Any) -> Any:
    """Return 32 bits that change with any single bit of an array, convertible by `int`.

    The weight of each word depends on its index and is odd: 1 plus an even number for each axis. So
    its contribution is a bijection modulo 2^32.

    Args:
        array: a NumPy or JAX array. An array on accelerators, or partly in other processes, is
            read there.
    """
    on_devices = isinstance(array, jax.Array) and (
        not array.is_fully_addressable or next(iter(array.devices())).platform != "cpu"
    )
    return wait_on_cpu(_of_devices(array)) if on_devices else _of_host(np.asarray(array))


def _of_host(array: np.ndarray) -> int:
    """Sum words in the host's memory without a copy; XLA on CPUs would first write all products."""
    words = array.view(f"uint{array.itemsize * 8}")
    weighted_sum, axis = 0, 0
    while words.ndim:
        # An axis is weighted by sums over the other axes; the loop goes on with sums over it.
        axis_sums = np.empty(len(words), np.uint32)
        other_sums = np.zeros(words.shape[1:], np.uint32)
        rows = max(_WORDS // max(other_sums.size, 1), 1)
        for start in range(0, len(words), rows):
            block = words[start : start + rows].astype(np.uint32, copy=False)
            block.reshape(len(block), -1).sum(1, np.uint32, axis_sums[start : start + rows])
            other_sums += block.sum(0, np.uint32)
        factors = np.arange(len(axis_sums), dtype=np.uint32) * np.uint32(_EVEN[axis])
        weighted_sum += int((axis_sums * factors).sum(dtype=np.uint32))
        words, axis = other_sums, axis + 1
    return (int(words) + weighted_sum) % (1 << 32)


@jax.jit
def _of_devices(array: Array) -> Array:
    bits = jnp.dtype(array.dtype).itemsize * 8
    words = jax.lax.bitcast_convert_type(array, jnp.dtype(f"uint{bits}")).astype(jnp.uint32)
    weights = jnp.ones(array.shape, jnp.uint32)
    for axis in range(array.ndim):
        counts = jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis)
        weights = weights + counts * jnp.uint32(_EVEN[axis])
    return (words * weights).sum(dtype=jnp.uint32)
