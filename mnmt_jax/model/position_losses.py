"""Loss terms of position disentangling (TPDM), for packed sentences.

C[i, k] is the cosine of the critic's guess from token i's content and token k's position vector;
only tokens of one sentence are paired. Everything is computed in at least float32 and summed over
tokens.

Source: Chen, Zhang, Fu 2023 (TPDM), equations 1 and 6 to 12. Where these cannot be meant
literally, docs/methods.md documents the reading: softmaxes have the exp that equations 6 and 9
lack.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.model.vectors import at_least_float32, unit_vectors

Tokens = Float[Array, "rows length"]
Vectors = Float[Array, "rows length embed"]
Ids = Int[Array, "rows length"]

_MASKED_LOGIT = -1e9  # finite, so that gradients at padding are finite too


def critic_loss(guesses: Vectors, positions: Vectors, ids: Ids, temperature: float) -> Array:
    """Compute -sum_i log softmax_k(C[i, k] / t) at k = i: the loss that the critic minimises.

    Args:
        guesses: of the critic, from contents.
        positions: of the same tokens.
        ids: segments; 0 is padding.
        temperature: t.

    Source: equations 6 and 8.
    """
    log_probs = _log_probs(guesses, positions, ids, temperature)
    return -jnp.where(ids != 0, jnp.diagonal(log_probs, axis1=1, axis2=2), 0.0).sum()


def chance_loss(ids: Ids) -> Array:
    """Compute the critic's loss at chance level: the sum over tokens of ln N, in nats.

    Args:
        ids: segments; 0 is padding. N is the number of tokens of a token's sentence.
    """
    return jnp.where(ids != 0, jnp.log(_sentence_lengths(ids)), 0.0).sum()


def information(
    guesses: Vectors,
    positions: Vectors,
    ids: Ids,
    temperature: float,
    *,
    clip: bool = False,
    reduction: Literal["sum", "mean"] = "sum",
) -> Tokens:
    """Bound the mutual information of each token's content and position, in nats.

    I_j = log p(p_j | h_j) - mean_i log p(p_j | h_i), over the tokens i of the sentence; 0 at
    padding. It may be negative. The mean over positions for one content, CLUB's order, has the same
    sum over a sentence, but not the same value per token.

    Args:
        guesses: of the critic, from contents.
        positions: of the same tokens.
        ids: segments; 0 is padding.
        temperature: of the critic's softmax.
        clip: replace log p(p_j | h_j) by max(log p(p_j | h_j), -ln N), with N tokens in the
            sentence. The sum over a sentence is then at least 0, and 0 only where the critic gives
            every position the same probability: guesses worse than chance do not lower the bound.
        reduction: `sum` weighs every token by 1, `mean` by 1 / N, like the factor 1 / M of equation
            1.

    Source: equations 1 and 7; the clipping is ours.
    """
    log_probs = _log_probs(guesses, positions, ids, temperature)
    same_sentence, lengths = _same_sentence(ids), _sentence_lengths(ids, log_probs.dtype)
    means = jnp.where(same_sentence, log_probs, 0.0).sum(axis=1) / lengths
    diagonal = jnp.diagonal(log_probs, axis1=1, axis2=2)
    diagonal = jnp.maximum(diagonal, -jnp.log(lengths)) if clip else diagonal
    bound = diagonal - means
    return jnp.where(ids != 0, bound / lengths if reduction == "mean" else bound, 0.0)


def alignment(
    positions: Vectors, ids: Ids, position_ids: Ids, temperature: float, *, anchors: Array
) -> Array:
    """Compute -sum_j log softmax_k(cos(p_j, anchor_k) / t) at k = the position index of token j.

    Args:
        positions: of tokens.
        ids: segments; 0 is padding.
        position_ids: position index of tokens in their sentence, from 0.
        temperature: t.
        anchors: [positions, embed], one per position index; k ranges over those of the sentence.

    Source: equation 9.
    """
    unit_positions, unit_anchors = unit_vectors(positions), unit_vectors(anchors)
    cosines = jnp.einsum("rle,ke->rlk", unit_positions, unit_anchors, precision="highest")
    lengths = _same_sentence(ids).sum(axis=-1)
    in_sentence = jnp.arange(anchors.shape[0])[None, None] < lengths[..., None]
    log_probs = jax.nn.log_softmax(
        jnp.where(in_sentence, cosines / temperature, _MASKED_LOGIT), axis=-1
    )
    token_log_probs = jnp.take_along_axis(log_probs, position_ids[..., None], axis=-1)[..., 0]
    return -jnp.where(ids != 0, token_log_probs, 0.0).sum()


def mean_anchors(
    positions: Vectors, ids: Ids, position_ids: Ids
) -> Float[Array, "positions embed"]:
    """Return the mean position vector at each position index over sentences; 0 where none has it.

    Args:
        positions: of tokens.
        ids: segments; 0 is padding.
        position_ids: position index of tokens in their sentence, from 0.

    Source: equation 9, whose 1 / b assumes sentences of equal length.
    """
    dtype = at_least_float32(positions.dtype)
    weights = jax.nn.one_hot(jnp.where(ids != 0, position_ids, -1), ids.shape[1], dtype=dtype)
    sums = jnp.einsum("rlk,rle->ke", weights, positions.astype(dtype), precision="highest")
    return sums / jnp.maximum(weights.sum(axis=(0, 1)), 1.0)[:, None]


def relaxed_gates(logits: Tokens, uniform: Tokens, temperature: float) -> Tokens:
    """Draw gates between 0 and 1 (binary concrete): sigmoid((e + log u - log(1 - u)) / t).

    Args:
        logits: e.
        uniform: u, in (0, 1).
        temperature: t.

    Source: section 3.5, after Paranjape et al. 2020; Maddison et al. 2017, equation 16.
    """
    return jax.nn.sigmoid((logits + jnp.log(uniform) - jnp.log1p(-uniform)) / temperature)


def gate_divergence(logits: Tokens, prior: float) -> Tokens:
    """Compute KL(Bernoulli(sigmoid(e)) || Bernoulli(prior)) of each token, in nats.

    Args:
        logits: e.
        prior: in (0, 1).

    Source: the "additional training objective" of section 5.1, which the paper does not write out.
    """
    log_open, log_closed = jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)
    open_probability = jax.nn.sigmoid(logits)
    return open_probability * (log_open - jnp.log(prior)) + (1 - open_probability) * (
        log_closed - jnp.log1p(-prior)
    )


def _log_probs(
    guesses: Vectors, positions: Vectors, ids: Ids, temperature: float
) -> Float[Array, "rows length length"]:
    """Return log p(p_k | h_i) at [i, k] where both tokens are in one sentence."""
    cosines = jnp.einsum(
        "rie,rke->rik", unit_vectors(guesses), unit_vectors(positions), precision="highest"
    )
    return jax.nn.log_softmax(
        jnp.where(_same_sentence(ids), cosines / temperature, _MASKED_LOGIT), axis=-1
    )


def _sentence_lengths(ids: Ids, dtype: DTypeLike = jnp.float32) -> Tokens:
    """Return the number of tokens of each token's sentence, at least 1."""
    return jnp.maximum(_same_sentence(ids).sum(axis=-1), 1).astype(dtype)


def _same_sentence(ids: Ids) -> Bool[Array, "rows length length"]:
    """Return which pairs of tokens are in one sentence."""
    return (ids[:, :, None] == ids[:, None, :]) & (ids != 0)[:, :, None]
