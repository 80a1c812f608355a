"""Multi-process runs: connection, agreement, and a clean end when one process is lost.

Every process runs the same program on its own devices. JAX's coordination service, in process 0,
receives heartbeats from each of them. When one is silent too long, the runtime aborts the others
without notifying Python. Each process is therefore the child of a small supervisor without devices:
`supervise` prints one line that says what happened and how to continue.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from mnmt_jax.distributed.work_shards import are_given
from mnmt_jax.errors import TRY_AGAIN_STATUS, UserError
from mnmt_jax.runtime.run_command import run_command, signal_status

LOST_STATUS = TRY_AGAIN_STATUS
_HEARTBEAT_SECONDS = 40  # a process ends within a minute, shutdown included
_HUNG_SECONDS = 1800  # between two updates or two batches of a validation, including saving
_LINGER_SECONDS = 3
_UPDATES_AHEAD = 2  # before the result of an exchange is read, so that no update waits for it
_AGAIN = "start the same command in every process again: the run continues from its last checkpoint"
_LOST = f"another process has exited or does not respond; {_AGAIN}"


def add_process_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for connecting several processes."""
    group = parser.add_argument_group("several processes")
    group.add_argument(
        "--distributed",
        action="store_true",
        help="this is one of several processes started by a TPU pod, SLURM or Open MPI",
    )
    group.add_argument(
        "--coordinator_address",
        metavar="HOST:PORT",
        help="without --distributed: address at which process 0 listens",
    )
    group.add_argument(
        "--num_processes", type=int, metavar="N", help="number of processes; default: 1"
    )
    group.add_argument("--process_id", type=int, metavar="I", help="index of this process, from 0")
    group.add_argument(
        "--heartbeat_seconds",
        type=int,
        default=_HEARTBEAT_SECONDS,
        metavar="S",
        help="seconds without a heartbeat after which a process counts as lost (default "
        "%(default)s)",
    )


def is_distributed(flags: argparse.Namespace) -> bool:
    """Return whether the flags of `add_process_flags` request several processes.

    Raises:
        UserError: if only some of the flags are set, or a value is out of range.
    """
    if flags.heartbeat_seconds < 1:  # the runtime would abort
        raise UserError(f"--heartbeat_seconds={flags.heartbeat_seconds} must be at least 1")
    named = are_given(flags, ("coordinator_address", "num_processes", "process_id"))
    return flags.distributed or named


def connect(flags: argparse.Namespace) -> None:
    """Connect to the other processes and wait for them. Call it before any other use of JAX.

    Args:
        flags: from `add_process_flags`.

    Raises:
        UserError: if the connection fails.
    """
    import jax

    if address := flags.coordinator_address:
        _, separator, port = address.rpartition(":")
        if not separator or not port.isdecimal() or not 0 < int(port[:6]) < 2**16:
            raise UserError(
                f"--coordinator_address={address} must be HOST:PORT, with a port from 1 to 65535"
            )
    try:
        jax.distributed.initialize(
            coordinator_address=flags.coordinator_address,
            num_processes=flags.num_processes,
            process_id=flags.process_id,
            heartbeat_timeout_seconds=flags.heartbeat_seconds,
        )
    except (RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())
        raise UserError(
            f"the processes could not connect ({text}); pass --coordinator_address, "
            "--num_processes and --process_id"
        ) from error


def supervise(work: Callable[[], int | None]) -> int | None:
    """Run `work` in a child process, and print one line with the cause if it is killed.

    Call it before importing JAX, or anything else that starts threads. SIGTERM is forwarded; Ctrl-C
    reaches the child directly. The child ends with this process.

    Args:
        work: a command's `main`; only the child calls it, and never returns from it.

    Returns:
        The child's exit status; `LOST_STATUS` if the runtime aborted it or it hung, 128 plus the
        signal's number for another signal. These are explained on stderr.
    """
    reader, writer = os.pipe()
    ended_reader, ended_writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        threading.Thread(target=_end_with_parent, args=(reader,), daemon=True).start()
        _run_child(work, ended_writer)
    os.close(reader)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 1 and not _is_written(ended_reader):
        print(f"error: {_hung_message()}", file=sys.stderr)
        return LOST_STATUS
    if status >= 0:
        return status
    name = signal.Signals(-status).name
    if name == "SIGABRT":  # how the runtime aborts a process
        print(f"error: {_LOST}", file=sys.stderr)
        return LOST_STATUS
    cause = "; out of memory?" if name == "SIGKILL" else ""
    print(f"error: {name} ended this process{cause}", file=sys.stderr)
    return signal_status(-status)


def _is_written(reader: int) -> bool:
    """Return whether something was written to a pipe, without waiting for it."""
    os.set_blocking(reader, False)
    try:
        return bool(os.read(reader, 1))
    except BlockingIOError:  # a process that the child has started still has it open
        return False


def _hung_message() -> str:
    minutes = _HUNG_SECONDS // 60
    return (
        f"the process on {socket.gethostname()} made no progress for {minutes} minutes, or a "
        f"library ended it; its report is above; {_AGAIN}"
    )


def _run_child(work: Callable[[], int | None], ended: int) -> NoReturn:
    """Run the command and exit; after an error at once, since the others may wait forever.

    Process 0 exits a little later: without it, the runtime aborts the others before they have
    printed their own errors.

    Args:
        work: the command's `main`.
        ended: pipe that is written to before an exit by this function.
    """
    status = 1
    try:
        run_command(lambda: _run_or_lose(work))
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(Exception):  # JAX may be what failed
        if status not in (0, LOST_STATUS) and is_first():
            time.sleep(_LINGER_SECONDS)
    os.write(ended, b".")
    os._exit(status)


def _run_or_lose(work: Callable[[], int | None]) -> int | None:
    import jax

    try:
        status = work()
        jax.distributed.shutdown()  # all processes reach this point
        return status
    except jax.errors.JaxRuntimeError as error:
        text = " ".join(str(error).split())
        if not text.startswith(("UNAVAILABLE", "DEADLINE_EXCEEDED")) and not any(
            library in text for library in ("Gloo", "NCCL")
        ):
            raise
        print(f"error: {_LOST} ({text[:200]})", file=sys.stderr)
        return LOST_STATUS


def _end_with_parent(reader: int) -> None:
    os.read(reader, 1)  # returns when the parent ends
    os._exit(1)


def is_first() -> bool:
    """Return whether this process writes the files that a run writes once."""
    import jax

    return jax.process_index() == 0


def wait_for_all(name: str) -> None:
    """Wait until every process reaches this barrier; return at once if there is only one.

    Args:
        name: of the barrier, the same in all of them.
    """
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices(name)


def broadcast_from_first(numbers: Sequence[int]) -> list[int]:
    """Broadcast process 0's numbers to every process.

    Process 0 may raise instead, which ends the others.

    Args:
        numbers: non-negative; only those of process 0 count, and of these the first 64.
    """
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return [int(number) for number in numbers]
    buffer = np.full(64, -1, np.int32)
    local_numbers = np.asarray(numbers[: buffer.size], np.int32)
    buffer[: local_numbers.size] = local_numbers
    return [n for n in np.asarray(multihost_utils.broadcast_one_to_all(buffer)).tolist() if n >= 0]


def check_same_on_all(name: str, text: str) -> None:
    """Check that every process has the same text.

    Args:
        name: its name, for the message.
        text: must be the same in every process.

    Raises:
        UserError: in every process, if the text differs in one.
    """
    from jax.experimental import multihost_utils

    checksum = np.uint32(zlib.crc32(text.encode()))
    checksums = np.asarray(multihost_utils.process_allgather(checksum)).reshape(-1)
    if differing := np.flatnonzero(checksums != checksums[0]).tolist():
        raise UserError(
            f"{name} of process {differing[0]} differs from that of process 0; start every process "
            "with the same command"
        )


def gather_texts(text: str) -> list[str]:
    """Return the text of each process, in their order. All processes must call it together.

    Args:
        text: of this process, of any length.
    """
    from jax.experimental import multihost_utils

    data = np.frombuffer(text.encode(), np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.int32(data.size))).reshape(-1)
    padded = np.zeros(max(sizes.max(), 1), np.uint8)
    padded[: data.size] = data
    rows = np.asarray(multihost_utils.process_allgather(padded), np.uint8)
    return [
        row[:size].tobytes().decode()
        for row, size in zip(rows.reshape(sizes.size, -1), sizes, strict=True)
    ]


class Agreement:
    """Agreement to stop all processes after the same update when one of them receives a signal.

    Each update also computes the maximum of the processes' signal numbers, one per device. The
    result is read a few updates later, so that no update waits for it. A process that then makes no
    progress while the others wait is ended with a traceback. With one process there is no exchange
    and no time limit.
    """

    def __init__(self, mesh: Any, received_signal: Callable[[], int]) -> None:
        """Compile the exchange.

        Args:
            mesh: of the run.
            received_signal: returns the signal that this process received; 0 for none.
        """
        import jax

        from mnmt_jax.distributed.sharding import jit_with_mesh

        self._local_signal, self._agreed = received_signal, 0
        self._is_distributed = jax.process_count() > 1
        self._pending: collections.deque[Any] = collections.deque()
        self._per_device = jax.sharding.NamedSharding(
            mesh, jax.sharding.PartitionSpec(mesh.axis_names)
        )
        replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        self._maximum = jit_with_mesh(mesh, lambda numbers: numbers.max(), out_shardings=replicated)

    def __enter__(self) -> Agreement:
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_distributed:
            faulthandler.cancel_dump_traceback_later()

    def signal(self) -> signal.Signals | None:
        """Return the signal to stop for, or None. Every process must call it once per update."""
        if not self._is_distributed:
            self._agreed = self._local_signal()
        else:
            self.progress()
            self._pending.append(self._maximum(self._signal_per_device()))
            if len(self._pending) > _UPDATES_AHEAD:
                self._agreed = max(self._agreed, int(self._pending.popleft()))
        return signal.Signals(self._agreed) if self._agreed else None

    def progress(self) -> None:
        """Start the time limit again; updates do it themselves."""
        if self._is_distributed:
            faulthandler.dump_traceback_later(_HUNG_SECONDS, exit=True)

    def _signal_per_device(self) -> Any:
        import jax

        number = np.full((1,), self._local_signal(), np.int32)
        shape = (self._per_device.mesh.size,)
        return jax.make_array_from_callback(shape, self._per_device, lambda _: number)
