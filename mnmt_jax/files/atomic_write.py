"""Atomic writes: files and folders appear under their name when complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import gzip
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from mnmt_jax.errors import UserError, name_os_errors
from mnmt_jax.files.bucket import is_bucket, refuse_bucket
from mnmt_jax.files.storage_errors import storage_error_reason, system_error_reason, write_refusal


def partial_path(final: Path) -> Path:
    """Return a name to write under before renaming, and removes what dead processes left.

    Args:
        final: the name that the complete file or folder will have, in an existing folder or not.

    Names hold the machine's and the process's: only what a process of this machine was writing,
    and is no longer, is removed.
    """
    start = f".{final.name}.partial-{socket.gethostname()}-"
    for left in final.parent.glob(f"{glob.escape(start)}*"):
        number = left.name.removeprefix(start).removesuffix(".replaced")
        if number.isdigit() and not _is_alive(int(number)):
            _remove(left)
    return final.with_name(f"{start}{os.getpid()}")


def check_output(directory: Path) -> None:
    """Refuse a folder to make that holds something already.

    Raises:
        UserError: if there is a file of that name, or a folder that is not empty, or it is in a
            bucket or where nothing can be written.
    """
    refuse_bucket(directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory}: is there already; choose another --output or remove it")
    check_writable(directory)


def check_replaced(path: Path, is_ours: Callable[[str], bool], flag: str = "--output") -> None:
    """Refuse a file to write where something lies that was not written by us.

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
    """Refuse a folder to make or fill, or a file's folder, that the system will not take.

    Raises:
        UserError: if a file is in its way or nothing can be written there.
    """
    folder = path
    while not os.path.lexists(folder):
        folder = folder.parent
    trouble = write_refusal(folder, 0)
    if trouble:
        raise UserError(f"{folder}: cannot be written ({trouble}); choose another {flag}")


def lock(file: IO[Any] | int, *, wait: bool = False) -> bool:
    """Keep other processes from a file until it is closed, or this process dies.

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
    """Let one process at a time into the block; the others wait."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        lock(opened, wait=True)
        yield
    finally:
        os.close(opened)


@contextlib.contextmanager
def new_path(path: Path) -> Iterator[Path]:
    """Yield a temporary name that becomes `path` when the block ends without an error.

    Args:
        path: of the file; an existing file is replaced.

    Raises:
        OSError: if it cannot be written; names `path`, not the temporary file.
    """
    partial = partial_path(path)
    try:
        with name_os_errors(str(path), str(partial)):
            yield partial
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[IO[str]]:
    """Open a text file that appears under its name when the block ends without an error.

    Args:
        path: its name, gzip if that ends in `.gz`; an existing file is replaced.

    Raises:
        OSError: as `new_path`.
    """
    with new_path(path) as partial, open_text(partial, path.name) as file:
        yield file


def open_text(path: Path, name: str) -> IO[str]:
    """Open a file to add UTF-8 text to: gzip if its `name` ends so, with line feeds."""
    opener = gzip.open if name.endswith(".gz") else open
    return cast(IO[str], opener(path, "at", encoding="utf-8", newline="\n"))


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is either complete or as before; as `new_file`."""
    with new_file(path) as file:
        file.write(text)


@contextlib.contextmanager
def new_folder(
    directory: Path, *, overwrite: bool = False, flag: str = "--output"
) -> Iterator[Path]:
    """Make a folder that appears under its name when the block ends without an error.

    One process writes a folder at a time. The lock is on the temporary folder, so it ends with
    the process.

    Args:
        directory: to make; must not exist or be empty (`check_output`).
        overwrite: replace an existing folder.
        flag: that names another place; empty if there is none.

    Yields:
        The temporary folder to write into.

    Raises:
        UserError: if the system refuses a write, another process writes this folder, or has
            finished it in the meantime.
    """
    partial = partial_path(directory)
    lock_fd = -1
    try:
        with write_errors(directory, partial, flag=flag):
            lock_fd = _make_locked(partial, directory, flag)
            yield partial
            with locked(directory.parent):
                _move_into_place(partial, directory, overwrite=overwrite, flag=flag)
    finally:
        if lock_fd >= 0:
            shutil.rmtree(partial, ignore_errors=True)
            os.close(lock_fd)


@contextlib.contextmanager
def write_errors(output: Path, *written: Path, flag: str = "--output") -> Iterator[None]:
    """Translate refused writes, such as on a full disk, to one line.

    Libraries in C++ report them as `RuntimeError` or `ValueError` with the system's words.

    Args:
        output: name for the message.
        *written: temporary names of it; errors about other files pass unchanged.
        flag: that names another place; empty if there is none.

    Raises:
        UserError: if the system refuses a write.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the clients of buckets raise many kinds
        in_bucket = is_bucket(output)
        reason = (storage_error_reason if in_bucket else system_error_reason)(error)
        if not reason or not (in_bucket or _is_about(error, written)):
            raise
        choice = f", or choose another {flag}" if flag else ""
        raise UserError(f"{output}: cannot be written ({reason}); make room{choice}") from error


def _is_about(error: Exception, written: Iterable[Path]) -> bool:
    """Return whether an error names one of these paths, or is the system's and names none."""
    if any(path.name in str(error) for path in written):
        return True
    is_system = isinstance(error, OSError | RuntimeError)
    return is_system and getattr(error, "filename", None) is None


def _make_locked(partial: Path, directory: Path, flag: str) -> int:
    """Make and lock the temporary folder, unless another process holds one for `directory`."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    with locked(partial.parent):
        pattern = f".{glob.escape(directory.name)}.partial-*"
        for other in partial.parent.glob(pattern):
            if other.is_dir() and _is_locked(other):
                raise _is_written(directory, flag)
        partial.mkdir()
        descriptor = os.open(partial, os.O_RDONLY)
        lock(descriptor)
    return descriptor


def _is_locked(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not lock(descriptor)
    finally:
        os.close(descriptor)


def _is_written(output: Path, flag: str) -> UserError:
    choice = f", or choose another {flag}" if flag else ""
    return UserError(f"{output}: is being written by another process; wait for its end{choice}")


def _move_into_place(partial: Path, directory: Path, *, overwrite: bool, flag: str) -> None:
    """Rename a complete folder to its name.

    Raises:
        UserError: if a folder of that name has appeared and must not be replaced.
    """
    replaced = partial.with_name(f"{partial.name}.replaced")
    if overwrite and directory.is_dir():
        directory.rename(replaced)
    try:
        if directory.is_dir():
            directory.rmdir()
        partial.rename(directory)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        remedy = f"choose another {flag} or remove it" if flag else "remove it"
        raise UserError(f"{directory}: is there already, from another process; {remedy}") from error
    shutil.rmtree(replaced, ignore_errors=True)


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
    """Remove a file or folder, unless another process was faster."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
