"""Contrastive decoding: penalises continuations that are also probable for other inputs.

A hallucination has about the same probability for any source, and a translation into the wrong
language is what the model would output for that target language. So every hypothesis is scored
under several inputs at once: its own, and

- the sources of other lines (source contrast), or
- its own source with other target languages (language contrast).

The score of a token is

    log(p(token | own) - sum over contrasts of weight * p(token | contrast)),

whose sum over tokens replaces the log-probability in search and in scores.

Source: Sennrich, Vamvas, Mohammadshahi, "Mitigating Hallucinations and Off-target Machine
Translation with Source-Contrastive and Language-Contrastive Decoding", EACL 2024 (arXiv
2309.07098), both objectives together, and their released code (ZurichNLP/ContraDecode). Theirs:
probabilities are subtracted, not their logarithms; a token whose difference is not positive is
excluded; the weight of source contrast is divided among its segments, that of language contrast
applies to each language; the target language and repeated languages are left out; forced tags are
not contrasted; weights 0.7 and 0.1, a beam of 5. Ours: the choice of lines
(`draw_contrast_sources`; they shuffle the file), and `EXCLUDED_PROB_SCALE`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mnmt_jax.decoding.search_arrays import AnyArray
from mnmt_jax.vocabulary.normalization import is_blank

EXCLUDED_PROB_SCALE = 1e-6
"""Factor on token probabilities where the contrasts exclude all allowed tokens.

This happens at the maximum length, where only eos is allowed. The authors' code leaves such a
hypothesis at -inf; here it stays, far below others.
"""


@flax.struct.dataclass
class Contrast:
    """Further inputs of each sentence that its own input is contrasted with.

    Attributes:
        prefix: int32 [batch, contrasts, prefix], prefix of each input, in place of
            `Request.prefix`.
        weights: float32 [batch, contrasts], weights of their probabilities; 0 for unused inputs.
    """

    prefix: Int[AnyArray, "batch contrasts prefix"]
    weights: Float[AnyArray, "batch contrasts"]


def contrast_scores(
    log_probs: Float[Array, "batch inputs beam vocab"], weights: Float[AnyArray, "batch contrasts"]
) -> Float[Array, "batch beam vocab"]:
    """Compute log(p - sum of weight * contrast's p), -inf where the difference is not positive.

    Args:
        log_probs: float32, of the sentence's own input first, then of the contrasts.
        weights: weight of each contrast; with zeros the result is the own log-probabilities, bit
            for bit.
    """
    own_log_probs, others = log_probs[:, 0], log_probs[:, 1:]
    scale = jnp.asarray(weights)[:, :, None, None]
    # Relative to p; if p is so small that the ratio overflows, the token is excluded.
    multiples = jnp.where(scale > 0, scale * jnp.exp(others - own_log_probs[:, None]), 0.0)
    penalty = jnp.sum(multiples, axis=1)
    return own_log_probs + jnp.where(penalty >= 1.0, -jnp.inf, jnp.log1p(-penalty))


def draw_contrast_sources(
    texts: Sequence[tuple[int, str, str]], count: int, seed: int
) -> list[tuple[str, ...]]:
    """Draw sources of other lines for each line, to contrast its source with.

    Args:
        texts: number, source language and text of each line of a window.
        count: number of sources per line.
        seed: seed of the draw.

    Returns:
        Distinct texts of the same language that differ from the line's own and are not blank;
        fewer if there are not enough, and none for a blank line. They depend on the seed, the
        line's number and the texts of its language in `texts`.
    """
    pools: dict[str, dict[str, None]] = {}
    for _, language, text in texts:
        if not is_blank(text):
            pools.setdefault(language, {})[text] = None
    lists = {language: list(pool) for language, pool in pools.items()}
    drawn = []
    for number, language, text in texts:
        pool = [] if is_blank(text) else lists.get(language, [])
        candidates = random.Random(f"{seed} {number}").sample(pool, min(count + 1, len(pool)))
        drawn.append(tuple(other for other in candidates if other != text)[:count])
    return drawn


def language_contrast_weights(
    languages: Sequence[str], weight: float, *, source_lang: str, target_lang: str
) -> list[tuple[str, float]]:
    """Return the languages of language contrast with their weights.

    Args:
        languages: codes, and `source` for the language of the line.
        weight: weight of each language.
        source_lang: source language of the line.
        target_lang: target language of the line; it and repeated languages have weight 0.
    """
    seen, weights = {target_lang}, []
    for name in languages:
        code = source_lang if name == "source" else name
        weights.append((code, 0.0 if code in seen else weight))
        seen.add(code)
    return weights
