"""Fork server for scripts: each runs in a fork of a process that has imported everything.

Imports take a second and a half of a script's start, and the tests start some two hundred. The
standard library's fork server pays them once; what the scripts import is its state before JAX has
looked for devices, so the fork can have its own. Tests of starting itself take real processes.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import functools
import gc
import json
import multiprocessing
import multiprocessing.connection
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 1200  # seconds: only what hangs takes so long, on however busy a machine
_IMPORTED = (
    "mnmt_jax.training.train",
    "mnmt_jax.decoding.translator",
    "mnmt_jax.evaluation.evaluate",
    "mnmt_jax.evaluation.optional_metrics",
    "mnmt_jax.data.mixtures",
    "array_record.python.array_record_module",
    "google.cloud.storage",  # tensorboardX does, where it is installed
    "gcsfs",
    "tqdm",
    "grain.experimental",
)
# That the children's programs be those of the tests, which the cache of programs then has.
_AS_HERE = [
    name
    for name in ("tests.threefry_reduction", "tests.shared_programs", "tests.shared_contexts")
    if name in sys.modules
]
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([*_IMPORTED, *_AS_HERE, __name__])


class Child:
    """A started script, with the interface of `subprocess.Popen`.

    Attributes:
        pid: of its process.
    """

    def __init__(self, process: Any, folder: tempfile.TemporaryDirectory) -> None:
        self._process, self._folder = process, folder
        self.pid: int = process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, or minus the signal's number; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return `returncode`.

        Raises:
            subprocess.TimeoutExpired: if it runs longer than this, in seconds.
        """
        self._process.join(timeout)
        status = self.returncode
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return status

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; return stdout and stderr."""
        self.wait(timeout)
        return self.printed(), self.said()

    def send_signal(self, number: int) -> None:
        """Send a signal unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def printed(self) -> str:
        """Return the output on stdout so far."""
        return self._read("out")

    def said(self) -> str:
        """Return the output on stderr so far."""
        return self._read("err")

    def _read(self, name: str) -> str:
        return (Path(self._folder.name) / name).read_text(encoding="utf-8")


def start(
    script: str,
    *arguments: object,
    cwd: str | os.PathLike[str] = ROOT,
    variables: Mapping[str, str] | None = None,
    text: str = "",
) -> Child:
    """Start a script.

    Args:
        script: its file in `scripts/`.
        arguments: of the command line.
        cwd: folder it runs in.
        variables: of its environment, besides this process's.
        text: standard input.
    """
    folder = tempfile.TemporaryDirectory(prefix="script-")
    streams = tuple(Path(folder.name) / name for name in ("in", "out", "err"))
    for stream in streams:
        stream.write_text(text if stream.name == "in" else "", encoding="utf-8")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **(variables or {})}
    argv = [str(ROOT / "scripts" / script), *map(str, arguments)]
    return Child(_fork(argv, os.fspath(cwd), environment, streams), folder)


def run(script: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a script to its end; see `start`."""
    child = start(script, *arguments, **options)
    printed, said = child.communicate()
    return subprocess.CompletedProcess([script, *arguments], child.wait(), printed, said)


@functools.cache
def serve_starts() -> Path:
    """Serve requests of `tests/start_script.py` as long as this process lives.

    Returns:
        The socket to give it.
    """
    place = Path(tempfile.mkdtemp(prefix="starts-")) / "socket"  # short, as sockets' names must be
    atexit.register(shutil.rmtree, place.parent, ignore_errors=True)
    door = socket.socket(socket.AF_UNIX)
    door.bind(os.fspath(place))
    door.listen()

    def serve() -> None:
        while True:
            line, _ = door.accept()
            threading.Thread(target=_start_for, args=(line,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return place


def _start_for(line: socket.socket) -> None:
    """Run the script that a process requests, on its streams; kill it if that process ends."""
    with line:
        number, argv, cwd, environment = json.loads(line.makefile().readline())
        process = _fork(argv, cwd, environment, [Path(f"/proc/{number}/fd/{n}") for n in range(3)])
        if line in multiprocessing.connection.wait([line, process.sentinel]):
            process.kill()
        process.join()
        status = process.exitcode
        with contextlib.suppress(BrokenPipeError):
            line.sendall(f"{status if status >= 0 else 128 - status}\n".encode())


def _fork(
    argv: list[str], cwd: str, environment: Mapping[str, str], streams: Sequence[Path]
) -> Any:
    """Fork and start a script, given its file, arguments and three streams."""
    process = _SERVER.Process(
        target=_run_script,
        args=(argv, cwd, environment, streams),
        daemon=True,  # ends with the test's process
    )
    process.start()
    return process


def _run_script(
    argv: list[str], cwd: str, environment: Mapping[str, str], streams: Sequence[Path]
) -> None:
    """Run the script in a fork of the server."""
    gc.freeze()  # looking through what was imported would copy its pages
    gc.set_threshold(100_000, 10, 10)  # as in conftest.py
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND), number)
    # The server's own remember whether one can seek in them.
    sys.stdin = open(0, closefd=False)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    _read_variables_of_jax(environment)
    os.chdir(cwd)
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")


def _read_variables_of_jax(environment: Mapping[str, str]) -> None:
    """Apply the environment variables that JAX reads when it is imported."""
    import jax

    for variable, text in environment.items():
        name = variable.lower()
        if name in jax.config.values:
            try:
                value = ast.literal_eval(text)
            except (SyntaxError, ValueError):
                value = text
            jax.config.update(name, value)
