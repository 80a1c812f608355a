"""Array operations that the search algorithms share: gather, write, repeat, rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mnmt_jax.distributed.per_device import sharded_top_k

AnyArray = Array | np.ndarray  # the host passes and receives NumPy
_Count = int | Int[AnyArray, ""]


class StopAfter(NamedTuple):
    """When a search stops: at a number of ended sentences, or after a number of steps.

    Attributes:
        ended: number of ended sentences.
        steps: most steps.
    """

    ended: _Count
    steps: _Count


StopCount = _Count | StopAfter | None
"""Number of ended sentences at which a search stops, with or without a limit of steps; None is all.
"""
_State = TypeVar("_State")


def pick(array: Array, indices: Int[Array, "batch chosen"]) -> Array:
    """Gather `array[b, indices[b]]` along axis 1; any further axes stay."""
    indices = indices.reshape(indices.shape + (1,) * (array.ndim - 2))
    return jnp.take_along_axis(array, indices, axis=1)


def put_tokens(
    array: Int[Array, "batch beam steps"],
    step: Int[Array, " batch"],
    tokens: Int[Array, "batch beam"] | int,
) -> Int[Array, "batch beam steps"]:
    """Write tokens at the step of each sentence, if it is within the array."""
    is_step = jnp.arange(array.shape[2])[None, None] == step[:, None, None]
    tokens = tokens if isinstance(tokens, int) else tokens[:, :, None]
    return jnp.where(is_step, tokens, array)


def repeat_until(
    stop_count: StopCount,
    ended: Callable[[_State], Array],
    body: Callable[[_State], _State],
    state: _State,
) -> _State:
    """Repeat a step until `stop_count` sentences have ended, or for its number of steps."""
    count = stop_count.ended if isinstance(stop_count, StopAfter) else stop_count

    def is_running(state: _State) -> Array:
        rows = ended(state)
        return jnp.sum(rows) < (rows.size if count is None else count)

    if not isinstance(stop_count, StopAfter):
        return jax.lax.while_loop(is_running, body, state)
    state, _ = jax.lax.while_loop(
        lambda loop: is_running(loop[0]) & (loop[1] > 0),
        lambda loop: (body(loop[0]), loop[1] - 1),
        (state, jnp.asarray(stop_count.steps, jnp.int32)),
    )
    return state


def rank_continuations(
    values: Float[Array, "batch beam vocab"],
    normalizer: Float[Array, "batch beam"],
    live_scores: Float[Array, "batch beam"],
    penalties: Float[Array, "batch 1 vocab"] | None = None,
) -> tuple[Array, Array, Array]:
    """Return the 2 * beam best continuations of a beam.

    The best of each hypothesis are selected first, by their values: the normaliser is one number
    per hypothesis, so log-probabilities of the full vocabulary are never computed.

    Args:
        values: logits of the next token, -inf for forbidden ones.
        normalizer: subtracted from `values`, gives log-probabilities.
        live_scores: summed log-probabilities of the hypotheses.
        penalties: of tokens, for the ranking alone.

    Returns:
        Scores without penalties, parents and tokens, [batch, 2 * beam], best first.
    """
    batch, beam, vocab = values.shape
    candidates = min(2 * beam, vocab)
    best, tokens = sharded_top_k(values if penalties is None else values - penalties, candidates)
    if penalties is not None:
        best = jnp.take_along_axis(values, tokens, axis=2)
    totals = live_scores[:, :, None] + (best - normalizer[:, :, None])
    ranking = totals
    if penalties is not None:
        by_beam = jnp.broadcast_to(penalties, values.shape)
        ranking = totals - jnp.take_along_axis(by_beam, tokens, axis=2)
    scores, flat = sharded_top_k(ranking.reshape(batch, -1), 2 * beam)
    if penalties is not None:
        scores = pick(totals.reshape(batch, -1), flat)
    return scores, flat // candidates, pick(tokens.reshape(batch, -1), flat)
