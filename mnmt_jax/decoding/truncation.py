"""Truncation of the distribution of the next token before sampling.

Source: Holtzman et al., "The Curious Case of Neural Text Degeneration", ICLR 2020 (arXiv
1904.09751), for nucleus sampling (top_p); Hewitt, Manning, Liang, "Truncation Sampling as Language
Model Desmoothing", Findings of EMNLP 2022 (arXiv 2210.15191), equation 3, for epsilon sampling.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mnmt_jax.distributed.per_device import sharded_top_k


def truncate(
    logits: Float[Array, "batch beam vocab"], epsilon_cutoff: float, top_k: int, top_p: float
) -> tuple[Float[Array, "batch beam kept"], Int[Array, "batch beam kept"] | None]:
    """Restrict a distribution to its probable tokens; the most probable one always remains.

    Args:
        logits: logits after temperature.
        epsilon_cutoff: least probability of a token; applied first.
        top_k: number of tokens, at most the vocabulary's.
        top_p: probability of the smallest set of most probable tokens, after the others.

    Returns:
        Logits, -inf for tokens that are left out, and the tokens they belong to; None is all, in
        order.
    """
    if epsilon_cutoff:
        is_probable = jax.nn.softmax(logits, axis=-1) >= epsilon_cutoff
        is_best = logits == jnp.max(logits, axis=-1, keepdims=True)
        logits = jnp.where(is_probable | is_best, logits, -jnp.inf)
    if top_k == logits.shape[-1] and top_p >= 1.0:
        return logits, None
    logits, tokens = sharded_top_k(logits, top_k)
    mass = jax.nn.softmax(logits, axis=-1)
    mass_before = jnp.cumsum(mass, axis=-1) - mass
    is_first = jnp.arange(top_k)[None, None] == 0
    return jnp.where((mass_before < top_p) | is_first, logits, -jnp.inf), tokens
