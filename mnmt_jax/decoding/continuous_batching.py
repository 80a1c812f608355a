"""Continuous batching: finished sentences leave their slot and waiting ones are admitted.

Admitted sentences are encoded, written into free slots, and advanced until as many slots are free
again, all in one program. Each slot counts its own steps, and everything it holds is overwritten
for each sentence, so nothing depends on its previous or neighbouring sentences. On TPU, where
writing at a different position in each row costs more than idle rows, and where there are slots for
all sentences, sentences start and end together (on a CPU, those of a small model in smaller
batches).
"""

from __future__ import annotations

import contextlib
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
from mnmt_jax.decoding.packed_batch import AnyBatch, pack_batch
from mnmt_jax.decoding.search import Hypotheses, Request, Search, has_stopped
from mnmt_jax.decoding.search_arrays import StopCount
from mnmt_jax.distributed.sharding import decoding_state_spec, platform
from mnmt_jax.model.network import Network

_ADMISSIONS = 4  # admissions that fill the slots of a batch
_SMALL_MODEL = 1 << 24  # bytes of parameters, which stay in the cache of a CPU
_SMALL_BATCH = 64  # hypotheses of a batch of a small model on a CPU


@dataclasses.dataclass(frozen=True)
class Admission:
    """Sentences that are admitted to a batch together.

    Attributes:
        numbers: identifiers of the sentences.
        batch: inputs as for `generate`; rows without a sentence are empty and come last.
        request: search request of the sentences.
    """

    numbers: Sequence[int]
    batch: HostBatch
    request: Request


@dataclasses.dataclass(frozen=True)
class Finished:
    """A sentence whose search has ended.

    Attributes:
        number: identifier of the sentence.
        hypotheses: hypotheses of the full batch, as NumPy arrays.
        row: row of the sentence.
        done: False if `max_steps` did not suffice.
    """

    number: int
    hypotheses: Hypotheses
    row: int
    done: bool


def batch_shape(
    inference_model: InferenceModel, search: Search, batch: int, sentences: int
) -> tuple[int, int]:
    """Return the slots of a batch, and how many sentences are admitted at a time.

    If a batch holds all sentences, a small model on a CPU searches them in smaller ones: it takes
    little longer per row, and among sentences of similar length fewer rows wait for the last.

    Args:
        inference_model: the model and its devices.
        search: search algorithm.
        batch: `Decode.batch`.
        sentences: number of sentences of the batch's shape.
    """
    rows = inference_model.rows(batch, sentences)
    size = slots_per_admission(inference_model, rows, sentences)
    if size < rows or platform() != "cpu" or inference_model.param_bytes > _SMALL_MODEL:
        return rows, size
    rows = min(rows, inference_model.on_all_devices(_SMALL_BATCH // search.beam))
    return rows, rows


def slots_per_admission(inference_model: InferenceModel, rows: int, sentences: int) -> int:
    """Return how many sentences are admitted at a time.

    Args:
        inference_model: the model and its devices.
        rows: slots of the batch.
        sentences: number of sentences of the batch's shape.
    """
    if sentences <= rows or platform() == "tpu":
        return rows
    return inference_model.on_all_devices(max(rows // _ADMISSIONS, 1))


def search_continuously(
    inference_model: InferenceModel, search: Search, admissions: Iterable[Admission], rows: int
) -> Iterator[Finished]:
    """Search sentences of one shape.

    Args:
        inference_model: the model.
        search: search algorithm.
        admissions: admissions of equal size, at most `rows`. Sentences of an admission of size
            `rows` start and end together.
        rows: slots of the batch.

    Yields:
        Each sentence, after the program that finished it.
    """
    slots = Slots(inference_model, search, rows)
    pending = iter(admissions)
    admission = next(pending, None)
    while admission is not None:
        following = next(pending, None)
        if len(admission.request.active) == rows:
            yield from search_together(inference_model, search, admission)
        else:
            size = len(admission.request.active)
            yield from slots.admit(admission, rows if following is None else size)
        admission = following


def search_together(
    inference_model: InferenceModel, search: Search, admission: Admission
) -> list[Finished]:
    """Search sentences that start and end together, in a batch of their own."""
    with _placed(inference_model, admission) as batch:
        hypotheses, done = jax.tree.map(
            np.asarray,
            search_batch(
                inference_model.params,
                batch,
                admission.request,
                model=inference_model.model,
                search=search,
            ),
        )
    return [
        Finished(number, hypotheses, row, done[row]) for row, number in enumerate(admission.numbers)
    ]


def _placed(inference_model: InferenceModel, admission: Admission) -> Any:
    """Return the context of a batch on all devices; in one array, if there is one device."""
    if inference_model.mesh is None:
        return contextlib.nullcontext(pack_batch(admission.batch))
    return inference_model.placed(admission.batch)


class Slots:
    """The slots of a batch: the sentences in them, and their search state.

    Args:
        inference_model: the model.
        search: search algorithm.
        rows: number of slots.
    """

    def __init__(self, inference_model: InferenceModel, search: Search, rows: int) -> None:
        self._inference_model, self._search = inference_model, search
        self._numbers: list[int | None] = [None] * rows
        self._state: Any = None  # search state and requests

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self._numbers.count(None)

    def admit(self, admission: Admission, stop: StopCount) -> list[Finished]:
        """Admit sentences to free slots, and search.

        Args:
            admission: the sentences, at most as many as there are free slots.
            stop: number of free slots, or a limit of steps, at which the search stops.
        """
        rows, size = len(self._numbers), len(admission.request.active)
        free = [row for row, number in enumerate(self._numbers) if number is None]
        slots = np.full(size, rows, np.int32)  # out of range: not written
        for index, number in enumerate(admission.numbers):
            slots[index], self._numbers[free[index]] = free[index], number
        static = self._static()
        with _placed(self._inference_model, admission) as batch:
            inputs = self._inference_model.params, batch, admission.request
            if self._state is None:
                self._state = _empty_state(*inputs, rows=rows, **static)
            self._state, *result = _admit_and_search(*inputs, self._state, slots, stop, **static)
            return self._finished(result)

    def advance(self, stop: StopCount) -> list[Finished]:
        """Search on without further sentences; see `admit`."""
        with self._inference_model.placed({}):
            params = self._inference_model.params
            self._state, *result = _search_on(params, self._state, stop, **self._static())
            return self._finished(result)

    def _static(self) -> dict[str, Any]:
        return {"model": self._inference_model.model, "search": self._search}

    def _finished(self, result: Sequence[Any]) -> list[Finished]:
        return list(self._release(*jax.tree.map(np.asarray, result)))

    def _release(
        self, hypotheses: Hypotheses, has_ended: np.ndarray, done: np.ndarray
    ) -> Iterator[Finished]:
        """Free the slots of finished sentences."""
        for row, number in enumerate(self._numbers):
            if number is not None and has_ended[row]:
                self._numbers[row] = None
                yield Finished(number, hypotheses, row, bool(done[row]))


def _encode(
    params: Any, batch: AnyBatch, request: Request, *, model: Network, search: Search
) -> tuple[Any, Request]:
    """Return the search state of new sentences, with a step counter per row, and their request."""
    state = start_search(params, batch, request, model=model, search=search)
    rows = state.cache.ancestry.shape[:1]
    index = jnp.broadcast_to(state.cache.index, rows)
    cache = dataclasses.replace(state.cache, index=index)
    return dataclasses.replace(state, cache=cache), request


@functools.partial(jax.jit, static_argnames=("model", "search"), donate_argnames=("slot_state",))
def _admit_and_search(
    params: Any,
    batch: AnyBatch,
    request: Request,
    slot_state: Any,
    slots: Int[Array, " new"],
    stop_count: StopCount,
    *,
    model: Network,
    search: Search,
) -> tuple[Any, Hypotheses, Array, Array]:
    """Encode new sentences, write them into free slots and search.

    Returns:
        Search state and requests, hypotheses of all slots, and which have ended and are done.
    """
    new = _encode(params, batch, request, model=model, search=search)
    write = functools.partial(_admit, slots=slots)
    admitted = jax.tree.map(_shard, jax.tree.map(write, slot_state, new))
    return _search_slots(params, admitted, stop_count, model=model, search=search)


@functools.partial(jax.jit, static_argnames=("model", "search"), donate_argnames=("slot_state",))
def _search_on(
    params: Any, slot_state: Any, stop_count: StopCount, *, model: Network, search: Search
) -> tuple[Any, Hypotheses, Array, Array]:
    """Search on; see `_admit_and_search`."""
    return _search_slots(params, slot_state, stop_count, model=model, search=search)


def _search_slots(
    params: Any, slot_state: Any, stop_count: StopCount, *, model: Network, search: Search
) -> tuple[Any, Hypotheses, Array, Array]:
    state, request = slot_state
    state = search.advance(make_step(model, params, request), state, request, stop_count)
    flags = has_stopped(search, state, request), search.done(state)
    return (state, request), search.finish(state), *flags


def _admit(old: Array, new: Array, slots: Int[Array, " new"]) -> Array:
    """Write the state of new sentences into slots, one row per sentence and input."""
    inputs = new.shape[0] // slots.shape[0]
    by_slot = old.reshape(-1, inputs, *old.shape[1:])
    new = new.reshape(-1, inputs, *new.shape[1:])
    return by_slot.at[slots].set(new, mode="drop").reshape(old.shape)


@functools.partial(jax.jit, static_argnames=("model", "search", "rows"))
def _empty_state(
    params: Any,
    batch: AnyBatch,
    request: Request,
    *,
    model: Network,
    search: Search,
    rows: int,
) -> Any:
    """Return the state of empty slots; only shapes are read from the arguments."""
    size = request.active.shape[0]

    def zeros(array: Array) -> Array:
        shape = (array.shape[0] // size * rows, *array.shape[1:])
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), shape)
        return jnp.zeros(shape, array.dtype)

    new = _encode(params, batch, request, model=model, search=search)
    state, request = jax.tree.map(zeros, new)
    state = dataclasses.replace(state, done=jnp.ones_like(state.done))
    return jax.tree.map(_shard, (state, request))


def _shard(array: Array) -> Array:
    """Keep slots, and the heads of keys and values, on their devices."""
    if jax.sharding.get_abstract_mesh().empty:
        return array
    return jax.lax.with_sharding_constraint(array, decoding_state_spec(array.ndim))
