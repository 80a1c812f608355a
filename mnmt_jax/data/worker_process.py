"""Main function of a loader worker: a process that builds chunks of batches on request.

It imports no JAX, so it takes no accelerator. Requests arrive on a socket, a pair of integers each:
the number of a chunk and of its first batch. A reply is pickled, with a file descriptor: the fields
of the batches, or an error. The process ends when the socket is closed, that is also when the
trainer is killed.
"""

from __future__ import annotations

import errno
import os
import pickle
import queue
import socket
import struct
import threading
import traceback
from collections.abc import Iterator
from typing import Any, BinaryIO, Protocol

from mnmt_jax.data.converter import HostBatch
from mnmt_jax.data.shared_batches import open_anonymous, write_batches
from mnmt_jax.errors import UserError
from mnmt_jax.runtime.run_command import warnings_as_lines

REQUEST = struct.Struct("<qq")
REPLY_SIZE = struct.Struct("<q")
MEMORY_REMEDY = "lower Data.workers, or set Data.workers=0 for a thread instead of processes"


class ChunkLoader(Protocol):
    """Computes the batches of a chunk from its number, such as `Pipeline`."""

    def iterate_chunk(self, chunk: int, first_batch: int = 0) -> Iterator[HostBatch]:
        """Yield the batches of a chunk, from `first_batch` on."""


def main(connection_descriptor: int, loader_descriptor: int) -> None:
    """Build chunks until the connection is closed.

    Args:
        connection_descriptor: socket for requests and replies.
        loader_descriptor: file with a pickled `ChunkLoader`.
    """
    connection = socket.socket(fileno=connection_descriptor)
    requests: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, requests), daemon=True).start()
    load = _Load(loader_descriptor)
    with warnings_as_lines():
        while True:
            request = requests.get()
            with open_anonymous() as file:
                _send(connection, load(*request, file), file)


class _Load:
    """Builds chunks with a loader that is unpickled at the first one."""

    def __init__(self, loader_descriptor: int) -> None:
        self._descriptor = loader_descriptor
        self._loader: ChunkLoader | None = None

    def __call__(self, chunk: int, first_batch: int, file: BinaryIO) -> Any:
        """Write a chunk to a file; return the fields of its batches, or an error."""
        try:
            if self._loader is None:
                size = os.fstat(self._descriptor).st_size
                self._loader = pickle.loads(os.pread(self._descriptor, size, 0))
            return write_batches(self._loader.iterate_chunk(chunk, first_batch), file)
        except Exception as error:
            return _as_reply(error)


def _as_reply(error: Exception) -> Exception:
    """Return an error that can be pickled and names the remedy for a lack of memory."""
    if _is_out_of_memory(error):
        return UserError(f"a loader process is out of memory ({error}); {MEMORY_REMEDY}")
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"a loader process failed:\n{text}")
    if not isinstance(error, UserError):
        error.add_note(f"in a loader process:\n{text}")
    return error


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether memory is short; the file of a chunk has no name, others are on a disk."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOMEM, errno.ENOSPC) and error.filename is None
    return isinstance(error, MemoryError)


def _receive(connection: socket.socket, requests: queue.SimpleQueue[tuple[int, int]]) -> None:
    """Queue requests; end the process when the other end is closed."""
    try:
        while len(data := connection.recv(REQUEST.size, socket.MSG_WAITALL)) == REQUEST.size:
            requests.put(REQUEST.unpack(data))
    finally:
        os._exit(0)


def _send(connection: socket.socket, reply: Any, file: BinaryIO) -> None:
    data = pickle.dumps(reply)
    try:
        socket.send_fds(connection, [REPLY_SIZE.pack(len(data))], [file.fileno()])
        connection.sendall(data)
    except OSError:  # the other end is closed
        os._exit(0)
