"""Tells whose fault a failed read or write is: the file's, the machine's, or the storage's."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

# What tensorstore and the devices call the machine's trouble.
_MACHINE = ("RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "UNAVAILABLE", "Out of memory")
_STORAGE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EFBIG,
    errno.EIO,
    errno.EACCES,
    errno.EPERM,
    errno.ESTALE,
)


def storage_trouble(error: BaseException) -> str:
    """Returns in the system's words why storage refused a write; empty if something else failed."""
    for cause in _causes(error):
        for number in _STORAGE:
            text = os.strerror(number)
            if getattr(cause, "errno", None) == number or text in str(cause):
                return text
    return ""


def refusal(folder: Path, size: int) -> str:
    """Returns why a folder would not take so many bytes; empty if it would, as a bucket does."""
    if "://" in str(folder):
        return ""
    try:
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return error.strerror or str(error)
    if free >= size:
        return ""
    return f"No space left on device: {size:,} bytes needed, {free:,} free"


def is_machine_trouble(error: BaseException) -> bool:
    """Returns whether a read failed for a reason that is not the file's."""
    return any(
        isinstance(cause, MemoryError | PermissionError)
        or any(trouble in str(cause) for trouble in _MACHINE)
        for cause in _causes(error)
    )


def one_line(error: BaseException) -> str:
    """Returns an error's text in one line of at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}..."


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
