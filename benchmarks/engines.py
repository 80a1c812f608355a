"""Worker processes of engines under comparison, driven by JSON lines."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.errors import UserError


class Worker:
    """An engine in a separate process.

    Args:
        command: command line of the process; it reads requests as lines of JSON and answers each
            with one line.
        core: CPU core that the process is bound to; None for a GPU, with all cores of the machine.
    """

    def __init__(self, command: Sequence[str], core: int | None) -> None:
        # Engines share the memory of a GPU.
        environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        if core is not None:
            environment = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        if core is not None:
            os.sched_setaffinity(self._process.pid, {core})

    def ask(self, request: Any) -> dict[str, Any]:
        """Send a request; return the answer.

        Raises:
            UserError: if the process ends instead.
        """
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise UserError(f"ended with status {self._process.wait()}; its message is above")
        return json.loads(line)

    def end(self) -> None:
        """Close the input of the process and wait for its end."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


def ask_in_turns(
    workers: Mapping[str, Worker], names: Sequence[str], request: Any, rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Ask some workers in turns: once to warm up, then `rounds` times.

    Returns:
        The answers of each worker after the first; none if it failed, so one that runs out of
        memory does not cost the measurements of the others.
    """
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    failed = set[str]()
    for _ in range(rounds + 1):
        for name in names:
            if name in failed:
                continue
            try:
                answers[name].append(workers[name].ask(request))
            except UserError as error:
                print(f"{name} {error}", file=sys.stderr, flush=True)
                failed.add(name)
    return {name: [] if name in failed else answers[name][1:] for name in names}


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Measure while no other process does that has the same file in `MEASURING`, if it is set.

    So programs can compile beside each other, which takes most of a benchmark's time on a GPU.
    """
    if not (name := os.environ.get("MEASURING")):
        yield
        return
    with Path(name).open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def peak_kib() -> int:
    """Return the peak resident memory of this process; `getrusage` would include its parent's."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
