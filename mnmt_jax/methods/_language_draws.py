"""Random draws of another language for each sentence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int


def draw(
    rng: Array, languages: Int[Array, " rows"], pool: Int[np.ndarray, " languages"], share: float
) -> tuple[Int[Array, " rows"], Bool[Array, " rows"]]:
    """Draw a language for each row, uniformly among those other than its own.

    Args:
        rng: key of the micro-batch; a row's draw depends on it and on the row's number.
        languages: language of each row, an index.
        pool: languages to draw from.
        share: probability that a row is chosen.

    Returns:
        The languages, and the mask of chosen rows: with probability `share`, if another language
        exists.
    """
    count = len(pool)
    is_own = languages[:, None] == jnp.asarray(pool)[None, :]
    own_index = jnp.where(is_own.any(axis=1), jnp.argmax(is_own, axis=1), count)
    alternatives = count - is_own.any(axis=1).astype(jnp.int32)

    def draw_row(row: Array, alternatives: Array) -> tuple[Array, Array]:
        language, chance = jax.random.split(jax.random.fold_in(rng, row))
        number = jax.random.randint(language, (), 0, jnp.maximum(alternatives, 1))
        return number, jax.random.uniform(chance) < share

    number, is_chosen = jax.vmap(draw_row)(jnp.arange(len(languages)), alternatives)
    number = jnp.minimum(jnp.where(number < own_index, number, number + 1), count - 1)
    return jnp.asarray(pool)[number], is_chosen & (alternatives > 0)
