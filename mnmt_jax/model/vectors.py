"""Vectors of length one, of which cosines are products."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_SHORTEST = 1e-8  # a shorter vector counts as this long, as in PyTorch's cosine_similarity


def unit_vectors(states: Float[Array, "*b embed"]) -> Float[Array, "*b embed"]:
    """Returns float32 vectors of length one.

    Args:
        states: of any float type.
    """
    states = states.astype(jnp.float32)
    squares = (states * states).sum(axis=-1, keepdims=True)
    return states * jax.lax.rsqrt(jnp.maximum(squares, _SHORTEST**2))
