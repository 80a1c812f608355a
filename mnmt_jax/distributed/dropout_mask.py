"""What dropout drops, and the random bits that decide it.

In a training step on TPU the bits of JAX's own generator, twenty rounds for every element, cost
more than the matrix products (docs/performance.md). What dropout needs of them is little: fair,
unlike each other at any two places, and the same on every mesh: a hash gives that. Where keys are
JAX's `rbg` (`JAX_DEFAULT_PRNG_IMPL=rbg`), the device's own generator gives the bits, and on another
mesh they are others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.distributed.sharding import first_row

MULTIPLIERS = 0x7FEB352D, 0x846CA68B
"""Of the hash; a program that has the first draws by it."""
_INVARIANT = "threefry2x32"  # keys whose bits JAX promises on every mesh


class DropoutMask(NamedTuple):
    """One dropout: which elements of an array of some shape it drops is drawn.

    Attributes:
        rate: of elements dropped.
        rng: the key; None if nothing is dropped.
    """

    rate: float = 0.0
    rng: Array | None = None

    def __call__(self, states: Float[Array, "*b"]) -> Float[Array, "*b"]:
        """Returns the states that are left."""
        if self.rng is None:
            return states
        draw = keep_by_device if self.by_device else keep_by_hash
        scaled = states / jnp.asarray(1 - self.rate, states.dtype)
        keep = draw(self.rng, 1 - self.rate, states.shape)
        return jnp.where(keep, scaled, jnp.zeros((), states.dtype))

    @property
    def by_device(self) -> bool:
        """Whether the generator of the key decides, and not the hash."""
        return self.rng is not None and str(jax.random.key_impl(self.rng)) != _INVARIANT


def keep_by_hash(rng: Array, share: float, shape: Sequence[int]) -> Bool[Array, "*shape"]:
    """Draws by hashing an element's place with the key: a few instructions an element.

    The same on every mesh: an element's bits follow from its place in the whole array. Two rows
    meet only through their hashed numbers, so none is a shifted copy of another.

    Source of the hash: Wellons's search for 32-bit hashes by bias ("lowbias32").
    """
    keys = hashed_words(rng)
    row = jnp.zeros((1,) * len(shape), jnp.uint32)
    for axis, size in enumerate(shape[:-1]):  # each partitioned by itself, whatever the mesh
        row = row * jnp.uint32(size) + _places(shape, axis)
        if axis == 0 and (first := first_row(size)) is not None:
            row = row + first.astype(jnp.uint32)
    column = _places(shape, len(shape) - 1)
    return kept_at((keys[0], keys[-1]), row, column, share)


def hashed_words(rng: Array) -> list[Int[Array, ""]]:
    """Returns the words of a key as `keep_by_hash` takes them: row and column meet one each."""
    return [mixed(word) for word in jax.random.key_data(rng).reshape(-1)]


def kept_at(
    words: tuple[Array, Array], row: Int[Array, "*b"], column: Int[Array, "*b"], share: float
) -> Bool[Array, "*b"]:
    """Draws for elements by their places, which broadcast to each other.

    Args:
        words: hashed, for rows and columns.
        row: place of an element's row in the whole array, uint32.
        column: place in the row, uint32.
        share: of the elements kept.
    """
    bits = mixed(mixed(row ^ words[0]) ^ mixed(column ^ words[1]))
    return bits < jnp.uint32(min(round(share * 2**32), 2**32 - 1))


def keep_by_device(rng: Array, share: float, shape: Sequence[int]) -> Bool[Array, "*shape"]:
    """Draws by the generator of the key, two elements a word.

    With `rbg`, the device's own: the bits may depend on the mesh and on XLA's version.
    """
    level = min(round(share * 2**16), 2**16 - 1)
    if (first := first_row(shape[0])) is not None:
        rng = jax.random.fold_in(rng, first)
    return jax.random.bits(rng, shape, jnp.uint16) < jnp.uint16(level)


def _places(shape: Sequence[int], axis: int) -> Int[Array, "*b"]:
    """Returns the place of each element along an axis, with the other axes of length 1."""
    own = tuple(size if i == axis else 1 for i, size in enumerate(shape))
    return jax.lax.broadcasted_iota(jnp.uint32, own, axis)


def mixed(words: Int[Array, "*b"]) -> Int[Array, "*b"]:
    """Hashes uint32 words, one to one."""
    for shift, multiplier in zip((16, 15), MULTIPLIERS, strict=True):
        words = (words ^ (words >> shift)) * jnp.uint32(multiplier)
    return words ^ (words >> 16)
