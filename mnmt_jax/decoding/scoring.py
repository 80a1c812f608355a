"""Scores of reference texts, by the log-probabilities and length rule of the search."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.decoding.search import log_normalizer
from mnmt_jax.errors import UserError, nan_output_error
from mnmt_jax.model.network import Network


@dataclasses.dataclass(frozen=True)
class Score:
    """Log-probability of a text.

    Attributes:
        log_prob: sum over its tokens with eos, in nats.
        tokens: number of tokens.
    """

    log_prob: float
    tokens: int

    def normalized(self, length_penalty: float) -> float:
        """Return the score by which a search ranks: log_prob / tokens ** length_penalty."""
        return self.log_prob / self.tokens**length_penalty


def perplexity(scores: Iterable[Score]) -> float:
    """Compute exp(-(mean log-probability per token)) of texts.

    Raises:
        UserError: if there are no scores, or one is not a number.
    """
    all_scores = list(scores)
    if not all_scores:
        raise UserError("the input has no lines, but a perplexity needs at least one")
    for number, score in enumerate(all_scores, start=1):
        if math.isnan(score.log_prob):
            raise nan_output_error(f"line {number}")
    total = sum(score.log_prob for score in all_scores)
    return perplexity_of(-total / sum(score.tokens for score in all_scores))


def perplexity_of(nll: float) -> float:
    """Return exp(nll), infinite if it exceeds the range of floats."""
    with np.errstate(over="ignore"):
        return float(np.exp(nll))


def score_labels(
    logits: Float[Array, "batch target vocab"],
    labels: Int[Array, "batch target"],
    scored: Bool[Array, "batch target"],
    *,
    length_penalty: float = 1.0,
) -> Float[Array, " batch"]:
    """Compute sum of log-probabilities / length ** length_penalty of each row's labels.

    Args:
        logits: logits under teacher forcing.
        labels: generated tokens with eos.
        scored: True at generated tokens; False at padding and at forced tokens.
        length_penalty: as in `BeamSearch`.

    Returns:
        float32 scores in nats; -inf for rows without scored tokens.
    """
    label_logits = jnp.take_along_axis(logits.astype(jnp.float32), labels[:, :, None], axis=2)[
        :, :, 0
    ]
    log_probs = jnp.where(scored, label_logits - log_normalizer(logits), 0.0)
    length = jnp.sum(scored, axis=1).astype(jnp.float32)
    scores = jnp.sum(log_probs, axis=1) / jnp.maximum(length, 1.0) ** length_penalty
    return jnp.where(length > 0, scores, -jnp.inf)


@functools.partial(jax.jit, static_argnames=("model", "forced"))
def score_batch(
    params: Any,
    batch: dict[str, Array],
    *,
    model: Network,
    forced: int,
) -> Float[Array, " batch"]:
    """Sum the log-probabilities of the targets of a batch of one pair per row.

    Args:
        params: parameters of the model.
        batch: batch from `Converter.batch`.
        model: the model.
        forced: number of leading labels that a search would not generate.
    """
    logits: Any = model.apply({"params": params}, batch)
    scored = (batch["target_segment_ids"] != 0) & (batch["target_positions"] >= forced)
    return score_labels(logits, batch["target_labels"], scored, length_penalty=0.0)


@functools.partial(jax.jit, static_argnames="model")
def masked_log_probs(
    params: Any,
    batch: dict[str, Array],
    positions: Int[Array, " batch"],
    tokens: Int[Array, " batch"],
    *,
    model: Network,
) -> Float[Array, " batch"]:
    """Compute the log-probability of one masked token of each row.

    Args:
        params: parameters of the model.
        batch: batch of a model that fills masks, one text per row, with masked tokens.
        positions: positions of the masked tokens in their rows.
        tokens: the original tokens.
        model: the model.
    """
    logits: Any = model.apply(
        {"params": params}, batch, target_indices=positions[:, None], method="logits"
    )
    return score_labels(logits, tokens[:, None], jnp.ones_like(tokens, bool)[:, None])
