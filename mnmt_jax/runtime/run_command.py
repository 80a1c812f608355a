"""Entry point of commands: exit status, one-line errors and warnings, flushed output."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from mnmt_jax.errors import (
    FULL_ERRNOS,
    STORAGE_ERRNOS,
    TRY_AGAIN_STATUS,
    MnmtWarning,
    OutageError,
    UserError,
    is_out_of_memory,
    name_os_errors,
    warn,
)
from mnmt_jax.runtime.compilation_cache import enable_compilation_cache
from mnmt_jax.runtime.interrupts import redeliver_interrupts

# Further errors of paths that cannot be written or read; with the path they need no traceback.
_NAMES = (errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR)
_OUTPUT = "standard output"
_SIGNAL_STATUS = 128  # exit status of a process ended by a signal, minus the signal number
_NO_TEMPORARY = "No usable temporary directory"


def _keep_programs() -> None:
    try:
        enable_compilation_cache()
    except ValueError as error:
        raise UserError(str(error)) from error


def run_command(main: Callable[[], int | None]) -> None:
    """Run a command's `main` and exit the process with its status.

    Args:
        main: takes no arguments; returns an exit status, or None for success.

    The status is 0 on success; 2 after a `UserError`, a refused path, a full disk, lack of memory
    or an invalid JAX variable (one line on stderr); 75 after an `OutageError` (one line); 130 after
    Ctrl-C; and 141 if the output pipe is closed. Any other exception is a bug and keeps its
    traceback.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # as standard error: \xe5 in place of an error
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _keep_programs()
        with warnings_as_lines(), redeliver_interrupts():
            status = main() or 0
        flush_output()
        if status > _SIGNAL_STATUS:
            exit_immediately(status)  # a thread may wait for a bucket
    except UserError as error:
        status = TRY_AGAIN_STATUS if isinstance(error, OutageError) else 2
        print(f"error: {error}", file=sys.stderr)
    except (AssertionError, MemoryError, RuntimeError, ValueError) as error:
        message = _out_of_memory(error) or _variable_of_jax(error)
        if not message:
            raise
        status = 2
        print(f"error: {message}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; repeat the command to continue", file=sys.stderr)
        exit_immediately(130)
    except BrokenPipeError:
        status = 141
    except OSError as error:
        line = _refused_path(error)
        if not line:
            raise
        status = 2
        print(f"error: {line}", file=sys.stderr)
    _drop_output()
    sys.exit(status)


@contextlib.contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print the library's warnings, logged or raised, as `warning: TEXT` lines on stderr."""
    logger, show = logging.getLogger("mnmt_jax"), warnings.showwarning
    handler, propagate = logging.StreamHandler(sys.stderr), logger.propagate
    handler.setFormatter(_Lines())

    def print_line(message: Warning | str, category: type[Warning], *location: Any) -> None:
        if issubclass(category, MnmtWarning):
            warn(str(message))
        else:
            show(message, category, *location)

    logger.addHandler(handler)
    logger.propagate = False  # handlers of other libraries would print the line again
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", MnmtWarning)
            warnings.showwarning = print_line  # type: ignore[assignment]
            yield
    finally:
        logger.propagate = propagate
        logger.removeHandler(handler)


class _Lines(logging.Formatter):
    """Formats a record as `warning: TEXT`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return f"{record.levelname.lower()}: {super().format(record)}"


def _out_of_memory(error: Exception) -> str:
    """Return one line about a lack of memory; empty for any other error."""
    if not is_out_of_memory(error):
        return ""
    text = " ".join(str(error).removeprefix("RESOURCE_EXHAUSTED:").split())[:200]
    return (
        f"out of memory ({text or 'the machine has no more'}); lower Data.rows or Decode.batch, or "
        "use a smaller model ('mnmt describe' prints sizes)"
    )


def _refused_path(error: OSError) -> str:
    """Return one line about a path refused by the system; empty for any other error."""
    if _NO_TEMPORARY in str(error):
        return f"{error.strerror}; make room there, or set TMPDIR to another folder"
    # Written files have a name, by `name_os_errors`; an error without one is about standard output.
    if error.errno not in (FULL_ERRNOS if error.filename is None else (*STORAGE_ERRNOS, *_NAMES)):
        return ""
    remedy = "make room, or choose" if error.errno in FULL_ERRNOS else "choose"
    return f"{error.filename or _OUTPUT}: {error.strerror}; {remedy} another path"


def _variable_of_jax(error: Exception) -> str:
    """Return one line about the JAX environment variable behind an error; empty if none."""
    if "jax" not in sys.modules:  # its import fails on an invalid value
        match = re.search(r"\bjax_\w+", str(error), re.IGNORECASE)
        name = match[0].upper() if match else ""
        problem = "JAX cannot read this environment variable; unset or fix it"
        return f"{name}={os.environ[name]}: {problem}" if name in os.environ else ""
    platforms = os.environ.get("JAX_PLATFORMS")
    if not platforms or isinstance(error, ValueError):
        return ""
    import jax

    try:
        jax.devices()
    except (AssertionError, RuntimeError) as device_error:
        reason, *_ = str(device_error).split(" (set JAX_PLATFORMS")
        problem = f"JAX finds no such devices here{reason and f' ({reason})'}"
        return f"JAX_PLATFORMS={platforms}: {problem}; unset it or name others"
    return ""


def signal_status(number: int) -> int:
    """Return the exit status of a process that a signal ended.

    Args:
        number: of the signal, e.g. `signal.SIGTERM`.
    """
    return _SIGNAL_STATUS + number


def exit_immediately(status: int) -> NoReturn:
    """End the process without the interpreter's shutdown.

    Compilers and devices may still be running in threads, which would crash in the shutdown.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def flush_output() -> None:
    """Flush standard output.

    Raises:
        OSError: if it cannot be written; the error names it.
    """
    if sys.stdout is not None:
        with name_os_errors(_OUTPUT):
            sys.stdout.flush()


def _drop_output() -> None:
    """Discard output that cannot be written: Python would fail on it again at exit."""
    try:
        flush_output()
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
