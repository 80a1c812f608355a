"""Multi-process runs: the same command in each process, on virtual devices of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests import fresh_process
from tests.made_run import KEEP_ALL_PROGRAMS

_HEARTBEAT = 10


class Processes:
    """Start a script in several processes; the context ends those still running.

    Args:
        script: its file in `scripts/`.
        count: of processes.
        flags: those of each, by its number.
        devices: of each.
        variables: of the environment of all.

    Attributes:
        children: as `fresh_process.start` gives them.
    """

    def __init__(
        self,
        script: str,
        count: int,
        flags: Callable[[int], Sequence[object]],
        *,
        devices: int,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        environment = {"JAX_NUM_CPU_DEVICES": str(devices), **KEEP_ALL_PROGRAMS}
        environment |= variables or {}
        self.children = []
        for number in range(count):
            given = [f"--coordinator_address={address}", f"--num_processes={count}"]
            given += [f"--process_id={number}", f"--heartbeat_seconds={_HEARTBEAT}"]
            child = fresh_process.start(script, *given, *flags(number), variables=environment)
            self.children.append(child)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self.children:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(grandchild(child), signal.SIGKILL)  # may be stopped: it hears no one
            child.kill()
            child.wait()

    def said(self, number: int) -> str:
        """Return the stderr of a process."""
        return self.children[number].said()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition while all processes run."""
        deadline = time.monotonic() + fresh_process.PATIENCE
        while not condition():
            for number, child in enumerate(self.children):
                assert child.poll() is None, self.said(number)
            assert time.monotonic() < deadline, self.said(0)
            time.sleep(0.02)

    def finish(
        self, numbers: Sequence[int], status: int, seconds: float = fresh_process.PATIENCE
    ) -> list[str]:
        """Wait until these processes end with this status; return their output."""
        deadline = time.monotonic() + seconds
        for number in numbers:
            child = self.children[number]
            child.wait(timeout=max(deadline - time.monotonic(), 1))
            assert child.returncode == status, f"{number}: {self.said(number)}"
        return [self.said(number) for number in numbers]


def grandchild(process: fresh_process.Child) -> int:
    """Return the worker process; the started one only supervises it."""
    actual = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(actual) == 1
    return int(actual[0])
