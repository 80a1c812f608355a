"""Unrolled Threefry: XLA compiles one kernel faster than a loop.

JAX unrolls Threefry's twenty rounds for every platform but the CPU, since LLVM's optimisations take
long for such code. Tests do without those (conftest.py), and half the time that programs of the
first parameters took to compile was for such loops. The bits are the same.
"""

from __future__ import annotations

from typing import Any

import jax.extend.random
import jax.numpy as jnp
from jax.interpreters import mlir

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry(key: Any, other_key: Any, left: Any, right: Any) -> tuple[Any, Any]:
    """Return Threefry-2x32 of 20 rounds, unrolled.

    Args:
        key: first half of the key, uint32.
        other_key: second half.
        left: first half of the counter, uint32 of any shape.
        right: second half.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.
    """
    word = jnp.uint32
    keys = (key, other_key, key ^ other_key ^ word(_PARITY))
    left, right = left + keys[0], right + keys[1]
    for step in range(5):
        for distance in _ROTATIONS[step % 2]:
            left = left + right
            right = left ^ (right << word(distance) | right >> word(32 - distance))
        left = left + keys[(step + 1) % 3]
        right = right + keys[(step + 2) % 3] + word(step + 1)
    return left, right


def use() -> None:
    """Use the unrolled generator on the CPUs of this process."""
    mlir.register_lowering(
        jax.extend.random.threefry2x32_p,
        mlir.lower_fun(threefry, multiple_results=True),
        platform="cpu",
    )


use()
