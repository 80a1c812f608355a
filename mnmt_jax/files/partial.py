"""Files and folders that replace nothing of others and get their name when they are complete."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import gzip
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from mnmt_jax.errors import UserError, naming
from mnmt_jax.files.bucket import refuse_bucket
from mnmt_jax.files.storage import refusal, system_trouble


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
            bucket or where nothing can be written.
    """
    refuse_bucket(directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory}: is there already; choose another --output or remove it")
    check_writable(directory)


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


def check_writable(path: Path, flag: str = "--output") -> None:
    """Refuses a folder to make or fill, or a file's folder, that the system will not take.

    Raises:
        UserError: if a file is in its way or nothing can be written there.
    """
    folder = path
    while not os.path.lexists(folder):
        folder = folder.parent
    trouble = refusal(folder, 0)
    if trouble:
        raise UserError(f"{folder}: cannot be written ({trouble}); choose another {flag}")


def lock(file: IO[Any] | int, *, wait: bool = False) -> bool:
    """Keeps other processes from a file until it is closed, or this process dies.

    Args:
        file: open, or a descriptor of a file or folder.
        wait: until no other process has it.

    Returns:
        Whether no other process has it. On storage without locks nobody is kept out.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lets one process at a time into the block; the others wait."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        lock(opened, wait=True)
        yield
    finally:
        os.close(opened)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[IO[str]]:
    """Opens a text file that gets its name when the block ends, unless an error leaves it.

    Args:
        path: its name, gzip if that ends in `.gz`; what is there is replaced.

    Raises:
        OSError: if it cannot be written; names `path`, not what was written under.
    """
    partial = partial_path(path)
    try:
        with naming(str(path), str(partial)):
            with open_text(partial, path.name) as file:
                yield file
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def open_text(path: Path, name: str) -> IO[str]:
    """Opens a file to add UTF-8 text to: gzip if its `name` ends so, with line feeds."""
    opener = gzip.open if name.endswith(".gz") else open
    return cast(IO[str], opener(path, "at", encoding="utf-8", newline="\n"))


def write_text(path: Path, text: str) -> None:
    """Writes a file so that it is either complete or as before; as `new_file`."""
    with new_file(path) as file:
        file.write(text)


@contextlib.contextmanager
def new_folder(directory: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Gives a folder to write into; it becomes `directory` unless an error leaves the block.

    Args:
        directory: to make; must not exist or be empty (`check_output`).
        overwrite: whether it may be neither; it is replaced.

    Raises:
        UserError: if the system refuses what is written.
    """
    partial = partial_path(directory)
    try:
        partial.mkdir(parents=True)
        yield partial
        if directory.is_dir():
            shutil.rmtree(directory) if overwrite else directory.rmdir()
        partial.rename(directory)
    except (OSError, RuntimeError) as error:
        # Libraries in C++ say in a RuntimeError what the system said to them.
        ours = getattr(error, "filename", None) is None or str(partial) in str(error)
        trouble = system_trouble(error) if ours else ""
        if not trouble:
            raise
        raise UserError(
            f"{directory}: cannot be written ({trouble}); make room, or choose another --output"
        ) from error
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
