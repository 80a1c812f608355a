"""Classification of read and write errors: file, machine, network or storage."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from mnmt_jax.errors import FULL_ERRNOS, STORAGE_ERRNOS

# Words in errors of tensorstore and devices for machine and network problems.
_MACHINE = ("RESOURCE_EXHAUSTED", "Out of memory")
_NETWORK = ("DEADLINE_EXCEEDED", "UNAUTHENTICATED", "UNAVAILABLE", "PERMISSION_DENIED", "ABORTED")
_CLIENTS = ("aiohttp", "gcsfs", "google", "requests", "urllib3")  # their errors are network errors
# Errors about the file itself, which may lack a number.
_FILE_ERRORS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, gzip.BadGzipFile)


def storage_error_reason(error: BaseException) -> str:
    """Return the system's reason for a refused write; empty if something else failed."""
    network = (one_line(cause) for cause in causes(error) if _is_network_trouble(cause))
    return system_error_reason(error) or next(network, "")


def system_error_reason(error: BaseException) -> str:
    """Return the reason as in `storage_error_reason`, without network errors."""
    for cause in causes(error):
        for number in STORAGE_ERRNOS:
            text = os.strerror(number)
            if getattr(cause, "errno", None) == number or text in str(cause):
                return text
    return ""


def write_refusal(folder: Path, size: int) -> str:
    """Return why `size` bytes cannot be written to a folder; empty if they can."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return error.strerror or str(error)
    if free >= size:
        return ""
    return f"No space left on device: {size:,} bytes needed, {free:,} free"


def write_remedy(reason: str) -> str:
    """Return the remedy for a refused write.

    Args:
        reason: reason from `storage_error_reason` or `write_refusal`.
    """

    def is_one_of(numbers: Iterable[int]) -> bool:
        return any(reason.startswith(os.strerror(number)) for number in numbers)

    if is_one_of(FULL_ERRNOS):
        return "make room"
    cause = "storage" if is_one_of(STORAGE_ERRNOS) else "network"
    return f"see to the {cause} and your rights"


def is_machine_error(error: BaseException) -> bool:
    """Return whether a read failed for a reason other than the file itself."""
    return any(
        isinstance(cause, MemoryError | PermissionError)
        or _is_network_trouble(cause)
        or any(trouble in str(cause) for trouble in _MACHINE)
        for cause in causes(error)
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that led to it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def one_line(error: BaseException) -> str:
    """Return an error's text in at most 200 characters; with its type if it is a single word."""
    text = " ".join(str(error).split())
    if " " not in text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}..."


def _is_network_trouble(cause: BaseException) -> bool:
    if isinstance(cause, _FILE_ERRORS):
        return False
    return (
        isinstance(cause, ConnectionError | TimeoutError)
        # gcsfs reports forbidden access without a number.
        or (isinstance(cause, OSError) and cause.errno is None)
        or type(cause).__module__.partition(".")[0] in _CLIENTS
        or _was_raised_in_a_client(cause)
        or any(word in str(cause) for word in _NETWORK)
    )


def _was_raised_in_a_client(cause: BaseException) -> bool:
    """Return whether a client failed on an invalid answer, such as a proxy's."""
    frames = (frame for frame, _ in traceback.walk_tb(cause.__traceback__))
    return any(
        frame.f_globals.get("__name__", "").partition(".")[0] in _CLIENTS for frame in frames
    )
