"""Continuous batching: finished sentences leave their slot and waiting ones are admitted.

Admitted sentences are encoded, written into free slots, and advanced until as many slots are free
again, all in one program. Each slot counts its own steps, and everything it holds is overwritten
for each sentence, so nothing depends on its previous or neighbouring sentences. On TPU, where
writing at a different position in each row costs more than idle rows, and where there are slots for
all sentences, sentences start and end together.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from mnmt_jax.data.converter import HostBatch
from mnmt_jax.decoding.generate import make_step, search_batch, start_search
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.decoding.search import Hypotheses, Request, Search, StopCount, has_stopped
from mnmt_jax.distributed.sharding import decoding_state_spec, platform
from mnmt_jax.model.network import Network

_TURNS = 4  # in which the rows of a batch are filled


@dataclasses.dataclass(frozen=True)
class Admission:
    """Sentences that enter a batch together.

    Attributes:
        numbers: by which they are known, one each.
        batch: their inputs as for `generate`, the last rows empty if sentences are lacking.
        request: what is asked for each.
    """

    numbers: Sequence[int]
    batch: HostBatch
    request: Request


@dataclasses.dataclass(frozen=True)
class Finished:
    """A sentence that takes no further step.

    Attributes:
        number: of the sentence.
        found: NumPy arrays of a whole batch.
        row: the sentence's.
        done: False if there was no room for its end.
    """

    number: int
    found: Hypotheses
    row: int
    done: bool


def slots_per_admission(system: InferenceModel, rows: int, sentences: int) -> int:
    """Returns how many sentences enter a batch at a time.

    Args:
        system: the model and its devices.
        rows: of the batch.
        sentences: that have its shape.
    """
    if sentences <= rows or platform() == "tpu":
        return rows
    return system.on_all_devices(max(rows // _TURNS, 1))


def search_continuously(
    system: InferenceModel, search: Search, turns: Iterable[Admission], rows: int
) -> Iterator[Finished]:
    """Searches sentences of one shape.

    Args:
        system: the model.
        search: how to search.
        turns: all as large, at most so many rows; those as large start and end together.
        rows: of the batch.

    Yields:
        Each sentence as soon as those of its turn that it waits for have ended.
    """
    batch = _Rows(system, search, rows)
    waiting = iter(turns)
    turn = next(waiting, None)
    while turn is not None:
        following = next(waiting, None)
        if len(turn.request.active) == rows:
            yield from _together(system, search, turn)
        else:
            yield from batch.take(turn, last=following is None)
        turn = following


def _together(system: InferenceModel, search: Search, turn: Admission) -> list[Finished]:
    """Searches sentences that have the batch to themselves."""
    with system.placed(turn.batch) as batch:
        found, done = jax.tree.map(
            np.asarray,
            search_batch(system.params, batch, turn.request, model=system.model, search=search),
        )
    return [Finished(number, found, row, done[row]) for row, number in enumerate(turn.numbers)]


class _Rows:
    """The rows of a batch, who stands in them, and what the search knows of each."""

    def __init__(self, system: InferenceModel, search: Search, rows: int) -> None:
        self._system, self._search = system, search
        self._numbers: list[int | None] = [None] * rows
        self._seated: Any = None  # the search's state and the requests

    def take(self, turn: Admission, *, last: bool) -> list[Finished]:
        """Gives sentences free rows and takes steps until there are free rows for as many more.

        Args:
            turn: the sentences.
            last: nobody waits any more; steps are taken until all have ended.
        """
        rows, size = len(self._numbers), len(turn.request.active)
        free = [row for row, number in enumerate(self._numbers) if number is None]
        places = np.full(size, rows, np.int32)  # there is no such row
        for place, number in enumerate(turn.numbers):
            places[place], self._numbers[free[place]] = free[place], number
        static: dict[str, Any] = {"model": self._system.model, "search": self._search}
        with self._system.placed(turn.batch) as batch:
            given = self._system.params, batch, turn.request
            if self._seated is None:
                self._seated = _empty(*given, rows=rows, **static)
            enough = np.int32(rows if last else size)
            self._seated, *result = _turn(*given, self._seated, places, enough, **static)
            found, has_ended, done = jax.tree.map(np.asarray, result)
        return list(self._leave(found, has_ended, done))

    def _leave(
        self, found: Hypotheses, has_ended: np.ndarray, done: np.ndarray
    ) -> Iterator[Finished]:
        """Frees the rows of sentences that have ended."""
        for row, number in enumerate(self._numbers):
            if number is not None and has_ended[row]:
                self._numbers[row] = None
                yield Finished(number, found, row, bool(done[row]))


def _read(
    params: Any, batch: dict[str, Array], request: Request, *, model: Network, search: Search
) -> tuple[Any, Request]:
    """Returns the state of new sentences, which count their own steps, and what is asked."""
    state = start_search(params, batch, request, model=model, search=search)
    rows = state.cache.ancestry.shape[:1]
    index = jnp.broadcast_to(state.cache.index, rows)
    cache = dataclasses.replace(state.cache, index=index)
    return dataclasses.replace(state, cache=cache), request


@functools.partial(jax.jit, static_argnames=("model", "search"), donate_argnames=("seated",))
def _turn(
    params: Any,
    batch: dict[str, Array],
    request: Request,
    seated: Any,
    places: Int[Array, " turn"],
    enough: StopCount,
    *,
    model: Network,
    search: Search,
) -> tuple[Any, Hypotheses, Array, Array]:
    """Reads sentences, seats them and takes steps.

    Returns:
        What is seated, hypotheses of all rows, and which have ended and are done.
    """
    new = _read(params, batch, request, model=model, search=search)
    seat = functools.partial(_admit, places=places)
    state, request = jax.tree.map(_split, jax.tree.map(seat, seated, new))
    state = search.advance(make_step(model, params, request), state, request, enough)
    ends = has_stopped(search, state, request), search.done(state)
    return (state, request), search.finish(state), *ends


def _admit(old: Array, new: Array, places: Int[Array, " turn"]) -> Array:
    """Writes what new sentences have, each in one row or as many as it has inputs."""
    each = new.shape[0] // places.shape[0]
    by_row = old.reshape(-1, each, *old.shape[1:])
    new = new.reshape(-1, each, *new.shape[1:])
    return by_row.at[places].set(new, mode="drop").reshape(old.shape)


@functools.partial(jax.jit, static_argnames=("model", "search", "rows"))
def _empty(
    params: Any,
    batch: dict[str, Array],
    request: Request,
    *,
    model: Network,
    search: Search,
    rows: int,
) -> Any:
    """Returns the state of rows that nobody stands in yet; of a turn only shapes are read."""
    size = request.active.shape[0]

    def zeros(array: Array) -> Array:
        shape = (array.shape[0] // size * rows, *array.shape[1:])
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), shape)
        return jnp.zeros(shape, array.dtype)

    turn = _read(params, batch, request, model=model, search=search)
    state, request = jax.tree.map(zeros, turn)
    state = dataclasses.replace(state, done=jnp.ones_like(state.done))
    return jax.tree.map(_split, (state, request))


def _split(array: Array) -> Array:
    """Keeps rows on their devices, and the heads of keys and values."""
    if jax.sharding.get_abstract_mesh().empty:
        return array
    return jax.lax.with_sharding_constraint(array, decoding_state_spec(array.ndim))
