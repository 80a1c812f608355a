"""Array operations that the search algorithms share: gather, write, repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

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
