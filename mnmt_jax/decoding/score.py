"""Scores of given translations, by the same log-probabilities and length rule as the search."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.decoding.search import log_normalizer
from mnmt_jax.model.network import Network


def score_labels(
    logits: Float[Array, "batch target vocab"],
    labels: Int[Array, "batch target"],
    scored: Bool[Array, "batch target"],
    *,
    length_penalty: float = 1.0,
) -> Float[Array, " batch"]:
    """Computes sum of log-probabilities / length ** length_penalty of each row's labels.

    Args:
        logits: under teacher forcing.
        labels: generated tokens with eos.
        scored: True at generated tokens; False at padding and at forced tokens.
        length_penalty: as in `BeamSearch`.

    Returns:
        float32 scores in nats; -inf for rows in which nothing is scored.
    """
    chosen = jnp.take_along_axis(logits.astype(jnp.float32), labels[:, :, None], axis=2)[:, :, 0]
    log_probs = jnp.where(scored, chosen - log_normalizer(logits), 0.0)
    length = jnp.sum(scored, axis=1).astype(jnp.float32)
    scores = jnp.sum(log_probs, axis=1) / jnp.maximum(length, 1.0) ** length_penalty
    return jnp.where(length > 0, scores, -jnp.inf)


@functools.partial(jax.jit, static_argnames=("model", "forced", "length_penalty"))
def score_batch(
    params: Any,
    batch: dict[str, Array],
    *,
    model: Network,
    forced: int,
    length_penalty: float = 1.0,
) -> Float[Array, " batch"]:
    """Scores the targets of a batch of one pair per row.

    Args:
        params: the model's parameters.
        batch: from `Converter.batch`.
        model: the model.
        forced: leading labels that a search would be given, not find.
        length_penalty: as in `BeamSearch`.
    """
    logits: Any = model.apply({"params": params}, batch)
    scored = (batch["target_segment_ids"] != 0) & (batch["target_positions"] >= forced)
    return score_labels(logits, batch["target_labels"], scored, length_penalty=length_penalty)
