"""Unit-normalised vectors for cosine similarity."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_MIN_NORM = 1e-8  # lower bound of the norm, as in PyTorch's cosine_similarity


def unit_vectors(states: Float[Array, "*b embed"]) -> Float[Array, "*b embed"]:
    """Return vectors of length one, in at least float32.

    Args:
        states: of any float type.
    """
    states = states.astype(at_least_float32(states.dtype))
    squares = (states * states).sum(axis=-1, keepdims=True)
    return states * jax.lax.rsqrt(jnp.maximum(squares, _MIN_NORM**2))


def at_least_float32(dtype: jnp.dtype) -> jnp.dtype:
    """Return the dtype for computing with `dtype`: float64 for float64, else float32."""
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)
