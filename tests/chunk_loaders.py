"""Chunk loaders for tests of loader workers, light to import in a worker."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from mnmt_jax.data.converter import HostBatch
from mnmt_jax.data.worker_process import ChunkLoader
from mnmt_jax.errors import UserError


@dataclasses.dataclass
class CountingLoader:
    """Chunks of three batches that hold the numbers of chunk, batch and process.

    Attributes:
        failing_chunk: chunk that fails after its first batch.
        failure: what happens there: an exception or a function that returns it, a signal to the
            process, or a status to exit with.
    """

    failing_chunk: int = -1
    failure: Any = None

    def iterate_chunk(self, chunk: int, first_batch: int = 0) -> Iterator[HostBatch]:
        """Yield the batches of a chunk."""
        for batch in range(first_batch, 3):
            if (chunk, batch) == (self.failing_chunk, 1):
                self._fail()
            yield {"number": np.array([chunk, batch]), "process": np.array(os.getpid())}

    def _fail(self) -> None:
        if isinstance(self.failure, Exception):
            raise self.failure
        if callable(self.failure):
            raise self.failure()
        if isinstance(self.failure, signal.Signals):
            os.kill(os.getpid(), self.failure)
        else:
            os._exit(self.failure)


@dataclasses.dataclass
class ImportsLoader:
    """Another loader's batches, and whether modules are imported in the process.

    Attributes:
        loader: the other loader.
        modules: names of the modules.
    """

    loader: ChunkLoader
    modules: tuple[str, ...]

    def iterate_chunk(self, chunk: int, first_batch: int = 0) -> Iterator[HostBatch]:
        """Yield the batches of a chunk."""
        for batch in self.loader.iterate_chunk(chunk, first_batch):
            yield batch | {name: np.array(name in sys.modules) for name in self.modules}


class WarningLoader(CountingLoader):
    """A loader that warns."""

    def iterate_chunk(self, chunk: int, first_batch: int = 0) -> Iterator[HostBatch]:
        """Yield the batches of a chunk."""
        logging.getLogger("mnmt_jax.data").warning("the storage is slow")
        yield from super().iterate_chunk(chunk, first_batch)


class UnpicklableError(Exception):
    """An error that cannot be unpickled: its arguments are not those of the constructor."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class BrokenLoader:
    """A loader that fails when it is unpickled."""

    def __setstate__(self, state: object) -> None:
        raise UserError("no such cache here")

    def __getstate__(self) -> object:
        return {"state": 1}

    def iterate_chunk(self, chunk: int, first_batch: int = 0) -> Iterator[HostBatch]:
        """Yield nothing."""
        yield from ()
