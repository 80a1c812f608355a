"""User-facing errors and warnings, and helpers for their messages."""

from __future__ import annotations

import contextlib
import difflib
import errno
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of writes refused for lack of room."""

STORAGE_ERRNOS = (
    *FULL_ERRNOS,
    errno.EROFS,
    errno.EIO,
    errno.EACCES,
    errno.EPERM,
    errno.ESTALE,
    errno.EBUSY,  # a mount point is replaced
)
"""Error numbers of writes refused by the system."""


TRY_AGAIN_STATUS = 75
"""Exit status of a command that continues if it is started again, as in `sysexits.h`."""


class UserError(ValueError):
    """An error in the user's input: one line with the file, line, field or flag, and the remedy."""


class OutageError(UserError):
    """An outage of a service that did not end in time, or a loss: the same command continues."""


def nan_output_error(place: str) -> UserError:
    """Return the error for a model whose probabilities are not numbers.

    Args:
        place: the input concerned, e.g. `line 3`.
    """
    return UserError(f"{place}: the model's output is not a number; use another checkpoint")


class MnmtWarning(UserWarning):
    """A warning to the user of this library; commands print it as one line."""


def join_names(names: Sequence[str], shown: int = 8, separator: str = ", ") -> str:
    """Return the first few names joined, and the number of further ones."""
    suffix = f" and {len(names) - shown} more" if len(names) > shown else ""
    return separator.join(names[:shown]) + suffix


def suggest(name: str, candidates: Iterable[str]) -> str:
    """Return `did you mean 'NAME'? ` for the most similar known name; empty if there is none."""
    matches = difflib.get_close_matches(name.lower(), candidates, n=1)
    return f"did you mean '{matches[0]}'? " if matches else ""


def docs_page(name: str) -> str:
    """Return the path of a page of the documentation, for messages.

    Args:
        name: name of the file, e.g. `data.md`.

    Returns:
        The path in the installed package or in the checkout; relative if below the working
            directory.
    """
    package = Path(__file__).resolve().parent
    installed = package / "docs" / name
    page = installed if installed.is_file() else package.parent / "docs" / name
    try:
        return str(page.relative_to(Path.cwd()))
    except (OSError, ValueError):  # the folder was removed, or is not above the page
        return str(page)


def warn(text: str) -> None:
    """Print a warning of a command as one line on standard error."""
    print(f"warning: {text}", file=sys.stderr)


def warn_caller(text: str) -> None:
    """Raise an `MnmtWarning` whose location is the line outside of the library that called it."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "mnmt_jax":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, MnmtWarning, stacklevel=level)


def say(line: str) -> None:
    """Print a line about the progress of a command on standard error, at once."""
    print(line, file=sys.stderr, flush=True)


def pluralize(number: int, word: str) -> str:
    """Return a number with its noun, e.g. `1 line`, `2 lines`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def install_remedy(extra: str) -> str:
    """Return the remedy for a missing package: the command that installs an extra."""
    return f"pip install '.[{extra}]' in a clone of mnmt-jax"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the machine or a device is out of memory."""
    text = str(error)
    is_device = isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in text
    return isinstance(error, MemoryError) or (is_device and "memory" in text.lower())


@contextlib.contextmanager
def name_os_errors(name: str, *others: str) -> Iterator[None]:
    """Set the file name of system errors to the name known to the user.

    Args:
        name: name for errors without one.
        others: names that it replaces, such as a temporary one.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None or str(error.filename) in others:
            raise OSError(error.errno, error.strerror, name) from error
        raise
