"""Endless training batches, prepared in the background, with a position that is saved and restored.

The position is a chunk number and a batch number in the chunk; a pipeline computes the batches of a
chunk from its number (`input_pipeline.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from mnmt_jax.data.converter import HostBatch
from mnmt_jax.errors import UserError

if TYPE_CHECKING:
    from mnmt_jax.data.input_pipeline import Pipeline

_LAST_CHUNK = 2**40
_MAX_EMPTY_CHUNKS = 100


class BatchIterator:
    """Endless training batches with a position that can be saved and restored.

    A background thread (Grain) prepares the next chunk while the current one is consumed.
    """

    def __init__(self, pipeline: Pipeline, *, threads: int = 1) -> None:
        """Start at the first batch.

        Args:
            pipeline: plans and loads chunks.
            threads: number of chunks to prepare in parallel; 0 disables prefetching. It does not
                affect the order of batches.
        """
        self.pipeline = pipeline
        self._threads = threads
        self._chunk, self._batch = 0, 0
        self._chunks: Iterator[list[HostBatch]] | None = None
        self._reversed_batches: list[HostBatch] = []

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> HostBatch:
        if self._chunks is None:
            self._chunks = self._open()
            self._reversed_batches = next(self._chunks)[::-1]
        for _ in range(_MAX_EMPTY_CHUNKS):
            if self._reversed_batches:
                self._batch += 1
                return self._reversed_batches.pop()
            self._reversed_batches = next(self._chunks)[::-1]
            self._chunk, self._batch = self._chunk + 1, 0
        raise UserError(
            f"{_MAX_EMPTY_CHUNKS} consecutive chunks have no pair that fits into a row; raise "
            "Data.source_length and Data.target_length"
        )

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
        self._chunk, self._batch = int(state["chunk"]), int(state["batch"])
        self._chunks, self._reversed_batches = None, []

    def _open(self) -> Iterator[list[HostBatch]]:
        import grain

        chunk, batch, pipeline = self._chunk, self._batch, self.pipeline

        def load(number: int) -> list[HostBatch]:
            return pipeline.chunk_batches(number, batch if number == chunk else 0)

        options = grain.ReadOptions(
            num_threads=self._threads, prefetch_buffer_size=max(1, self._threads)
        )
        chunks = grain.MapDataset.range(chunk, _LAST_CHUNK).map(load)
        return iter(chunks.to_iter_dataset(options))
