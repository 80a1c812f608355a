"""A bounded local folder of copies of files, shared by the processes of a machine.

All processes of a machine share one folder, since they read the same files: separate folders would
multiply the transfers and the disk space. A process locks the copy that it writes and renames it
when it is complete. The least recently used copies are removed under a lock on the folder. All
locks end with their process. An open file stays readable after its removal.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import lock, locked
from mnmt_jax.files.storage_errors import system_error_reason

FOLDER_VARIABLE = "MNMT_JAX_CACHE_FOLDER"
LIMIT_VARIABLE = "MNMT_JAX_CACHE_GIB"
GIB = 2**30
_DEFAULT_GIB = 50.0
_NAME = "token_caches"  # of a folder with nothing else, as files in it are removed
_PARTIAL = ".partial"
_USED = ".used"  # bytes, at least those in use; missing until the files have been counted
_PAUSE_SECONDS = 0.2


def local_copies(default: Path) -> LocalCopies:
    """Return the copies in the folder and with the limit that the environment names.

    Args:
        default: folder if the environment names none.

    Raises:
        UserError: if the limit is not a positive number, or the folder cannot be made.
    """
    base = os.environ.get(FOLDER_VARIABLE) or default
    text = os.environ.get(LIMIT_VARIABLE) or str(_DEFAULT_GIB)
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not 0 < limit < 2**30:
        raise UserError(f"{LIMIT_VARIABLE}={text}: must be a number above 0, in GiB")
    return LocalCopies(Path(base, _NAME), int(limit * GIB))


class LocalCopies:
    """Copies of files in a folder of bounded size.

    Attributes:
        folder: the folder.
        limit: most bytes of all files in it.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        """Make the folder.

        Raises:
            UserError: if it cannot be made, or is that of another user, who could change copies.
        """
        self.folder, self.limit = folder, limit
        with self._disk_errors():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = folder.stat().st_uid
        if owner != os.getuid():
            raise UserError(
                f"{folder}: belongs to another user; name another folder in {FOLDER_VARIABLE}"
            )

    def use(self, name: str, size: int) -> bool:
        """Return whether there is a copy of this size, and mark it as used now."""
        path = self.folder / name
        with contextlib.suppress(FileNotFoundError):
            if _size(path) == size:
                os.utime(path)
                return True
        return False

    def make(
        self, name: str, size: int, write: Callable[[IO[bytes]], None], *, wait: bool = True
    ) -> bool:
        """Make a copy, unless there is one.

        Args:
            name: path of the copy, relative to the folder.
            size: its size in bytes.
            write: writes and checks the content; called with an open file.
            wait: whether to wait for another process or thread that writes the same copy.

        Returns:
            Whether there is a copy now; False only without `wait`.

        Raises:
            UserError: if the disk is full or the copy is larger than the limit.
        """
        final = self.folder / name
        while not self.use(name, size):
            with self._disk_errors():
                final.parent.mkdir(parents=True, exist_ok=True)
                file = self._reserve(final, size)
            if file is None and not wait:
                return False
            if file is None:
                time.sleep(_PAUSE_SECONDS)
                continue
            with file, self._disk_errors():
                self._fill(final, file, write)
        return True

    def remove(self, name: str, inode: int) -> None:
        """Remove a copy, if there is one with this inode."""
        path = self.folder / name
        if file_inode(path) == inode:
            path.unlink(missing_ok=True)

    def _fill(self, final: Path, file: IO[bytes], write: Callable[[IO[bytes]], None]) -> None:
        """Write a reserved copy and give it its name."""
        try:
            write(file)
            file.flush()
            os.fsync(file.fileno())  # after a crash, a copy of the right size is complete
        except BaseException:
            _partial(final).unlink(missing_ok=True)
            raise
        with locked(self.folder):  # else `_evict` may see neither name
            _partial(final).replace(final)

    def _reserve(self, final: Path, size: int) -> IO[bytes] | None:
        """Return a new, locked file; None if it is being written, was, or there is no room yet."""
        partial, is_reserved = _partial(final), False
        with locked(self.folder):
            file = os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
            if not lock(file):
                file.close()
                return None
            try:
                is_reserved = _size(final) != size and self._make_room(size, partial)
                if is_reserved:
                    os.truncate(file.fileno(), size)
            finally:
                if not is_reserved:
                    partial.unlink(missing_ok=True)
                    file.close()
            return file if is_reserved else None

    def _make_room(self, size: int, partial: Path) -> bool:
        """Remove the least recently used copies, so that the folder can take `size` more bytes.

        Returns:
            False if the copies that are being written leave no room.
        """
        if size > self.limit:
            raise UserError(
                f"{partial.name[1:].removesuffix(_PARTIAL)} has {size / GIB:.2f} GiB, but "
                f"{LIMIT_VARIABLE}={self.limit / GIB:g}; raise it"
            )
        used = self._recorded_use()
        if used is None or used + size > self.limit:
            used = self._evict(self.limit - size, partial)
        fits = used + size <= self.limit
        (self.folder / _USED).write_text(str(used + size if fits else used), encoding="ascii")
        return fits

    def _recorded_use(self) -> int | None:
        try:
            return int((self.folder / _USED).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def _evict(self, target: int, kept: Path) -> int:
        """Remove the least recently used copies until `target` bytes are left; return the bytes."""
        copies = sorted(_copies(self.folder, kept))
        used = sum(size for _, size, _ in copies)
        for _, size, path in copies:
            is_partial = path.name.endswith(_PARTIAL)
            if (is_partial and not _is_locked(path)) or (not is_partial and used > target):
                path.unlink(missing_ok=True)
                used -= size
        return used

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Translate errors of the local disk to one line.

        Raises:
            UserError: if the system refuses a write.
        """
        try:
            yield
        except UserError:
            raise
        except OSError as error:
            reason = system_error_reason(error) or error.strerror
            if not reason:
                raise
            raise UserError(
                f"{self.folder}: copies of the bucket cannot be written ({reason}); lower "
                f"{LIMIT_VARIABLE}={self.limit / GIB:g}, or name another folder in "
                f"{FOLDER_VARIABLE}"
            ) from error


def _partial(final: Path) -> Path:
    return final.with_name(f".{final.name}{_PARTIAL}")


def file_inode(path: Path) -> int:
    """Return the inode of a file; 0 if there is none."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def _size(path: Path) -> int:
    """Return the size of a file; -1 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _copies(folder: Path, kept: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield the last use, the size and the path of all files except `kept`."""
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path != kept and path.name != _USED:
                stat = path.stat()
                yield stat.st_mtime_ns, stat.st_size, path


def _is_locked(partial: Path) -> bool:
    """Return whether a process writes a copy; also if it has just given it its name."""
    try:
        with open(partial, "rb") as file:
            return not lock(file)
    except FileNotFoundError:
        return True
