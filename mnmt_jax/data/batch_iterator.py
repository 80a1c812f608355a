"""Endless training batches, prepared in the background, with a position that is saved and restored.

The position is a chunk number and a batch number in the chunk; a pipeline computes the batches of a
chunk from its number (`input_pipeline.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from mnmt_jax.data.converter import HostBatch
from mnmt_jax.data.loader_workers import LoaderWorkers
from mnmt_jax.errors import UserError

_LAST_CHUNK = 2**40
_MAX_EMPTY_CHUNKS = 100


class ChunkLoader(Protocol):
    """What computes the batches of a chunk from its number (`input_pipeline.Pipeline`)."""

    def fingerprint(self) -> int:
        """Return a number that differs where the batches do."""

    def iterate_chunk(self, number: int, first_batch: int = 0) -> Iterator[HostBatch]:
        """Yield the batches of a chunk from a batch on."""


class BatchIterator:
    """Endless training batches with a position that can be saved and restored.

    The next chunks are prepared while the current one is consumed: by a thread (Grain) or by
    processes (`loader_workers.py`).
    """

    def __init__(self, pipeline: ChunkLoader, *, threads: int = 1, workers: int = 0) -> None:
        """Start at the first batch.

        Args:
            pipeline: plans and loads chunks.
            threads: number of chunks to prepare in parallel; 0 disables prefetching. It does not
                affect the order of batches.
            workers: number of processes that prepare chunks instead of threads; 0 uses threads. It
                does not affect the batches.
        """
        self.pipeline = pipeline
        self._threads, self._num_workers = threads, workers
        self._chunk, self._batch = 0, 0
        self._chunks: Iterator[list[HostBatch]] | None = None
        self._workers: LoaderWorkers | None = None
        self._reversed_batches: list[HostBatch] = []

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> HostBatch:
        if self._chunks is None:
            self._chunks = self._open()
            self._reversed_batches = self._next_chunk()
        for _ in range(_MAX_EMPTY_CHUNKS):
            if self._reversed_batches:
                self._batch += 1
                return self._reversed_batches.pop()
            self._reversed_batches = self._next_chunk()
            self._chunk, self._batch = self._chunk + 1, 0
        raise UserError(
            f"{_MAX_EMPTY_CHUNKS} consecutive chunks have no pair that fits into a row; raise "
            "Data.source_length and Data.target_length"
        )

    @property
    def worker_ids(self) -> tuple[int, ...]:
        """Process ids of the running worker processes."""
        return self._workers.process_ids if self._workers else ()

    @property
    def position(self) -> tuple[int, int]:
        """Numbers of the chunk and of the next batch in it; setting them starts again there."""
        return self._chunk, self._batch

    @position.setter
    def position(self, position: tuple[int, int]) -> None:
        """Start again at a chunk and a batch in it."""
        self.close()
        self._chunk, self._batch = position

    def get_state(self) -> dict[str, int]:
        """Return the position as integers for `set_state`, in this or another process."""
        return {
            "chunk": self._chunk,
            "batch": self._batch,
            "settings": self.pipeline.fingerprint(),
        }

    def set_state(self, state: Mapping[str, int], saved: str = "its run") -> None:
        """Restore a position; the next batch is the one that followed it.

        Args:
            state: position from `get_state`.
            saved: name of the run that holds the settings of the position, for errors.

        Raises:
            UserError: if the position was saved under settings that give a different order.
        """
        if int(state["settings"]) != self.pipeline.fingerprint():
            raise UserError(
                "the data position was saved under other Data settings, tasks, texts or "
                f"vocabulary; restore the cache and the settings of {saved}, or start a new run"
            )
        self.position = int(state["chunk"]), int(state["batch"])

    def close(self) -> None:
        """End the worker processes; the next batch is the same as without, and starts new ones."""
        if self._workers:
            self._workers.close()
        self._chunks, self._workers, self._reversed_batches = None, None, []

    def _next_chunk(self) -> list[HostBatch]:
        """Return the batches of the next chunk, the last one first."""
        assert self._chunks is not None
        try:
            return next(self._chunks)[::-1]
        except BaseException:
            self.close()
            raise

    def _open(self) -> Iterator[list[HostBatch]]:
        if self._num_workers:
            self._workers = LoaderWorkers(
                self.pipeline, self._num_workers, self._chunk, self._batch
            )
            return self._workers
        import grain

        chunk, batch, pipeline = self._chunk, self._batch, self.pipeline

        def load(number: int) -> list[HostBatch]:
            return list(pipeline.iterate_chunk(number, batch if number == chunk else 0))

        options = grain.ReadOptions(
            num_threads=self._threads, prefetch_buffer_size=max(1, self._threads)
        )
        chunks = grain.MapDataset.range(chunk, _LAST_CHUNK).map(load)
        return iter(chunks.to_iter_dataset(options))
