"""Vectors of length one, of which cosines are products."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_SHORTEST = 1e-8  # a shorter vector counts as this long, as in PyTorch's cosine_similarity


def unit_vectors(states: Float[Array, "*b embed"]) -> Float[Array, "*b embed"]:
    """Returns vectors of length one, in float32 at least.

    Args:
        states: of any float type.
    """
    states = states.astype(precise(states.dtype))
    squares = (states * states).sum(axis=-1, keepdims=True)
    return states * jax.lax.rsqrt(jnp.maximum(squares, _SHORTEST**2))


def precise(dtype: jnp.dtype) -> jnp.dtype:
    """Returns the float type that terms are computed in: float32, or float64 of such."""
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)
