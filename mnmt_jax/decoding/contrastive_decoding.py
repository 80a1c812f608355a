"""Contrastive decoding: what is as probable of another input is held against a continuation.

A hallucination is about as probable whatever the source says, and a translation into the wrong
language is what the model would say if that language were asked for. So every hypothesis is read
under several inputs at once: its own, then

- the sources of other lines (source contrast), or
- its own source with other target languages (language contrast),

and a token's score is

    log(p(token | own) - sum over contrasts of weight * p(token | contrast)),

whose sum over tokens takes the place of the log-probability in search and in scores.

Source: Sennrich, Vamvas, Mohammadshahi, "Mitigating Hallucinations and Off-target Machine
Translation with Source-Contrastive and Language-Contrastive Decoding", EACL 2024 (arXiv
2309.07098), both objectives together, and their released code (ZurichNLP/ContraDecode). Theirs:
probabilities are subtracted, not their logarithms; a token whose difference is not positive is
excluded; the weight of source contrast is shared by its segments, that of language contrast is each
language's; the language wanted and a language named twice are left out; forced tags are not
contrasted; weights 0.7 and 0.1, a beam of 5. Ours: which lines are taken (`draw_contrast_sources`; they
shuffle the file), and `EXCLUDED_PROB_SCALE`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import flax.struct
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

AnyArray = Array | np.ndarray

EXCLUDED_PROB_SCALE = 1e-6
"""What is left of each token's probability where the contrasts exclude all that may follow.

So at the longest length, where only eos may follow. The authors' code leaves such a hypothesis at
-inf; here it stays, far below others.
"""


@flax.struct.dataclass
class Contrast:
    """Further inputs of each sentence, whose probabilities are held against its own.

    Attributes:
        prefix: int32 [batch, contrasts, prefix], what each is given in the place of
            `Request.prefix`.
        weights: float32 [batch, contrasts], of their probabilities; 0 where there is none.
    """

    prefix: Int[AnyArray, "batch contrasts prefix"]
    weights: Float[AnyArray, "batch contrasts"]


def contrast_scores(
    log_probs: Float[Array, "batch inputs beam vocab"], weights: Float[AnyArray, "batch contrasts"]
) -> Float[Array, "batch beam vocab"]:
    """Computes log(p - sum of weight * contrast's p), -inf where the difference is not positive.

    Args:
        log_probs: float32, of the own input first, then of the contrasts.
        weights: of each contrast; with zeros the result is the own log-probabilities, bit for bit.
    """
    own, others = log_probs[:, 0], log_probs[:, 1:]
    scale = jnp.asarray(weights)[:, :, None, None]
    # As multiples of p; where p is so small that the multiple overflows, the token is excluded.
    multiples = jnp.where(scale > 0, scale * jnp.exp(others - own[:, None]), 0.0)
    against = jnp.sum(multiples, axis=1)
    return own + jnp.where(against >= 1.0, -jnp.inf, jnp.log1p(-against))


def draw_contrast_sources(
    texts: Sequence[tuple[int, str, str]], count: int, seed: int
) -> list[tuple[str, ...]]:
    """Draws for each line others that its source is contrasted with.

    Args:
        texts: number, source language and text of each line that may be drawn: those of a window.
        count: how many to draw.
        seed: of the draw.

    Returns:
        Texts of the same language that differ from the line's own and are not blank, all different;
        fewer where there are fewer, and none for a blank line. They follow from the seed, the
        line's number and the texts of `texts` in its language.
    """
    pools: dict[str, dict[str, None]] = {}
    for _, language, text in texts:
        if text.strip():
            pools.setdefault(language, {})[text] = None
    lists = {language: list(pool) for language, pool in pools.items()}
    drawn = []
    for number, language, text in texts:
        pool = lists.get(language, []) if text.strip() else []
        some = random.Random(f"{seed} {number}").sample(pool, min(count + 1, len(pool)))
        drawn.append(tuple(other for other in some if other != text)[:count])
    return drawn


def language_contrast_weights(
    languages: Sequence[str], weight: float, *, source_lang: str, target_lang: str
) -> list[tuple[str, float]]:
    """Returns the languages of language contrast with their weights.

    Args:
        languages: codes, and `source` for the language of the line.
        weight: of each.
        source_lang: of the line.
        target_lang: of the line; it and what is named twice have weight 0.
    """
    seen, found = {target_lang}, []
    for name in languages:
        code = source_lang if name == "source" else name
        found.append((code, 0.0 if code in seen else weight))
        seen.add(code)
    return found
