"""Several processes as one run: how they meet, agree, and end when one of them is gone.

Every process runs the same program on its own devices. JAX's coordination service, in process 0,
hears a sign of life from each of them; when one is silent too long it ends the others, from inside
the runtime, without Python's knowing. So each process is the child of a small one that holds no
device: `supervise` says in one line what happened and how to go on.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from mnmt_jax.distributed.work_shards import are_given
from mnmt_jax.errors import UserError
from mnmt_jax.runtime.run_command import run_command

LOST_STATUS = 75  # "try again", as in sysexits.h
_HEARTBEAT_SECONDS = 40  # within a minute with what ending takes
_HUNG_SECONDS = 1800  # between two updates, validation or a save in between included
_LINGER_SECONDS = 3
_UPDATES_AHEAD = 2  # before a request to stop is heard: nobody waits for the answer
_LOST = (
    "another process has ended or does not answer; start the same command in every process again: "
    "the run continues from its last checkpoint"
)


def add_process_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say how several processes meet."""
    group = parser.add_argument_group("several processes")
    group.add_argument(
        "--distributed",
        action="store_true",
        help="one of several processes that a TPU pod, SLURM or Open MPI started",
    )
    group.add_argument(
        "--coordinator_address", metavar="HOST:PORT", help="elsewhere: where process 0 listens"
    )
    group.add_argument("--num_processes", type=int, metavar="N", help="how many there are")
    group.add_argument("--process_id", type=int, metavar="I", help="which this is, from 0")
    group.add_argument(
        "--heartbeat_seconds",
        type=int,
        default=_HEARTBEAT_SECONDS,
        metavar="S",
        help="silence after which a process counts as gone (default %(default)s)",
    )


def is_distributed(flags: argparse.Namespace) -> bool:
    """Returns whether the flags of `add_process_flags` ask for several processes.

    Raises:
        UserError: if they do in part.
    """
    named = are_given(flags, ("coordinator_address", "num_processes", "process_id"))
    return flags.distributed or named


def connect(flags: argparse.Namespace) -> None:
    """Joins the other processes; waits for them. Before anything else is asked of JAX.

    Args:
        flags: from `add_process_flags`.

    Raises:
        UserError: if they do not meet.
    """
    import jax

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
            f"the processes did not meet ({text}); pass --coordinator_address, --num_processes and "
            "--process_id"
        ) from error


def supervise(work: Callable[[], int | None]) -> int | None:
    """Runs `work` in a child process and says in one line why it was ended, if it was.

    Call it before JAX, or anything else that makes threads, is imported. SIGTERM is passed on;
    Ctrl-C reaches the child by itself. The child ends with this process.

    Args:
        work: a command's `main`; only the child calls it, and never returns from it.

    Returns:
        The child's exit status; `LOST_STATUS` if the runtime ended it, 128 and the signal's number
        for another signal. Both are explained on stderr.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        threading.Thread(target=_end_with_parent, args=(reader,), daemon=True).start()
        _run_child(work)
    os.close(reader)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status >= 0:
        return status
    name = signal.Signals(-status).name
    if name == "SIGABRT":  # how the runtime ends a process
        print(f"error: {_LOST}", file=sys.stderr)
        return LOST_STATUS
    why = "; out of memory?" if name == "SIGKILL" else ""
    print(f"error: {name} ended this process{why}", file=sys.stderr)
    return 128 - status


def _run_child(work: Callable[[], int | None]) -> NoReturn:
    """Runs the command and leaves: after an error at once, since the others may wait for ever.

    Process 0 leaves a little later: without it the runtime ends the others before they have told
    their own error.
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
    if status not in (0, LOST_STATUS) and is_first():
        time.sleep(_LINGER_SECONDS)
    os._exit(status)


def _run_or_lose(work: Callable[[], int | None]) -> int | None:
    import jax

    try:
        status = work()
        jax.distributed.shutdown()  # together: all of them come to this end
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
    os.read(reader, 1)  # ends when the parent does
    os._exit(1)


def is_first() -> bool:
    """Returns whether this process writes what a run writes once."""
    import jax

    return jax.process_index() == 0


def wait_for_all(name: str) -> None:
    """Waits until every process is here; nothing to wait for if there is one.

    Args:
        name: of the place, the same in all of them.
    """
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices(name)


def told_by_first(numbers: Sequence[int]) -> list[int]:
    """Returns the numbers, from 0, that process 0 has; it may raise instead, which ends the others.

    Args:
        numbers: own ones, which count in process 0; the first 64 of them are told.
    """
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return [int(number) for number in numbers]
    told = np.full(64, -1, np.int32)
    own = np.asarray(numbers[: told.size], np.int32)
    told[: own.size] = own
    return [n for n in np.asarray(multihost_utils.broadcast_one_to_all(told)).tolist() if n >= 0]


def check_alike(what: str, text: str) -> None:
    """Checks that every process has the same text.

    Args:
        what: its name, for the message.
        text: what must be the same.

    Raises:
        UserError: in every process, if one differs.
    """
    from jax.experimental import multihost_utils

    own = np.uint32(zlib.crc32(text.encode()))
    found = np.asarray(multihost_utils.process_allgather(own)).reshape(-1)
    if differing := np.flatnonzero(found != found[0]).tolist():
        raise UserError(
            f"{what} of process {differing[0]} differs from that of process 0; start every process "
            "with the same command"
        )


class Agreement:
    """Lets all processes stop after the same update when one of them was asked to.

    The question travels beside the updates, as one number per device, and the answer is read when
    it has long arrived: no update waits for it. Whoever then stands still, the others waiting, is
    ended and shows where it stood. With one process nothing is asked or ended.
    """

    def __init__(self, mesh: Any, asked: Callable[[], int]) -> None:
        """Compiles the question.

        Args:
            mesh: of the run.
            asked: returns the signal that this process was sent; 0 is none.
        """
        import jax

        from mnmt_jax.distributed.sharding import compile_on

        self._asked, self._heard = asked, 0
        self._several = jax.process_count() > 1
        self._answers: collections.deque[Any] = collections.deque()
        self._own = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(mesh.axis_names))
        whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        self._largest = compile_on(mesh, lambda numbers: numbers.max(), out_shardings=whole)

    def __enter__(self) -> Agreement:
        return self

    def __exit__(self, *error: object) -> None:
        if self._several:
            faulthandler.cancel_dump_traceback_later()

    def signal(self) -> signal.Signals | None:
        """Returns the signal to stop for, or None. Every process calls it once per update."""
        if not self._several:
            self._heard = self._asked()
        else:
            faulthandler.dump_traceback_later(_HUNG_SECONDS, exit=True)
            self._answers.append(self._largest(self._question()))
            if len(self._answers) > _UPDATES_AHEAD:
                self._heard = max(self._heard, int(self._answers.popleft()))
        return signal.Signals(self._heard) if self._heard else None

    def _question(self) -> Any:
        import jax

        number = np.full((1,), self._asked(), np.int32)
        shape = (self._own.mesh.size,)
        return jax.make_array_from_callback(shape, self._own, lambda _: number)
