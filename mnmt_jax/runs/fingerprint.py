"""Fingerprints of arrays and trees: what a file system does to a checkpoint changes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mnmt_jax.distributed.sharding import settle


def tree_fingerprint(tree: Any) -> int:
    """Returns 32 bits that change with any single bit of a tree's arrays; the same on any mesh."""
    hashes: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        found = settle(array_fingerprint(leaf))
        # A host array is copied to a device: waiting here keeps that to one copy at a time.
        hashes[path_name(path)] = int(found) if isinstance(leaf, np.ndarray) else found
    return combine_fingerprints(hashes)


def path_name(path: Any) -> str:
    """Returns the keys of a leaf joined by slashes, e.g. `layer_0/mlp/wi/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def combine_fingerprints(hashes: Mapping[str, Any]) -> int:
    """Returns a tree's fingerprint from those of its arrays by path."""
    total = 0
    for _, found in sorted(hashes.items()):
        total = (total * 31 + int(found)) % (1 << 32)
    return total


@jax.jit
def array_fingerprint(array: Array) -> Array:
    """Returns 32 bits that change with any single bit of an array."""
    bits = jnp.dtype(array.dtype).itemsize * 8
    words = jax.lax.bitcast_convert_type(array, jnp.dtype(f"uint{bits}")).astype(jnp.uint32)
    # Odd weights by position: each word's contribution is a bijection modulo 2^32.
    weights = jnp.ones(array.shape, jnp.uint32)
    for axis in range(array.ndim):
        counts = jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis)
        weights = weights + counts * jnp.uint32(2 * (0x4F1BBCDC >> axis))
    return (words * weights).sum(dtype=jnp.uint32)
