"""Engines that are compared: each a process of its own, asked a line at a time."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Worker:
    """An engine in a process of its own.

    Args:
        command: what starts it; it reads lines of JSON and answers each with one.
        core: number of the only core that it has; None is a GPU, with the cores of the machine.
    """

    def __init__(self, command: Sequence[str], core: int | None) -> None:
        # On a GPU engines share the memory.
        own = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        if core is not None:
            own = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | own,
            preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
        )

    def ask(self, asked: Any) -> dict[str, Any]:
        """Lets it work once; returns what it says."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise SystemExit(self._process.wait() or 1)
        return json.loads(line)

    def end(self) -> None:
        """Lets it end."""
        self._process.communicate()


def peak_kib() -> int:
    """Returns the most memory that this process has had; `getrusage` counts its parent's too."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
