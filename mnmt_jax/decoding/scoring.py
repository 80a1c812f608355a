"""Scores of given translations, by the same log-probabilities and length rule as the search."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.decoding.search import log_normalizer
from mnmt_jax.errors import UserError
from mnmt_jax.model.network import Network


@dataclasses.dataclass(frozen=True)
class Score:
    """How probable a text is.

    Attributes:
        log_prob: the sum over its tokens with eos, in nats.
        tokens: their number.
    """

    log_prob: float
    tokens: int

    def normalized(self, length_penalty: float) -> float:
        """Returns what a search ranks by: the sum / tokens ** length_penalty."""
        return self.log_prob / self.tokens**length_penalty


def perplexity(scores: Iterable[Score]) -> float:
    """Computes exp(-(mean log-probability per token)) of texts.

    Raises:
        UserError: if there are none.
    """
    found = list(scores)
    if not found:
        raise UserError("the input has no lines; a perplexity needs one")
    total = sum(each.log_prob for each in found)
    return perplexity_of(-total / sum(each.tokens for each in found))


def perplexity_of(nll: float) -> float:
    """Returns exp(nll), infinite where that is larger than a float."""
    with np.errstate(over="ignore"):
        return float(np.exp(nll))


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


@functools.partial(jax.jit, static_argnames=("model", "forced"))
def score_batch(
    params: Any,
    batch: dict[str, Array],
    *,
    model: Network,
    forced: int,
) -> Float[Array, " batch"]:
    """Sums the log-probabilities of the targets of a batch of one pair per row.

    Args:
        params: the model's parameters.
        batch: from `Converter.batch`.
        model: the model.
        forced: leading labels that a search would be given, not find.
    """
    logits: Any = model.apply({"params": params}, batch)
    scored = (batch["target_segment_ids"] != 0) & (batch["target_positions"] >= forced)
    return score_labels(logits, batch["target_labels"], scored, length_penalty=0.0)


@functools.partial(jax.jit, static_argnames="model")
def masked_log_probs(
    params: Any,
    batch: dict[str, Array],
    places: Int[Array, " batch"],
    tokens: Int[Array, " batch"],
    *,
    model: Network,
) -> Float[Array, " batch"]:
    """Computes the log-probability of one hidden token of each row.

    Args:
        params: the model's parameters.
        batch: of a model that fills masks, one text per row, in which the tokens are hidden.
        places: of the hidden tokens in their rows.
        tokens: what they are.
        model: the model.
    """
    logits: Any = model.apply({"params": params}, batch, at=places[:, None], method="logits")
    return score_labels(logits, tokens[:, None], jnp.ones_like(tokens, bool)[:, None])
