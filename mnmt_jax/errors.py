"""Errors meant for the person at the keyboard, and the frame every command runs in."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence

# What a path that cannot be written or read says; with its name it needs no traceback.
_PATH_TROUBLE = (
    errno.EACCES,
    errno.EDQUOT,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENOENT,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)


class UserError(ValueError):
    """Reports bad input in one line that names the file, line, field or flag and the remedy."""


def listed(names: Sequence[str], shown: int = 8, separator: str = ", ") -> str:
    """Joins the first few names and says how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return separator.join(names[:shown]) + more


def run_command(main: Callable[[], int | None]) -> None:
    """Runs a command's `main` and ends the process with an honest status.

    Args:
        main: takes no arguments; returns an exit status, or None for success.

    The status is 0 on success, 2 after a `UserError` or a path that the system refuses (printed as
    one line on stderr) and 130 after Ctrl-C. Any other exception is a bug of ours and keeps its
    traceback.
    """
    try:
        status = main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        if error.errno not in _PATH_TROUBLE or error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}; choose another path", file=sys.stderr)
        sys.exit(2)
    sys.exit(status or 0)
