"""A toy language model with random logits for every history, as a step function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mnmt_jax.decoding.search import Hypotheses, Request

STATES = 4096
_FACTOR = 613


def make_tables(
    seed: int, batch: int, vocab: int, sharpness: float = 2.0, eos: float = 0.0
) -> np.ndarray:
    """Draw logits [batch, STATES, vocab]: one row per hashed history; `eos` is added to eos."""
    tables = sharpness * np.random.default_rng(seed).standard_normal((batch, STATES, vocab))
    tables[:, :, 1] += eos
    return tables.astype(np.float32)


def make_cache(tables: np.ndarray, beam: int) -> dict[str, jax.Array]:
    """Return the cache before the first token."""
    return {
        "tables": jnp.asarray(tables),
        "history": jnp.zeros((tables.shape[0], beam), jnp.int32),
    }


def step(tokens: jax.Array, cache: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Look up the logits of each hypothesis's history."""
    history = (cache["history"] * _FACTOR + tokens + 1) % STATES
    logits = jnp.take_along_axis(cache["tables"], history[:, :, None], axis=1)
    return logits, {**cache, "history": history}


def reorder(cache: dict[str, jax.Array], beam_indices: jax.Array) -> dict[str, jax.Array]:
    """Let beam w continue hypothesis `beam_indices[:, w]`."""
    return {**cache, "history": jnp.take_along_axis(cache["history"], beam_indices, axis=1)}


def make_request(
    max_length: Sequence[int], prefix: Sequence[int] = (1,), max_steps: int | None = None
) -> Request:
    """Return a request for every row, all with the same prefix."""
    rows = len(max_length)
    return Request(
        prefix=jnp.tile(jnp.asarray(prefix, jnp.int32)[None], (rows, 1)),
        max_length=jnp.asarray(max_length, jnp.int32),
        active=jnp.ones((rows,), bool),
        max_steps=max_steps or max(max_length) + 1,
    )


def log_probs_of(
    table: np.ndarray, prefix: Sequence[int] = (1,)
) -> Callable[[Sequence[int]], np.ndarray]:
    """Return the same model for one sentence in plain Python."""

    def log_probs(tokens: Sequence[int]) -> np.ndarray:
        history = 0
        for token in [*prefix, *tokens]:
            history = (history * _FACTOR + token + 1) % STATES
        logits = table[history]
        shifted = logits - logits.max()
        return shifted - np.log(np.exp(shifted).sum(dtype=np.float32))

    return log_probs


def assert_same_hypotheses(actual: Hypotheses, expected: Hypotheses) -> None:
    """Assert that two results of a search are equal bit for bit."""
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
