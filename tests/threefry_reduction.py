"""Threefry as one reduction over its rounds, which XLA compiles faster than a loop.

JAX computes Threefry's twenty rounds in a loop on CPUs and unrolls them elsewhere. The unrolled
rounds of every key that is folded or split took a third of the time in which the tests' programs of
a training were compiled. Here the rounds are the rows of a table, and their instructions occur
once. The bits are the same: XLA's CPU compiler reduces rows in their order.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import mlir

_PARITY = np.uint32(0x1BD11BDA)
_WORD_BITS = np.uint32(32)
# Of each row. The first row starts from zeros and adds the counter.
_DISTANCES = np.array([0, *([13, 15, 26, 6, 17, 29, 16, 24] * 3)[:20]], np.uint32)
_ADDENDS = np.array([0, *(n * (r == 3) for n in range(1, 6) for r in range(4))], np.uint32)


def threefry(key: Any, other_key: Any, left: Any, right: Any) -> tuple[Any, Any]:
    """Return Threefry-2x32 of 20 rounds.

    Args:
        key: first half of the key, uint32; a scalar, or of a shape that broadcasts.
        other_key: second half.
        left: first half of the counter, uint32 of any shape.
        right: second half.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.
    """
    keys = (key, other_key, key ^ other_key ^ _PARITY)
    left, right = left + keys[0], right + keys[1]
    rows = (
        _rows(left, keys, 1),
        _rows(right, keys, 2) + _column(_ADDENDS, left.ndim),
        jnp.broadcast_to(_column(_DISTANCES, left.ndim), (len(_DISTANCES), *left.shape)),
    )
    return lax.reduce(rows, (np.uint32(0),) * 3, _round, (0,))[:2]


def _rows(start: Any, keys: tuple[Any, Any, Any], first: int) -> Any:
    """Return what each row adds to a word: the start, then a key after each fourth round."""
    none = jnp.zeros((3, *keys[0].shape), jnp.uint32)
    added = [part for n in range(5) for part in (none, keys[(first + n) % 3][None])]
    added = _column(lax.concatenate(added, 0), start.ndim)
    return lax.concatenate([start[None], jnp.broadcast_to(added, (20, *start.shape))], 0)


def _column(values: Any, ndim: int) -> Any:
    """Append axes of length 1 until `ndim` follow the first."""
    return values.reshape(values.shape + (1,) * (1 + ndim - values.ndim))


def _round(words: tuple[Any, Any, Any], row: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Do a round and add its row."""
    (left, right, _), (to_left, to_right, distance) = words, row
    left = left + right
    rotated = lax.shift_left(right, distance) | lax.shift_right_logical(
        right, _WORD_BITS - distance
    )
    return left + to_left, (left ^ rotated) + to_right, distance


def use() -> None:
    """Use this generator on the CPUs of this process."""
    mlir.register_lowering(
        jax.extend.random.threefry2x32_p,
        mlir.lower_fun(threefry, multiple_results=True),
        platform="cpu",
    )


use()
