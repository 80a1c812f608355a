"""Tells whose fault a failed read or write is: the file's, the machine's, or the storage's."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

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
