"""Fingerprints of arrays and trees: what a file system does to a checkpoint changes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mnmt_jax.distributed.sharding import wait_on_cpu

_WORDS = 1 << 18  # that are added up at a time: a megabyte, which stays near the processor
_EVEN = 2 * (0x4F1BBCDC >> np.arange(32))  # by axis


def tree_fingerprint(tree: Any) -> int:
    """Returns 32 bits that change with any single bit of a tree's arrays; the same on any mesh."""
    found = {
        param_path(path): array_fingerprint(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    return combine_fingerprints(found)


def param_path(path: Any) -> str:
    """Returns the keys of a leaf joined by slashes, e.g. `layer_0/mlp/wi/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def combine_fingerprints(hashes: Mapping[str, Any]) -> int:
    """Returns a tree's fingerprint from those of its arrays by path."""
    total = 0
    for _, found in sorted(hashes.items()):
        total = (total * 31 + int(found)) % (1 << 32)
    return total


def array_fingerprint(array: Any) -> Any:
    """Returns 32 bits that change with any single bit of an array, as something that `int` takes.

    Each word counts as often as its place says: an odd number of times, 1 and an even number for
    each axis, so its contribution is a bijection modulo 2^32.

    Args:
        array: of NumPy or JAX; what is on accelerators, or in part in other processes, is read
            there.
    """
    on_devices = isinstance(array, jax.Array) and (
        not array.is_fully_addressable or next(iter(array.devices())).platform != "cpu"
    )
    return wait_on_cpu(_of_devices(array)) if on_devices else _of_host(np.asarray(array))


def _of_host(array: np.ndarray) -> int:
    """Sums what the host has where it lies: XLA for CPUs writes all words, weighted, before."""
    words = array.view(f"uint{array.itemsize * 8}")
    by_place, axis = 0, 0
    while words.ndim:
        # An axis is counted in the sums over the others; what is left are sums over it.
        own, rest = np.empty(len(words), np.uint32), np.zeros(words.shape[1:], np.uint32)
        rows = max(_WORDS // max(rest.size, 1), 1)
        for start in range(0, len(words), rows):
            part = words[start : start + rows].astype(np.uint32, copy=False)
            part.reshape(len(part), -1).sum(1, np.uint32, own[start : start + rows])
            rest += part.sum(0, np.uint32)
        often = np.arange(len(own), dtype=np.uint32) * np.uint32(_EVEN[axis])
        by_place += int((own * often).sum(dtype=np.uint32))
        words, axis = rest, axis + 1
    return (int(words) + by_place) % (1 << 32)


@jax.jit
def _of_devices(array: Array) -> Array:
    bits = jnp.dtype(array.dtype).itemsize * 8
    words = jax.lax.bitcast_convert_type(array, jnp.dtype(f"uint{bits}")).astype(jnp.uint32)
    weights = jnp.ones(array.shape, jnp.uint32)
    for axis in range(array.ndim):
        counts = jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis)
        weights = weights + counts * jnp.uint32(_EVEN[axis])
    return (words * weights).sum(dtype=jnp.uint32)
