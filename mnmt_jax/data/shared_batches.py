"""Batches in shared memory: written to an anonymous file, and read as arrays without a copy.

The file has no name, so its memory is free when the last process that has it open or mapped ends,
however it ends. It does not count towards the size of /dev/shm, which containers limit.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable
from typing import BinaryIO

import numpy as np

from mnmt_jax.data.converter import HostBatch

_ALIGNMENT = 64  # bytes

BatchFields = dict[str, tuple[str, tuple[int, ...], int]]
"""Type, shape and position in the file of the arrays of a batch."""


def open_anonymous() -> BinaryIO:
    """Open an empty file that has no name: in memory on Linux, a temporary file elsewhere."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("batches"), "w+b")
    return tempfile.TemporaryFile()


def write_batches(batches: Iterable[HostBatch], file: BinaryIO) -> list[BatchFields]:
    """Append batches to a file.

    Args:
        batches: batches of any arrays of numbers; only one at a time is held.
        file: a file opened by `open_anonymous`.

    Returns:
        The fields of the batches, for `read_batches`.
    """
    fields = [
        {name: _write_array(array, file) for name, array in batch.items()} for batch in batches
    ]
    file.flush()
    return fields


def _write_array(array: np.ndarray, file: BinaryIO) -> tuple[str, tuple[int, ...], int]:
    file.write(bytes(-file.tell() % _ALIGNMENT))
    position = file.tell()
    file.write(np.ascontiguousarray(array).data)
    return array.dtype.str, array.shape, position


def read_batches(fields: Iterable[BatchFields], descriptor: int) -> list[HostBatch]:
    """Return batches as views of a file.

    Args:
        fields: as `write_batches` returned them.
        descriptor: file descriptor; it may be closed afterwards. The arrays keep the memory.
    """
    if not os.fstat(descriptor).st_size:
        return [{} for _ in fields]
    memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)  # arrays can be written, privately
    return [
        {name: _view_array(memory, *field) for name, field in batch_fields.items()}
        for batch_fields in fields
    ]


def _view_array(memory: mmap.mmap, dtype: str, shape: tuple[int, ...], position: int) -> np.ndarray:
    return np.ndarray(shape, dtype, memory, position)
