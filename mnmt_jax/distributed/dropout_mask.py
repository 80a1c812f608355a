"""Mesh-independent dropout masks computed from a hash.

In a training step on TPU, JAX's default generator with twenty rounds per element costs more than
the matrix products (docs/performance.md). Dropout only needs bits that are unbiased, independent
between elements, and the same on every mesh; a hash provides them. With `rbg` keys
(`JAX_DEFAULT_PRNG_IMPL=rbg`) the device's generator is used instead, and the bits depend on the
mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.distributed.sharding import first_row

MULTIPLIERS = 0x7FEB352D, 0x846CA68B
"""Constants of the hash; a compiled program that contains the first one uses the hash."""
_INVARIANT = "threefry2x32"  # key type whose bits do not depend on the mesh


class DropoutMask(NamedTuple):
    """The dropout of one array, of any shape: its rate and its key.

    Attributes:
        rate: of elements dropped.
        rng: the key; None if nothing is dropped.
    """

    rate: float = 0.0
    rng: Array | None = None

    def __call__(self, states: Float[Array, "*b"]) -> Float[Array, "*b"]:
        """Return the states after dropout."""
        if self.rng is None:
            return states
        draw = keep_by_device if self.by_device else keep_by_hash
        scaled = states / jnp.asarray(1 - self.rate, states.dtype)
        keep = draw(self.rng, 1 - self.rate, states.shape)
        return jnp.where(keep, scaled, jnp.zeros((), states.dtype))

    @property
    def by_device(self) -> bool:
        """Whether the device's generator draws the mask instead of the hash."""
        return self.rng is not None and str(jax.random.key_impl(self.rng)) != _INVARIANT


def keep_by_hash(rng: Array, keep_prob: float, shape: Sequence[int]) -> Bool[Array, "*shape"]:
    """Draw a mask by hashing each element's index with the key: a few instructions per element.

    The mask is the same on every mesh, because an element's bits depend on its index in the whole
    array. Rows and columns are hashed before they are combined, so no row is a shifted copy of
    another.

    Source of the hash: Wellons's search for 32-bit hashes by bias ("lowbias32").
    """
    keys = hash_key_words(rng)
    row = jnp.zeros((1,) * len(shape), jnp.uint32)
    for axis, size in enumerate(shape[:-1]):  # each iota is partitioned independently of the mesh
        row = row * jnp.uint32(size) + _indices(shape, axis)
        if axis == 0 and (offset := first_row(size)) is not None:
            row = row + offset.astype(jnp.uint32)
    column = _indices(shape, len(shape) - 1)
    return keep_at_indices((keys[0], keys[-1]), row, column, keep_prob)


def hash_key_words(rng: Array) -> list[Int[Array, ""]]:
    """Return the hashed words of a key; `keep_by_hash` uses one for rows and one for columns."""
    return [mix32(word) for word in jax.random.key_data(rng).reshape(-1)]


def keep_at_indices(
    words: tuple[Array, Array], row: Int[Array, "*b"], column: Int[Array, "*b"], keep_prob: float
) -> Bool[Array, "*b"]:
    """Draw a mask for elements by their indices, which broadcast to each other.

    Args:
        words: hashed key words, for rows and columns.
        row: index of an element's row in the whole array, uint32.
        column: index in the row, uint32.
        keep_prob: fraction of the elements kept.
    """
    bits = mix32(mix32(row ^ words[0]) ^ mix32(column ^ words[1]))
    return bits < jnp.uint32(min(round(keep_prob * 2**32), 2**32 - 1))


def keep_by_device(rng: Array, keep_prob: float, shape: Sequence[int]) -> Bool[Array, "*shape"]:
    """Draw a mask with the generator of the key, two elements per word.

    With `rbg` keys this is the device's generator: the bits may depend on the mesh and XLA's
    version.
    """
    threshold = min(round(keep_prob * 2**16), 2**16 - 1)
    if (offset := first_row(shape[0])) is not None:
        rng = jax.random.fold_in(rng, offset)
    return jax.random.bits(rng, shape, jnp.uint16) < jnp.uint16(threshold)


def _indices(shape: Sequence[int], axis: int) -> Int[Array, "*b"]:
    """Return the index of each element along an axis, with the other axes of length 1."""
    iota_shape = tuple(size if i == axis else 1 for i, size in enumerate(shape))
    return jax.lax.broadcasted_iota(jnp.uint32, iota_shape, axis)


def mix32(words: Int[Array, "*b"]) -> Int[Array, "*b"]:
    """Hash uint32 words bijectively."""
    for shift, multiplier in zip((16, 15), MULTIPLIERS, strict=True):
        words = (words ^ (words >> shift)) * jnp.uint32(multiplier)
    return words ^ (words >> 16)
