"""Subprocesses with limited memory and CPU time, for hostile files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_limited(
    code: str, *arguments: object, megabytes: int = 1024, cpu_seconds: int = 60
) -> subprocess.CompletedProcess[str]:
    """Run code that must end within limits; quadratic work would need many times as much.

    Args:
        code: of Python.
        *arguments: `sys.argv[1:]` of the code.
        megabytes: of address space, the interpreter's own included.
        cpu_seconds: of processor time; the system kills what uses more.
    """

    limits = (
        "import resource as _limits\n"
        f"_limits.setrlimit(_limits.RLIMIT_AS, ({megabytes << 20},) * 2)\n"
        f"_limits.setrlimit(_limits.RLIMIT_CPU, ({cpu_seconds},) * 2)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", limits + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        # Each thread of OpenBLAS reserves address space.
        env=os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
    )


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that a process printed to stderr."""
    assert done.returncode, done.stdout
    return done.stderr.strip().splitlines()[-1]
