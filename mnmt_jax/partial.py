"""Names for files and folders that get their own name only when they are complete."""

from __future__ import annotations

import glob
import os
import shutil
import socket
from pathlib import Path


def partial_path(final: Path) -> Path:
    """Returns a name to write under before renaming, and removes what dead processes left.

    Args:
        final: the name that the complete file or folder will have, in an existing folder or not.

    Names hold the machine's and the process's: only what a process of this machine was writing,
    and is no longer, is removed.
    """
    start = f".{final.name}.partial-{socket.gethostname()}-"
    for left in final.parent.glob(f"{glob.escape(start)}*"):
        number = left.name.removeprefix(start)
        if number.isdigit() and not _is_alive(int(number)):
            _remove(left)
    return final.with_name(f"{start}{os.getpid()}")


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        return True  # elsewhere the signal 0 is not harmless
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _remove(path: Path) -> None:
    """Removes a file or folder, unless another process was faster."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
