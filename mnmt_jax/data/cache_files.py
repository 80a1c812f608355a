"""Files of a token cache: in a folder, or in a bucket with local copies.

Whole files of a cache in a bucket are copied, not ranges of bytes: a chunk draws a few pairs from
nearly every shard of every task, so ranges would need a request for each pair in each epoch,
thousands a second, while the copy of a shard takes one request and serves all epochs.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import queue
import random
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from mnmt_jax.errors import UserError, pluralize, say
from mnmt_jax.files.bucket import is_bucket
from mnmt_jax.files.bucket_reader import BucketReader
from mnmt_jax.files.file_digest import FileDigest
from mnmt_jax.files.local_copies import FOLDER_VARIABLE, GIB, LIMIT_VARIABLE, local_copies
from mnmt_jax.runtime.user_cache import user_cache_folder

CACHE_JSON = "cache.json"
VOCABULARY = "vocabulary"
_THREADS = 8
_log = logging.getLogger(__name__)
_LARGE = GIB  # bytes of a copy that is announced


class CacheFiles(Protocol):
    """Access to the files of a cache by their names, relative to its folder."""

    def read_json(self) -> bytes:
        """Return the content of cache.json."""

    def vocabulary(self) -> contextlib.AbstractContextManager[Path]:
        """Return a context with a folder that has the files of the vocabulary."""

    def expect(self, digests: Mapping[str, FileDigest | None]) -> None:
        """Check that the files of the tasks exist, and remember their digests, None if unknown."""

    def path(self, name: str) -> Path:
        """Return the path of a file to open."""

    def fetch(self, names: Iterable[str]) -> None:
        """Make files local that are read next."""

    def fetch_ahead(self, names: Callable[[], Iterable[str]]) -> None:
        """Make files local in the background; nothing is reported if that fails."""

    def discard(self, name: str, inode: int) -> bool:
        """Drop a damaged copy with this inode; return whether `path` can copy the file again."""


class FolderFiles:
    """The files of a cache in a folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read_json(self) -> bytes:
        """Return the content of cache.json.

        Raises:
            UserError: if there is none.
        """
        path = self._directory / CACHE_JSON
        if not path.is_file():
            raise UserError(
                f"{path}: no such file; Data.cache must name a folder that 'mnmt cache' wrote"
            )
        return path.read_bytes()

    def vocabulary(self) -> contextlib.AbstractContextManager[Path]:
        """Return a context with the folder of the vocabulary."""
        return contextlib.nullcontext(self._directory / VOCABULARY)

    def expect(self, digests: Mapping[str, FileDigest | None]) -> None:
        """Do nothing: missing files are reported when they are read."""

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self._directory / name

    def fetch(self, names: Iterable[str]) -> None:
        """Do nothing: all files are local."""

    def fetch_ahead(self, names: Callable[[], Iterable[str]]) -> None:
        """Do nothing: all files are local."""

    def discard(self, name: str, inode: int) -> bool:
        """Return False: there is no other copy."""
        return False


class BucketFiles:
    """The files of a cache in a bucket, read through local copies.

    The copies of a cache are in a folder named by a hash of its URL and of cache.json, so a cache
    that replaces it has others. A copy is checked when it is made: by the size and SHA-256 in
    cache.json, or, for caches written before they were recorded, by the size in the bucket and
    Google's CRC32C. Later its size is checked, and every record by ArrayRecord's checksum.
    """

    def __init__(self, url: Path) -> None:
        """List the files.

        Raises:
            UserError: if the bucket cannot be read.
        """
        self._reader = BucketReader(url)
        self._copies = local_copies(user_cache_folder())
        self._sizes = self._reader.sizes()
        self._folder = ""
        self._digests: dict[str, FileDigest] = {}
        self._used: frozenset[str] = frozenset()
        self._is_missing = False  # whether the last `fetch` had to copy a file
        self._background: threading.Thread | None = None

    def read_json(self) -> bytes:
        """Return the content of cache.json.

        Raises:
            UserError: if there is none, or it cannot be read.
        """
        if CACHE_JSON not in self._sizes:
            raise UserError(
                f"{self._reader.url}/{CACHE_JSON}: no such file; Data.cache must name a copy of a "
                "folder that 'mnmt cache' wrote"
            )
        content = self._reader.read(CACHE_JSON, FileDigest(self._sizes[CACHE_JSON]))
        self._folder = hashlib.sha256(self._reader.url.encode() + b"\n" + content).hexdigest()[:16]
        return content

    @contextlib.contextmanager
    def vocabulary(self) -> Iterator[Path]:
        """Yield a temporary folder with the files of the vocabulary."""
        with tempfile.TemporaryDirectory(prefix="mnmt_jax-") as temporary:
            folder = Path(temporary, VOCABULARY)
            folder.mkdir()
            for name, size in self._sizes.items():
                if Path(name).parent == Path(VOCABULARY):
                    content = self._reader.read(name, FileDigest(size))
                    (folder / Path(name).name).write_bytes(content)
            try:
                yield folder
            except UserError as error:
                raise UserError(str(error).replace(temporary, self._reader.url)) from error

    def expect(self, digests: Mapping[str, FileDigest | None]) -> None:
        """Compare digests with the sizes in the bucket.

        Raises:
            UserError: if a file is missing or has another size.
        """
        for name, digest in digests.items():
            path, size = f"{self._reader.url}/{name}", self._sizes.get(name)
            if size is None:
                raise UserError(f"{path}: no such file; copy the cache to the bucket again")
            if digest is not None and digest.size != size:
                raise UserError(
                    f"{path}: is damaged ({size} bytes in the bucket, {digest.size} in "
                    f"{CACHE_JSON}); copy the cache to the bucket again"
                )
            self._digests[name] = digest or FileDigest(size)
        size, limit = self._bytes(self._digests), self._copies.limit
        if size > limit:
            _log.warning(
                "%s: has files of %.2f GiB, but %s=%g keeps fewer: files may be copied again and "
                "again; raise it if the disk has room",
                self._reader.url,
                size / GIB,
                LIMIT_VARIABLE,
                limit / GIB,
            )

    def path(self, name: str) -> Path:
        """Return the path of a local copy.

        Raises:
            UserError: if the file cannot be copied.
        """
        self._copy(name, wait=True)
        return self._copies.folder / self._folder / name

    def fetch(self, names: Iterable[str]) -> None:
        """Make copies of files, several at a time.

        Raises:
            UserError: if a file cannot be copied, or the folder cannot hold all of them.
        """
        self._used = frozenset(names)
        self._check_fits(self._used)
        missing = self._missing(self._used)
        self._is_missing = bool(missing)
        self._announce(missing)
        self._copy_all(missing)

    def fetch_ahead(self, names: Callable[[], Iterable[str]]) -> None:
        """Make copies in the background, if the last `fetch` copied files, and others fit.

        Args:
            names: returns the names; called in the background.
        """
        if not self._is_missing or (self._background and self._background.is_alive()):
            return

        def work() -> None:
            with contextlib.suppress(Exception):  # raised again by `fetch`, if it lasts
                ahead = frozenset(names())
                if self._bytes(ahead | self._used) <= self._copies.limit:
                    self._copy_all(self._missing(ahead))

        self._background = threading.Thread(target=work, daemon=True)
        self._background.start()

    def discard(self, name: str, inode: int) -> bool:
        """Remove the local copy of a file, unless another one has replaced it."""
        self._copies.remove(f"{self._folder}/{name}", inode)
        return True

    def _bytes(self, names: Iterable[str]) -> int:
        return sum(self._digests[name].size for name in names)

    def _missing(self, names: Iterable[str]) -> list[str]:
        """Mark copies as used; return the names of the missing ones in random order.

        The order differs between processes, so that they seldom wait for the same file.
        """
        sizes = {name: self._digests[name].size for name in sorted(names)}
        missing = [
            name
            for name, size in sizes.items()
            if not self._copies.use(f"{self._folder}/{name}", size)
        ]
        random.SystemRandom().shuffle(missing)
        return missing

    def _copy_all(self, names: Sequence[str]) -> None:
        """Copy files in several threads; last those that other processes are copying."""
        busy: list[str] = []

        def copy(name: str) -> None:
            if not self._copy(name, wait=False):
                busy.append(name)

        run_in_threads(copy, names)
        run_in_threads(self.path, busy)

    def _copy(self, name: str, *, wait: bool) -> bool:
        digest = self._digests[name]

        def write(file: IO[bytes]) -> None:
            self._reader.download(name, file, digest)

        return self._copies.make(f"{self._folder}/{name}", digest.size, write, wait=wait)

    def _check_fits(self, names: frozenset[str]) -> None:
        """Check that the files that are read together fit in the folder.

        Raises:
            UserError: if not.
        """
        size, limit = self._bytes(names), self._copies.limit
        if size > limit:
            raise UserError(
                f"{self._reader.url}: {pluralize(len(names), 'file')} of {size / GIB:.2f} GiB are "
                f"read together, but {LIMIT_VARIABLE}={limit / GIB:g}; raise it, or mount the "
                "bucket as a folder"
            )

    def _announce(self, missing: Sequence[str]) -> None:
        """Print what is copied, if that takes long."""
        size = self._bytes(missing)
        if size >= _LARGE:
            say(
                f"copying {pluralize(len(missing), 'file')} of {size / GIB:.2f} GiB from "
                f"{self._reader.url} to {self._copies.folder} ({FOLDER_VARIABLE})"
            )

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_background": None}


def open_files(directory: Path) -> CacheFiles:
    """Return the files of a cache in a folder, or in a bucket if it is a path of `bucket_path`."""
    return BucketFiles(directory) if is_bucket(directory) else FolderFiles(directory)


def run_in_threads(work: Callable[[str], object], items: Iterable[str]) -> None:
    """Run a function for every item in several threads.

    The threads do not keep the process alive, and after an error it is raised at once: others may
    wait for a bucket for minutes.

    Raises:
        Exception: the first one of the function.
    """
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    results: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    has_failed = threading.Event()
    count = 0
    for count, item in enumerate(items, start=1):  # noqa: B007 - counts
        todo.put(item)

    def run() -> None:
        with contextlib.suppress(queue.Empty):
            while not has_failed.is_set():
                item = todo.get_nowait()
                try:
                    work(item)
                    results.put(None)
                except BaseException as error:  # raised by the caller
                    has_failed.set()
                    results.put(error)

    for _ in range(min(_THREADS, count)):
        threading.Thread(target=run, daemon=True).start()
    for _ in range(count):
        if (error := results.get()) is not None:
            raise error
