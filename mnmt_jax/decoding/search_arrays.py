"""Array operations that the search algorithms share: gather, write, repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

StopCount = int | Int[Array | np.ndarray, ""] | None
"""Number of ended sentences at which a search stops; None is all."""
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
    """Repeat a step until `stop_count` sentences have ended."""

    def is_running(state: _State) -> Array:
        rows = ended(state)
        return jnp.sum(rows) < (rows.size if stop_count is None else stop_count)

    return jax.lax.while_loop(is_running, body, state)
