"""Google Cloud Storage: paths, copies, and local mirrors of runs and token caches.

Orbax and tensorstore write arrays into a bucket directly. All other files of a run are small: a
process works on a local copy, and `Mirror.publish` copies changed files back.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import logging
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from mnmt_jax.errors import UserError, install_remedy
from mnmt_jax.files.storage_errors import one_line

if "tensorflow" not in sys.modules:  # which has its own client, used if it is loaded anyway
    os.environ.setdefault("EPATH_USE_TF", "false")  # read once, when the first path is created

COPY_FIRST = "copy it to a folder first, for example with 'gcloud storage cp -r'"
"""Remedy of `refuse_bucket` for what is read."""

_SCHEME = "gs://"
_NOT_COPIED = ("checkpoints", "checkpoints_damaged", "average", "tensorboard")
# Names of unfinished writes: `mnmt_jax.files.atomic_write`, and SQLite's journals.
_UNFINISHED = re.compile(r"\.partial-|-(journal|wal|shm)$")
_URL = re.compile(r"(?P<scheme>\w\w+):/{1,2}(?=[^/])")  # pathlib collapses two slashes into one


def is_bucket(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a URL rather than a local path."""
    return bool(_URL.match(os.fspath(path)))


def refuse_bucket(
    path: str | os.PathLike[str], remedy: str = "only runs and token caches can be in a bucket"
) -> None:
    """Check that a path is not a URL, where only a local path is supported.

    Args:
        path: the path.
        remedy: end of the message.

    Raises:
        UserError: if it is.
    """
    if is_bucket(path):
        raise UserError(f"{_url(path)}: must not be in a bucket; {remedy}")


def bucket_path(url: str | os.PathLike[str]) -> Path:
    """Return a path object for a URL, whose methods access the bucket.

    Args:
        url: `gs://bucket/folder`.

    Raises:
        UserError: if the URL has another scheme, or gcsfs is not installed.
    """
    url = _url(url)
    if not url.startswith(_SCHEME):
        raise UserError(f"{url}: only {_SCHEME} is understood; mount other storage as a folder")
    if importlib.util.find_spec("gcsfs") is None:
        raise UserError(f"{url}: needs gcsfs, which is not installed; {install_remedy('gcs')}")
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # its errors are raised as exceptions too
    import fsspec
    from etils import epath

    # Otherwise the client caches listings forever and misses files written by others.
    fsspec.config.conf.setdefault("gs", {}).setdefault("use_listings_cache", False)

    path: Path = epath.Path(url)
    return path


def _url(path: str | os.PathLike[str]) -> str:
    return _URL.sub(r"\g<scheme>://", os.fspath(path), count=1).rstrip("/")


def absolute_path(path: Path) -> Path:
    """Return the absolute path that Orbax requires; a bucket path is absolute."""
    return path if is_bucket(path) else path.absolute()


def move_folder(source: Path, target: Path) -> None:
    """Move a folder, replacing the target; in a bucket, which has no folders, file by file.

    Raises:
        OSError: if a local folder cannot be moved, e.g. copied to another file system.
    """
    remove_folder(target)
    if not is_bucket(source):
        shutil.move(source, target)
        return
    copy_files(source, target)
    remove_folder(source)


def remove_folder(folder: Path) -> None:
    """Remove a folder and its contents, if it exists."""
    if not is_bucket(folder):
        shutil.rmtree(folder, ignore_errors=True)
    elif folder.exists():
        folder.rmtree()  # type: ignore[attr-defined]  # method of epath's paths


class Mirror:
    """A local copy of the small files of a run in a bucket.

    Attributes:
        bucket: path of the run.
        folder: path of the copy, which is removed when the process ends.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        """Copy the existing files.

        Raises:
            UserError: if the bucket cannot be read.
        """
        self.bucket = bucket_path(url)
        self.folder = Path(tempfile.mkdtemp(prefix="mnmt_jax-"))
        atexit.register(self.close)
        try:
            copy_files(self.bucket, self.folder, _NOT_COPIED, with_unfinished=False)
        except Exception as error:  # the client raises many kinds
            raise UserError(
                f"{self.bucket}: cannot be read ({one_line(error)}); see to the network and "
                "to Google's credentials"
            ) from error
        self._published = self._present()

    def close(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def publish(self, skipped: Collection[str] = ()) -> None:
        """Copy files changed since the last call to the bucket; each file is written atomically.

        Args:
            skipped: names of folders that another thread is writing.

        Raises:
            UserError: if the bucket cannot be written.
        """
        with self._writing():
            present = self._present(skipped)
            for name, stamp in sorted(present.items()):  # a run's config.gin before its other files
                if self._published.get(name) != stamp:
                    self._publish_file(name)
        self._published |= present

    def remove(self, file: str) -> None:
        """Remove a file from the copy and the bucket, if it exists.

        Raises:
            UserError: if the bucket cannot be written.
        """
        (self.folder / file).unlink(missing_ok=True)
        if self._published.pop(file, None):
            with self._writing():
                (self.bucket / file).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Name the bucket in the errors of its client."""
        try:
            yield
        except Exception as error:  # as above
            raise UserError(
                f"{self.bucket}: cannot be written ({one_line(error)}); run the command again"
            ) from error

    def _publish_file(self, name: str) -> None:
        """Copy a file to the bucket, unless it has been removed since it was listed."""
        try:
            content = (self.folder / name).read_bytes()
        except FileNotFoundError:
            return
        (self.bucket / name).write_bytes(content)

    def _present(self, skipped: Collection[str] = ()) -> dict[str, tuple[int, int]]:
        """Return (size, modification time) by name, relative to the folder."""
        present = {}
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder)
            if name.parts[0] in skipped or _is_unfinished(name):
                continue
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    present[str(name)] = status.st_size, status.st_mtime_ns
        return present


def _is_unfinished(name: Path) -> bool:
    """Return whether a file, or a folder above it, is an unfinished write."""
    return any(_UNFINISHED.search(part) for part in name.parts)


def copy_files(
    source: Path, target: Path, skipped: tuple[str, ...] = (), *, with_unfinished: bool = True
) -> None:
    """Copy the `files_below` of a folder to another folder; either may be in a bucket.

    Args:
        source: the folder.
        target: the other folder.
        skipped: as for `files_below`.
        with_unfinished: whether files of unfinished writes are copied too.
    """
    for file in files_below(source, skipped):
        name = file.relative_to(source)
        if with_unfinished or not _is_unfinished(name):
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())


def files_below(folder: Path, skipped: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield the files below a folder.

    Args:
        folder: the folder.
        skipped: names of its sub-folders to leave out; sub-folders of others are all read.
    """
    for path in folder.iterdir() if folder.exists() else ():
        if path.name == folder.name and not path.exists():
            continue  # the folder's own placeholder object
        if not path.is_dir():
            yield path
        elif path.name not in skipped:
            yield from files_below(path)
