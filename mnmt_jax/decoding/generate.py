"""Search with a model as one program, from the inputs of sentences to their hypotheses."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from mnmt_jax.decoding.contrastive_decoding import Contrast
from mnmt_jax.decoding.packed_batch import AnyBatch, unpack_batch
from mnmt_jax.decoding.search import Hypotheses, Request, Search, Step
from mnmt_jax.model.key_values import Cache
from mnmt_jax.model.network import Network


def generate(
    model: Network,
    params: Any,
    batch: Mapping[str, Array | np.ndarray],
    request: Request,
    *,
    search: Search,
) -> Hypotheses:
    """Search translations of a batch whose sentences start and end together.

    Args:
        model: the model.
        params: parameters of the model.
        batch: spans of the static roles, one sentence per row, and languages; with contrasts, all
            inputs of a sentence in consecutive rows.
        request: search request of the sentences.
        search: search algorithm.

    Returns:
        NumPy arrays.
    """
    hypotheses, _ = search_batch(params, dict(batch), request, model=model, search=search)
    return jax.tree.map(np.asarray, hypotheses)


@functools.partial(jax.jit, static_argnames=("model", "search"))
def search_batch(
    params: Any, batch: AnyBatch, request: Request, *, model: Network, search: Search
) -> tuple[Hypotheses, Bool[Array, " batch"]]:
    """Search as `generate` does, and return for each sentence whether `max_steps` sufficed."""
    state = start_search(params, batch, request, model=model, search=search)
    state = search.advance(make_step(model, params, request), state, request)
    return search.finish(state), search.done(state)


@functools.partial(jax.jit, static_argnames=("model", "search"))
def start_search(
    params: Any, batch: AnyBatch, request: Request, *, model: Network, search: Search
) -> Any:
    """Encode the inputs of sentences and feed their prefixes; see `generate`.

    Returns:
        The search's state before the first free step.
    """
    cache = model.apply(
        {"params": params},
        unpack_batch(batch),
        beam=search.beam,
        max_steps=request.cache_steps(),
        method="prefill",
    )
    return search.start(make_step(model, params, request), cache, request)


def make_step(model: Network, params: Any, request: Request) -> Step:
    """Return the step function of a search; it runs every hypothesis under each input."""

    def step(tokens: Array, cache: Cache) -> tuple[Array, Cache]:
        batch, beam = tokens.shape
        if request.contrast is not None:
            tokens = _tokens_by_input(tokens, request.contrast, cache.index)
        result: Any = model.apply({"params": params}, tokens, cache, method="step")
        if request.contrast is None:
            return result
        logits, cache = result
        return logits.reshape(batch, -1, beam, logits.shape[-1]), cache

    return step


def _tokens_by_input(
    tokens: Int[Array, "batch beam"], contrast: Contrast, index: Int[Array, "*rows"]
) -> Int[Array, "rows beam"]:
    """Repeat tokens for each input of a sentence, with the prefix of each input."""
    batch, contrasts, length = contrast.prefix.shape
    index = jnp.broadcast_to(index, (batch * (contrasts + 1),)).reshape(batch, -1)[:, 1:, None]
    position = jnp.minimum(index, length - 1)
    prefix_tokens = jnp.take_along_axis(jnp.asarray(contrast.prefix), position, axis=2)
    others = jnp.where(index < length, prefix_tokens, tokens[:, None])
    return jnp.concatenate([tokens[:, None], others], axis=1).reshape(-1, tokens.shape[1])
