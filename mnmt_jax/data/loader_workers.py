"""Loader workers: processes that build chunks of batches in shared memory.

Worker i of n builds the chunks i, i + n, ... after the first. Chunks are returned in order, so the
batches do not depend on the number of workers. While a chunk is consumed, each worker builds its
next one and keeps it until its turn: at most n + 1 chunks are in memory.

The workers are started as `python -c`, not by `multiprocessing`: that would import the main module
of the program again, which fails in scripts without `if __name__ == "__main__"`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from mnmt_jax.data.converter import HostBatch
from mnmt_jax.data.shared_batches import open_anonymous, read_batches
from mnmt_jax.data.worker_process import MEMORY_REMEDY, REPLY_SIZE, REQUEST, ChunkLoader
from mnmt_jax.errors import OutageError, UserError

_BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_END_SECONDS = 10
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_MAIN = """
import sys
sys.path[:] = {path!r}
from mnmt_jax.data.worker_process import main
main({connection}, {loader})
"""


class LoaderWorkers:
    """Iterator over the batches of consecutive chunks, built by processes."""

    def __init__(
        self, loader: ChunkLoader, workers: int, first_chunk: int = 0, first_batch: int = 0
    ) -> None:
        """Start the processes and request their first chunks.

        Args:
            loader: computes chunks; it is pickled.
            workers: number of processes, at least 1.
            first_chunk: number of the first chunk.
            first_batch: number of the first batch in it.

        Raises:
            UserError: if the system refuses a process.
        """
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end_all, self._workers)
        self._chunk = first_chunk
        with open_anonymous() as file:
            pickle.dump(loader, file)
            file.flush()
            self._workers.extend(_Worker(file) for _ in range(workers))
        for number, worker in enumerate(self._workers):
            worker.request(first_chunk + number, 0 if number else first_batch)

    def __iter__(self) -> LoaderWorkers:
        return self

    def __next__(self) -> list[HostBatch]:
        """Return the batches of the next chunk.

        Raises:
            UserError: if the process was lost, or if the loader does.
        """
        worker = self._workers[0]
        batches = worker.receive()
        worker.request(self._chunk + len(self._workers), 0)
        self._chunk += 1
        self._workers.append(self._workers.pop(0))
        return batches

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Process ids of the workers, in the order of their next chunks."""
        return tuple(worker.process_id for worker in self._workers)

    def close(self) -> None:
        """End the processes. Batches that were returned stay valid."""
        self._finalizer()


class _Worker:
    """A process and the socket to it."""

    def __init__(self, loader_file: BinaryIO) -> None:
        self._connection, remote = socket.socketpair()
        with remote, _blocked_signals():
            self._process = _start_process(remote.fileno(), loader_file.fileno())

    @property
    def process_id(self) -> int:
        return self._process.pid

    def request(self, chunk: int, first_batch: int) -> None:
        with contextlib.suppress(OSError):  # a lost process; `receive` says so
            self._connection.sendall(REQUEST.pack(chunk, first_batch))

    def receive(self) -> list[HostBatch]:
        """Wait for the requested chunk.

        Raises:
            UserError: if the process was lost, or if the loader does.
        """
        data = b""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(ConnectionError):
                header, descriptors, *_ = socket.recv_fds(
                    self._connection, REPLY_SIZE.size, 1, _CLOSE_ON_EXEC
                )
                for descriptor in descriptors:
                    stack.callback(os.close, descriptor)
                data = self._receive_bytes(REPLY_SIZE.unpack(header)[0]) if header else b""
            if not data:
                raise self._lost()
            reply: Any = pickle.loads(data)
            if isinstance(reply, Exception):
                raise reply
            return read_batches(reply, descriptors[0])

    def _receive_bytes(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._connection.recv(size - len(data))
            if not part:
                return b""
            data += part
        return bytes(data)

    def _lost(self) -> UserError:
        """Return the error of a process that ended by itself."""
        try:
            status = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            status = 0
        if status < 0:
            return OutageError(
                f"a loader process was killed by {signal.Signals(-status).name}: memory may be "
                f"short; {MEMORY_REMEDY}; the same command continues from the last checkpoint"
            )
        cause = f"ended with status {status}; its messages are above"
        return UserError(f"a loader process {cause}; {MEMORY_REMEDY}")

    def close(self) -> None:
        """Close the connection, at which the process ends."""
        self._connection.close()

    def wait(self) -> None:
        """Wait until the process has ended; kill it if it hangs, e.g. in a lost file system."""
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _start_process(connection: int, loader: int) -> subprocess.Popen[bytes]:
    """Start a worker with two file descriptors, the arguments of its `main`.

    Raises:
        UserError: if the system refuses another process.
    """
    path = [path for path in sys.path if isinstance(path, str)]
    code = _MAIN.format(path=path, connection=connection, loader=loader)
    try:
        return subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            pass_fds=(connection, loader),
            env={**os.environ, **_SINGLE_THREADED},
        )
    except OSError as error:
        raise UserError(
            f"no further loader process can be started ({error.strerror}); {MEMORY_REMEDY}"
        ) from error


def _end_all(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.close()
    for worker in workers:
        worker.wait()


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block signals that a started process shall not receive; it inherits the blocking.

    Ctrl-C in a terminal and schedulers send their signals to all processes of a program. The
    trainer finishes its step then, for which it may need another batch.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
