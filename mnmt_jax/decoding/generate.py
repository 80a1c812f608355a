"""A model and a search on one batch: compiled once per shape, with a cache that grows on demand.

Attention over the growing keys costs as much as the cache is long, filled or not. So a batch starts
with a cache for somewhat more steps than its sources are long, or what is to be continued. If that
is not enough for every sentence, it goes on with one for all steps, in a shape that all buckets
share: a file needs a program for each bucket, and one more. The lengths follow from the bucket
alone, so they cannot make a result depend on batch mates.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding.search import BeamSearch, Greedy, Hypotheses, Request, Sample, Search
from mnmt_jax.errors import UserError
from mnmt_jax.model.key_values import Cache, enlarge, reorder
from mnmt_jax.model.network import Network

_MORE = 8  # first steps besides half as many again as the source is long


def make_search(decode: Decode) -> Search:
    """Returns the search that a configuration describes.

    Raises:
        UserError: if a value is out of range.
    """
    if decode.beam_size < 1:
        raise UserError(f"Decode.beam_size={decode.beam_size} must be at least 1")
    if decode.method == "greedy":
        return Greedy(length_penalty=decode.length_penalty)
    if decode.method == "beam":
        return BeamSearch(decode.beam_size, reorder, decode.length_penalty)
    if decode.temperature < 0 or not 0 < decode.top_p <= 1 or decode.top_k < 0:
        raise UserError(
            f"Decode.temperature={decode.temperature}, top_k={decode.top_k}, top_p={decode.top_p}: "
            "need temperature >= 0, top_k >= 0 and 0 < top_p <= 1"
        )
    return Sample(
        beam=decode.beam_size,
        temperature=decode.temperature,
        top_k=decode.top_k,
        top_p=decode.top_p,
        length_penalty=decode.length_penalty,
    )


def with_beam_size(decode: Decode, beam_size: int | None) -> Decode:
    """Returns a configuration that searches so many hypotheses, as asked for explicitly.

    Args:
        decode: of the run.
        beam_size: 1 is greedy search, more are a beam; sampling draws so many. None changes
            nothing.

    Raises:
        UserError: if it is not a positive number.
    """
    if beam_size is None:
        return decode
    if not isinstance(beam_size, int) or beam_size < 1:
        raise UserError(f"beam_size={beam_size!r} must be a whole number, at least 1")
    return dataclasses.replace(decode, beam_size=beam_size)


def with_settings(decode: Decode, **settings: Any) -> Decode:
    """Returns a configuration with other values of some fields.

    Args:
        decode: of the run.
        settings: fields of `Decode`.

    Raises:
        UserError: if there is no such field, or a value is none that it may hold.
    """
    known = [field.name for field in dataclasses.fields(Decode)]
    for name, value in settings.items():
        if name not in known:
            raise UserError(f"{name}={value!r}: no setting of a search; {', '.join(known)} are")
    return dataclasses.replace(decode, **settings)


def length_limit(decode: Decode, source_tokens: int) -> int:
    """Returns the generated tokens, without eos, that a source of this many tokens may have."""
    if decode.max_length_per_source <= 0:
        return decode.max_length
    return min(decode.max_length, int(decode.max_length_per_source * source_tokens + 10))


def describe_search(decode: Decode) -> dict[str, Any]:
    """Returns the search's name and the fields of a configuration that it obeys."""
    fields = {"method": decode.method, **dataclasses.asdict(decode)}
    unread = []
    if decode.method != "sample":
        unread += ["temperature", "top_k", "top_p"]
    if not decode.source_contrast:
        unread.append("source_contrast")
    if not decode.language_contrast:
        unread += ["language_contrast", "contrast_languages"]
    if decode.method != "sample" and not decode.source_contrast:
        unread.append("seed")
    return {name: value for name, value in fields.items() if name not in unread}


def generate(
    model: Network,
    params: Any,
    batch: Mapping[str, Array | np.ndarray],
    request: Request,
    *,
    search: Search,
) -> Hypotheses:
    """Searches translations of one batch.

    Args:
        model: the model.
        params: its parameters.
        batch: spans of the static roles, one sentence per row, and languages; with contrasts its
            own input and theirs in rows side by side.
        request: what is asked for each sentence.
        search: how to search.

    Returns:
        NumPy arrays.
    """
    given = [batch[f"{role}_tokens"].shape[1] for role in model.layout.static_roles()]
    stops = growth_steps((*given, request.prefix.shape[1])[0], request.max_steps)
    static = {"model": model, "search": search}
    state, found = _begin(params, dict(batch), request, until=stops[0], **static)
    for until in stops[1:]:
        if np.asarray(state.done).all():
            break
        cache = enlarge(state.cache, request.cache_steps(until), shared=request.max_steps)
        state = dataclasses.replace(state, cache=cache)
        state, found = _go_on(params, state, request, until=until, **static)
    return jax.tree.map(np.asarray, found)


def growth_steps(source_length: int, max_steps: int) -> list[int]:
    """Returns after how many generated tokens the cache is enlarged; the last is `max_steps`.

    It is not where all of them are no more than half as many again.
    """
    first = source_length + source_length // 2 + _MORE
    return [first, max_steps] if 3 * first < 2 * max_steps else [max_steps]


@functools.partial(jax.jit, static_argnames=("model", "search", "until"))
def _begin(
    params: Any,
    batch: dict[str, Array],
    request: Request,
    *,
    model: Network,
    search: Search,
    until: int,
) -> tuple[Any, Hypotheses]:
    steps = request.cache_steps(until)
    variables = {"params": params}
    cache = model.apply(variables, batch, beam=search.beam, max_steps=steps, method="prefill")
    step = functools.partial(_step, model, params, request)
    state = search.advance(step, search.start(step, cache, request), request, until)
    return state, search.finish(state)


@functools.partial(
    jax.jit, static_argnames=("model", "search", "until"), donate_argnames=("state",)
)
def _go_on(
    params: Any, state: Any, request: Request, *, model: Network, search: Search, until: int
) -> tuple[Any, Hypotheses]:
    step = functools.partial(_step, model, params, request)
    state = search.advance(step, state, request, until)
    return state, search.finish(state)


def _step(
    model: Network, params: Any, request: Request, tokens: Array, cache: Cache
) -> tuple[Array, Cache]:
    """Feeds a token to every hypothesis, under each of the sentence's inputs."""
    batch, beam = tokens.shape
    if request.contrast is not None:
        tokens = _under_each_input(tokens, request, cache.index)
    after: Any = model.apply({"params": params}, tokens, cache, method="step")
    if request.contrast is None:
        return after
    logits, cache = after
    return logits.reshape(batch, -1, beam, logits.shape[-1]), cache


def _under_each_input(tokens: Array, request: Request, index: Array) -> Array:
    """Repeats tokens [batch, beam] as [batch * inputs, beam]; each has a prefix of its own."""
    assert request.contrast is not None
    batch, contrasts, length = request.contrast.prefix.shape
    place = jnp.minimum(index, length - 1)
    given = jnp.take(jnp.asarray(request.contrast.prefix), place, axis=2)[:, :, None]
    shape = (batch, contrasts, tokens.shape[1])
    others = jnp.where(index < length, given, jnp.broadcast_to(tokens[:, None], shape))
    return jnp.concatenate([tokens[:, None], others], axis=1).reshape(-1, tokens.shape[1])
