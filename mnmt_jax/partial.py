"""Files and folders that replace nothing of others and get their name when they are complete."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from mnmt_jax.bucket import refuse_bucket
from mnmt_jax.errors import UserError


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


def check_output(directory: Path) -> None:
    """Refuses a folder to make that holds something already.

    Raises:
        UserError: if there is a file of that name, or a folder that is not empty, or it is in a
            bucket.
    """
    refuse_bucket(directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory}: is there already; choose another --output or remove it")


def check_replaced(path: Path, is_ours: Callable[[str], bool], flag: str = "--output") -> None:
    """Refuses a file to write where something lies that was not written by us.

    Args:
        path: of the file; nothing is lost if it is not there or empty.
        is_ours: says of a file's text whether the same command has written it.
        flag: that names another place.

    Raises:
        UserError: if so.
    """
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return
    if not (path.is_file() and is_ours(path.read_text(encoding="utf-8", errors="replace"))):
        raise UserError(
            f"{path}: is there already and is not of mnmt-jax; move it, or choose another {flag}"
        )


@contextlib.contextmanager
def new_folder(directory: Path) -> Iterator[Path]:
    """Gives a folder to write into; it becomes `directory` unless an error leaves the block.

    Args:
        directory: to make; must not exist or be empty (`check_output`).
    """
    partial = partial_path(directory)
    partial.mkdir(parents=True)
    try:
        yield partial
        if directory.is_dir():
            directory.rmdir()
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


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
