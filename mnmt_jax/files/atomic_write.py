"""Atomic writes: files and folders appear under their name when complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import gzip
import hashlib
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from mnmt_jax.errors import UserError, name_os_errors
from mnmt_jax.files.bucket import is_bucket, refuse_bucket
from mnmt_jax.files.storage_errors import (
    storage_error_reason,
    system_error_reason,
    write_refusal,
    write_remedy,
)

_REPLACED = ".replaced"  # end of the temporary name of a folder that is being replaced
_LONGEST_NAME = 150  # bytes; file systems allow 255, with host name and process id


def partial_path(final: Path) -> Path:
    """Return a temporary name to write to, and remove leftovers of dead processes.

    Args:
        final: the final name of the file or folder; its parent may not exist yet.

    Temporary names contain host name and process id; only leftovers of ended processes on this
    machine are removed. A restarted container often has the process id of the killed process, so
    what has this process's id is removed too. A folder in use stays: its process may be in another
    container, where it has another id. A folder that was to be replaced by one that did not appear
    gets its name back.
    """
    prefix = f"{_partial_prefix(final)}{socket.gethostname()}-"
    for leftover in final.parent.glob(f"{glob.escape(prefix)}*"):
        process = leftover.name.removeprefix(prefix).removesuffix(_REPLACED)
        is_others = process.isdecimal() and int(process) != os.getpid()
        if not process.isdecimal() or (is_others and _is_alive(int(process))):
            continue
        if leftover.name.endswith(_REPLACED) and not os.path.lexists(final):
            with contextlib.suppress(OSError):  # another process has done the same
                leftover.rename(final)
        elif not _is_locked(leftover):
            _remove(leftover)
    return final.with_name(f"{prefix}{os.getpid()}")


def _partial_prefix(final: Path) -> str:
    """Return the start of temporary names for a path; long names are shortened to a digest."""
    name = final.name
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return f".{name}.partial-"


def check_output(directory: Path) -> None:
    """Check that a new folder can be written.

    Raises:
        UserError: if a file or a non-empty folder has this name, it is the current folder, a mount
            point or in a bucket, or it cannot be written.
    """
    refuse_bucket(directory)
    check_replaceable(directory)
    if is_occupied(directory):
        raise UserError(f"{directory}: already exists; choose another --output or remove it")


def is_occupied(path: Path) -> bool:
    """Return whether there is a file, or a folder that is not empty."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def check_replaceable(directory: Path, flag: str = "--output") -> None:
    """Check that a new folder can be written beside a folder and take its name.

    Args:
        directory: the folder; it need not exist.
        flag: flag that selects another path.

    Raises:
        UserError: if it is the current folder, which would be lost to the shell, or a mount point,
            or the folder that it is in cannot be written.
    """
    if directory.is_dir() and directory.samefile(os.curdir):
        raise UserError(
            f"{directory}: is the current folder, which is not replaced; choose another {flag}, "
            f"such as {flag}=new"
        )
    refuse_mount_point(directory, flag)
    check_writable(_without_link(directory).parent, flag)


def refuse_mount_point(path: Path, flag: str = "--output") -> None:
    """Check that a path is no mount point, which nothing can be renamed to.

    Raises:
        UserError: if it is one, such as a volume of a container.
    """
    if os.path.realpath(path) in _mount_points():
        remedy = f"name a folder in it, such as {flag}={path / 'new'}"
        if not path.is_dir():
            remedy = "mount its folder instead"
        raise UserError(f"{flag}={path}: is a mount point, which is not replaced; {remedy}")


def _mount_points() -> set[str]:
    """Return the mounted folders and files; none where the system does not list them."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return set()
    return {re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), line.split()[4]) for line in lines}


def _without_link(path: Path) -> Path:
    """Return what a link points to; a path that is no link stays as it is."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def check_replaced(path: Path, is_ours: Callable[[str], bool], flag: str = "--output") -> None:
    """Check that a file to write would not replace a foreign file.

    Args:
        path: path of the file; a missing or empty file may be replaced.
        is_ours: returns whether a file's text was written by the same command.
        flag: flag that selects another path.

    Raises:
        UserError: if it would.
    """
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return
    if not (path.is_file() and is_ours(path.read_text(encoding="utf-8", errors="replace"))):
        raise UserError(
            f"{path}: already exists and was not written by mnmt-jax; move it, or choose another "
            f"{flag}"
        )


def check_writable(path: Path, flag: str = "--output") -> None:
    """Check that a folder, or the folder of a file, can be created and written to.

    Raises:
        UserError: if a file is in the way or the folder cannot be written to.
    """
    folder = path
    while not os.path.lexists(folder):
        folder = folder.parent
    trouble = write_refusal(folder, 0)
    if trouble:
        raise UserError(f"{folder}: cannot be written ({trouble}); choose another {flag}")


def lock(file: IO[Any] | int, *, wait: bool = False) -> bool:
    """Lock a file against other processes until it is closed or this process dies.

    Args:
        file: open file, or descriptor of a file or folder.
        wait: whether to wait until no other process holds the lock.

    Returns:
        Whether no other process holds the lock. On storage without locks the result is always True.
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
    """Run the block in one process at a time; the others wait."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def new_path(path: Path) -> Iterator[Path]:
    """Yield a temporary name that becomes `path` when the block ends without an error.

    Args:
        path: path of the file; an existing file is replaced, and its permissions stay.

    Raises:
        OSError: if it cannot be written; names `path`, not the temporary file.
    """
    partial = partial_path(path)
    try:
        with name_os_errors(str(path), str(partial)):
            yield partial
            with contextlib.suppress(FileNotFoundError):
                _copy_permissions(path, partial)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _copy_permissions(old: Path, new: Path) -> None:
    """Give a file the permissions of another; equal ones are not set, as a mount may refuse it."""
    permissions = stat.S_IMODE(old.stat().st_mode)
    if permissions != stat.S_IMODE(new.stat().st_mode):
        new.chmod(permissions)


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


def open_text(path: Path, name: str, *, append: bool = False) -> IO[str]:
    """Open a file to write UTF-8 text with line feeds; gzip if `name` ends in `.gz`."""
    opener = gzip.open if name.endswith(".gz") else open
    mode = "at" if append else "wt"
    return cast(IO[str], opener(path, mode, encoding="utf-8", newline="\n"))


def write_text(path: Path, text: str) -> None:
    """Write a file atomically, as `new_file`."""
    with new_file(path) as file:
        file.write(text)


@contextlib.contextmanager
def new_folder(
    directory: Path, *, overwrite: bool = False, flag: str = "--output"
) -> Iterator[Path]:
    """Create a folder that appears under its name when the block ends without an error.

    One process writes a folder at a time. The lock is on the temporary folder, so it ends with
    the process.

    Args:
        directory: folder to create; must not exist or must be empty (`check_output`). A link stays,
            and the folder that it points to is created.
        overwrite: whether to replace an existing folder.
        flag: flag that selects another path; empty if there is none.

    Yields:
        The temporary folder to write into.

    Raises:
        UserError: if the system refuses a write, another process writes this folder, or has
            finished it in the meantime.
    """
    final = _without_link(directory)
    partial = partial_path(final)
    lock_fd = -1
    try:
        with write_errors(directory, partial, flag=flag):
            lock_fd = _make_locked(partial, final, flag)
            yield partial
            with locked(final.parent):
                _move_into_place(partial, final, overwrite=overwrite, flag=flag)
    finally:
        if lock_fd >= 0:
            shutil.rmtree(partial, ignore_errors=True)
            os.close(lock_fd)


@contextlib.contextmanager
def write_errors(output: Path, *written: Path, flag: str = "--output") -> Iterator[None]:
    """Translate write errors, such as on a full disk, to a one-line error.

    Libraries in C++ report them as `RuntimeError` or `ValueError` with the system's message.

    Args:
        output: path for the message.
        *written: its temporary paths; errors about other files pass unchanged.
        flag: flag that selects another path; empty if there is none.

    Raises:
        UserError: if the system refuses a write.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # bucket clients raise many kinds
        in_bucket = is_bucket(output)
        reason = (storage_error_reason if in_bucket else system_error_reason)(error)
        if not reason or not (in_bucket or _is_about(error, written)):
            raise
        choice = f", or choose another {flag}" if flag else ""
        raise UserError(
            f"{output}: cannot be written ({reason}); {write_remedy(reason)}{choice}"
        ) from error


def _is_about(error: Exception, written: Iterable[Path]) -> bool:
    """Return whether an error names one of these paths, or is a system error without a path."""
    if any(path.name in str(error) for path in written):
        return True
    is_system = isinstance(error, OSError | RuntimeError)
    return is_system and getattr(error, "filename", None) is None


def _make_locked(partial: Path, directory: Path, flag: str) -> int:
    """Create and lock the temporary folder, unless another process holds one for `directory`."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    with locked(partial.parent):
        pattern = f"{glob.escape(_partial_prefix(directory))}*"
        for candidate in partial.parent.glob(pattern):
            if _is_locked(candidate):
                raise _is_written(directory, flag)
        partial.mkdir()
        descriptor = os.open(partial, os.O_RDONLY)
        lock(descriptor)
    return descriptor


def _is_locked(folder: Path) -> bool:
    if not folder.is_dir():
        return False
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
    """Rename a complete folder to its final name.

    Raises:
        UserError: if a folder of that name has appeared and must not be replaced.
    """
    replaced = partial.with_name(f"{partial.name}{_REPLACED}")
    if overwrite and directory.is_dir():
        directory.rename(replaced)
    try:
        if directory.is_dir():
            directory.rmdir()
        partial.rename(directory)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            if replaced.is_dir() and not os.path.lexists(directory):
                replaced.rename(directory)
            raise
        remedy = f"choose another {flag} or remove it" if flag else "remove it"
        raise UserError(
            f"{directory}: already exists, written by another process; {remedy}"
        ) from error
    shutil.rmtree(replaced, ignore_errors=True)


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        return True  # on other systems signal 0 is not harmless
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _remove(path: Path) -> None:
    """Remove a file or folder; ignore that another process has already removed it."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
