"""Token cache: sentence pairs as piece ids on disk, read by index.

    CACHE/cache.json                               format, tasks, splits and their sizes
    CACHE/vocabulary/                              the vocabulary of the ids
    CACHE/tasks/TASK/SPLIT-00000.array_record      records
    CACHE/tasks/TASK/SPLIT-lengths.npy             int32 [n, 2]: source pieces, target pieces

A record is little-endian int32: the number of source pieces, the source pieces, the target pieces.
Records hold no tags and no eos, so that one cache serves every instruction and layout. Caches are
written by `mnmt_jax.data.cache_writer`. They are read from a folder, or from a bucket through local
copies (`mnmt_jax.data.cache_files`).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mnmt_jax.data.cache_files import CACHE_JSON, CacheFiles, open_files
from mnmt_jax.data.corpus import Share
from mnmt_jax.data.document_context import Context
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.files.bucket import bucket_path, is_bucket
from mnmt_jax.files.file_digest import FileDigest
from mnmt_jax.files.json_objects import parse_json
from mnmt_jax.files.local_copies import file_inode
from mnmt_jax.files.path_checks import is_outside
from mnmt_jax.files.storage_errors import one_line, storage_error_reason
from mnmt_jax.vocabulary.vocabulary import Vocabulary

FORMAT = 3
_READABLE_FORMATS = (2, FORMAT)  # 2 has no digests of files
_OPEN_FILES = 256  # many systems limit a process to 1024 open files
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:1"
_SERIAL_SECONDS = 1e-5  # per record; a record in memory takes 2e-6
_BLOCK = 4096  # examples in memory when a split is read in order
_COPIES = 3  # of a file in a bucket, until it counts as damaged there

Examples = tuple[str, str, np.ndarray]
"""Task, split and indices of examples."""
_Content = TypeVar("_Content")


@dataclasses.dataclass(frozen=True)
class Split:
    """Size and content hash of one split of a cached task.

    Attributes:
        examples: number of sentence pairs.
        source_tokens: total number of source pieces.
        target_tokens: total number of target pieces.
        shards: number of examples in each shard file.
        content: SHA-256 of the records in order; independent of the division into shards.
        lengths_file: digest of the file of lengths; None in caches of format 2.
        shard_files: digest of each shard file; () in caches of format 2.
    """

    examples: int
    source_tokens: int
    target_tokens: int
    shards: tuple[int, ...]
    content: str
    lengths_file: FileDigest | None = None
    shard_files: tuple[FileDigest, ...] = ()

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Split:
        """Return a split from its entry in a JSON file.

        Raises:
            ValueError, TypeError, KeyError: if the entry does not describe a split.
        """
        changes: dict[str, Any] = {"shards": tuple(facts["shards"])}
        if lengths := facts.get("lengths_file"):
            changes["lengths_file"] = FileDigest.from_json(lengths)
        changes["shard_files"] = tuple(map(FileDigest.from_json, facts.get("shard_files", ())))
        split = cls(**{**facts, **changes})
        if split.shard_files and len(split.shard_files) != len(split.shards):
            raise ValueError("the digests of shards are not as many as the shards")
        return split


@dataclasses.dataclass(frozen=True)
class CachedTask:
    """One task of a cache: its languages, splits and share of the corpus.

    Attributes:
        name: unique in the cache; also the name of the task's folder.
        source_lang: code of the source language.
        target_lang: code of the target language.
        splits: the splits by name.
        share: fraction of the corpus's training pairs that the task holds; None for all.
        context: how its pairs were made of documents; None for single sentences.
    """

    name: str
    source_lang: str
    target_lang: str
    splits: Mapping[str, Split]
    share: Share | None = None
    context: Context | None = None


class TokenCache:
    """A token cache on disk, read by index. It is thread-safe.

    Attributes:
        directory: its folder, or a path in a bucket.
        vocabulary: the vocabulary of its ids.
        tasks: its tasks by name, in the order written.
    """

    def __init__(
        self,
        directory: Path,
        vocabulary: Vocabulary,
        tasks: Mapping[str, CachedTask],
        files: CacheFiles,
    ) -> None:
        self.directory = directory
        self._files = files
        self.vocabulary = vocabulary
        self.tasks = dict(tasks)
        self._lengths: dict[tuple[str, str], np.ndarray] = {}
        self._readers: collections.OrderedDict[Path, tuple[int, Any]] = collections.OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, directory: str | Path) -> TokenCache:
        """Open a cache.

        Args:
            directory: a folder, or `gs://bucket/folder`.

        Raises:
            UserError: if it is missing, damaged, of another format or with another vocabulary, or
                the bucket cannot be read.
        """
        if not str(directory):
            raise UserError(
                "Data.cache is not set; name a folder that 'mnmt cache' wrote: "
                "--gin.Data.cache=\"'FOLDER'\""
            )
        directory = bucket_path(directory) if is_bucket(directory) else Path(directory)
        path, files = directory / CACHE_JSON, open_files(directory)
        content = files.read_json()
        try:
            facts = parse_json(content, finite=False)
            version = facts.get("format")
            is_readable = version in _READABLE_FORMATS
            tasks = [_task_from_json(task) for task in facts["tasks"]] if is_readable else []
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _damaged(path, f"{type(error).__name__}: {one_line(error)}") from error
        if not is_readable:
            problem = f"format {version}, but this version reads format {FORMAT}"
            raise UserError(f"{path}: {problem}; make the cache again")
        with files.vocabulary() as folder:
            remedy = "copy that of a run trained on the cache, or make the cache again"
            vocabulary = Vocabulary.load(folder, remedy=remedy)
        if facts.get("vocabulary") != vocabulary.fingerprint:
            raise UserError(f"{path}: written with another vocabulary than {directory}/vocabulary")
        files.expect(_digests(tasks))
        files.fetch(_lengths_name(task.name, split) for task in tasks for split in task.splits)
        return cls(directory, vocabulary, {task.name: task for task in tasks}, files)

    def tasks_with(self, split: str) -> tuple[str, ...]:
        """Return the names of the tasks that have a split, in the order written."""
        return tuple(name for name, task in self.tasks.items() if split in task.splits)

    def split(self, task: str, split: str) -> Split:
        """Return the size and content hash of a split of a task.

        Raises:
            UserError: if the cache lacks the task or the task lacks the split.
        """
        if task not in self.tasks:
            names = join_names(list(self.tasks))
            raise UserError(f"{self.directory}: no task '{task}'; it has {names}")
        splits = self.tasks[task].splits
        if split not in splits:
            raise UserError(f"{self.directory}: task '{task}' has no split '{split}'")
        return splits[split]

    def lengths(self, task: str, split: str) -> np.ndarray:
        """Return the numbers of source and target pieces of every example.

        Returns:
            int32 `[n, 2]`, memory-mapped.

        Raises:
            UserError: if the file of lengths is missing or damaged.
        """
        key = (task, split)
        if key not in self._lengths:
            info, name = self.split(task, split), _lengths_name(task, split)
            self._lengths[key] = self._opened(
                name, lambda path: self._read_lengths(path, name, info)
            )
        return self._lengths[key]

    def _read_lengths(self, path: Path, name: str, info: Split) -> np.ndarray:
        """Return the memory-mapped lengths of a split.

        Raises:
            UserError: if the file is missing or damaged.
        """
        shown = self.directory / name
        try:
            lengths = np.lib.format.open_memmap(path, mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise _unreadable(shown, path, error) from error
        if lengths.shape != (info.examples, 2) or lengths.dtype != np.int32:
            raise _damaged(shown, f"{lengths.dtype}{list(lengths.shape)} inside")
        totals = [info.source_tokens, info.target_tokens]
        if lengths.min() < 0 or lengths.sum(axis=0, dtype=np.int64).tolist() != totals:
            raise _damaged(shown, "its lengths do not match cache.json")
        return lengths

    def read(self, task: str, split: str, indices: np.ndarray) -> list[bytes]:
        """Return the records of examples, in the order of `indices`.

        Args:
            task: name of the task.
            split: name of the split.
            indices: int `[n]`, below the number of examples.

        Raises:
            UserError: if a file is missing or damaged.
        """
        shards = np.cumsum((0, *self.split(task, split).shards))
        indices = np.asarray(indices)
        shard_of = np.searchsorted(shards, indices, side="right") - 1
        records: list[bytes] = [b""] * len(indices)
        for shard in np.unique(shard_of).tolist():
            in_shard = np.flatnonzero(shard_of == shard)
            shard_indices = (indices[in_shard] - shards[shard]).tolist()
            lengths = self.lengths(task, split)[indices[in_shard]]
            name = _shard_name(task, split, shard)
            shard_records = self._opened(
                name, functools.partial(self._read_shard, name, shard_indices, lengths)
            )
            for i, record in zip(in_shard.tolist(), shard_records, strict=True):
                records[i] = record
        return records

    def _read_shard(
        self, name: str, indices: list[int], lengths: np.ndarray, path: Path
    ) -> list[bytes]:
        """Return records of a shard file.

        Raises:
            UserError: if the file is missing or damaged, or its records have other lengths.
        """
        shown = self.directory / name
        try:
            with self._lock:
                records = _read_records(self._reader(path), indices)
        except (OSError, RuntimeError, ValueError, IndexError) as error:
            raise _unreadable(shown, path, error) from error
        if not _match_lengths(records, lengths):
            raise _damaged(shown, "its records do not match the file of lengths")
        return records

    def _opened(self, name: str, read: Callable[[Path], _Content]) -> _Content:
        """Read a file; if a local copy is damaged or has just been removed, copy the file again.

        Raises:
            UserError: if the file cannot be read.
        """
        for _ in range(_COPIES):
            path = self._files.path(name)
            inode = file_inode(path)
            try:
                return read(path)
            except UserError as error:
                damage = error
            with self._lock:
                inode, _ = self._readers.pop(path, (inode, None))
            if not self._files.discard(name, inode):
                break
        raise damage

    def fetch(self, examples: Iterable[Examples]) -> None:
        """Make the files of examples local that are read next; return at once if they are.

        Raises:
            UserError: if a file cannot be copied, or the folder of copies cannot hold all of them.
        """
        self._files.fetch(self._names(examples))

    def fetch_ahead(self, examples: Callable[[], Iterable[Examples]]) -> None:
        """Start making the files of later examples local, if files are copied at all.

        Args:
            examples: returns the examples; called in the background.
        """
        self._files.fetch_ahead(lambda: self._names(examples()))

    def _names(self, examples: Iterable[Examples]) -> Iterator[str]:
        """Yield the names of the files that have examples."""
        for task, split, indices in examples:
            shards = np.cumsum(self.split(task, split).shards)
            yield _lengths_name(task, split)
            for shard in np.unique(np.searchsorted(shards, indices, side="right")).tolist():
                yield _shard_name(task, split, shard)

    def pair(self, task: str, split: str, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the source and target pieces of one example, int32 `[pieces]` each."""
        tokens = np.frombuffer(self.read(task, split, np.array([index]))[0], "<i4")
        return tokens[1 : 1 + tokens[0]], tokens[1 + tokens[0] :]

    def pairs(
        self, task: str, split: str, indices: np.ndarray | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the source and target pieces of examples, of which a block is in memory at a time.

        Args:
            task: name of the task.
            split: name of the split.
            indices: of the examples; None is all, in order.
        """
        if indices is None:
            indices = np.arange(self.split(task, split).examples)
        all_lengths = self.lengths(task, split)
        for start in range(0, len(indices), _BLOCK):
            block = indices[start : start + _BLOCK]
            lengths = all_lengths[block]
            sources, targets = decode_records(self.read(task, split, block), lengths)
            ends = np.cumsum(lengths, axis=0)[:-1]
            sides = np.split(sources, ends[:, 0]), np.split(targets, ends[:, 1])
            yield from zip(*sides, strict=True)

    def files(self, task: str) -> Iterator[tuple[str, Path]]:
        """Yield the files of a task: names relative to the cache's folder, and paths to open."""
        for name in _digests([self.tasks[task]]):
            yield name, self._files.path(name)

    def _reader(self, path: Path) -> Any:
        """Return an open reader of a shard; close the least recently used one at the limit."""
        if path in self._readers:
            self._readers.move_to_end(path)
            return self._readers[path][1]
        from array_record.python import array_record_module

        if len(self._readers) == _OPEN_FILES:
            self._readers.popitem(last=False)[1][1].close()
        reader = array_record_module.ArrayRecordReader(str(path), options=_READER_OPTIONS)
        self._readers[path] = (file_inode(path), reader)
        return reader

    def __getstate__(self) -> dict:
        return {
            **self.__dict__,
            "_readers": collections.OrderedDict(),
            "_lengths": {},
            "_lock": None,
        }

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def _read_records(reader: Any, indices: list[int]) -> list[bytes]:
    """Read records one by one, and in parallel those that remain when that takes too long.

    In memory, the threads of a parallel read cost more than the records; from a disk or a network
    they hide its latency.
    """
    records: list[bytes] = []
    deadline = time.perf_counter() + _SERIAL_SECONDS * len(indices)
    while len(records) < len(indices) and time.perf_counter() < deadline:
        reader.seek(indices[len(records)])
        records.append(reader.read())
    if len(records) < len(indices):
        records += reader.read(indices[len(records) :])
    return records


def _unreadable(path: Path, opened: Path, error: Exception) -> UserError:
    """Return the error of an unreadable file: missing, a storage failure, or damaged.

    Args:
        path: path in the cache.
        opened: path of the file that was opened, which may be a copy.
        error: what was raised.
    """
    if not opened.is_file():
        return UserError(f"{path}: is missing; make the cache again with 'mnmt cache'")
    if trouble := storage_error_reason(error):
        return UserError(f"{path}: cannot be read ({trouble}); check the storage")
    return _damaged(path, one_line(error))


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"{path}: is damaged ({reason}); make the cache again with 'mnmt cache'")


def _match_lengths(records: Sequence[bytes], lengths: np.ndarray) -> bool:
    """Return whether records have the numbers of source and target pieces in `lengths`."""
    if len(records) != len(lengths):
        return False
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    if not np.array_equal(sizes, 4 * (1 + lengths.sum(axis=1, dtype=np.int64))):
        return False
    sources = np.frombuffer(b"".join(record[:4] for record in records), "<i4")
    return np.array_equal(sources, lengths[:, 0])


def decode_records(records: Sequence[bytes], lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Decode many records at once into flat source and target pieces.

    Args:
        records: as `TokenCache.read` returns them.
        lengths: numbers of source and target pieces of each record, int `[n, 2]`.

    Returns:
        The source pieces and the target pieces of all examples, concatenated, int32 `[total]` each.

    Raises:
        UserError: if a record and its lengths disagree: the cache is damaged.
    """
    tokens = np.frombuffer(b"".join(records), "<i4")
    counts = np.empty((len(records), 3), np.int64)
    counts[:, 0] = 1
    counts[:, 1:] = lengths
    if counts.sum() != tokens.size:
        raise UserError("token cache is damaged: records and lengths disagree; make it again")
    # 0: number of source pieces, 1: source piece, 2: target piece
    field = np.repeat(np.tile(np.arange(3, dtype=np.int8), len(records)), counts.reshape(-1))
    if not np.array_equal(tokens[field == 0], counts[:, 1]):
        raise UserError("token cache is damaged: records and lengths disagree; make it again")
    return tokens[field == 1], tokens[field == 2]


def shard_path(directory: Path, task: str, split: str, shard: int) -> Path:
    """Return the path of a shard file of a task's split."""
    return directory / "tasks" / task / f"{split}-{shard:05d}.array_record"


def lengths_path(directory: Path, task: str, split: str) -> Path:
    """Return the path of the file with the lengths of a task's split."""
    return directory / "tasks" / task / f"{split}-lengths.npy"


def _shard_name(task: str, split: str, shard: int) -> str:
    return shard_path(Path(), task, split, shard).as_posix()


def _lengths_name(task: str, split: str) -> str:
    return lengths_path(Path(), task, split).as_posix()


def _digests(tasks: Iterable[CachedTask]) -> dict[str, FileDigest | None]:
    """Return the digests of the files of tasks by name; None where the cache has none."""
    digests: dict[str, FileDigest | None] = {}
    for task in tasks:
        for name, split in task.splits.items():
            digests[_lengths_name(task.name, name)] = split.lengths_file
            shard_files = split.shard_files or (None,) * len(split.shards)
            for shard, digest in enumerate(shard_files):
                digests[_shard_name(task.name, name, shard)] = digest
    return digests


def _task_from_json(task: dict) -> CachedTask:
    """Return a task from its entry in cache.json.

    Raises:
        ValueError, TypeError, KeyError: if the entry does not describe a task.
    """
    splits = {}
    for name, facts in task["splits"].items():
        _check_name(name)
        split = Split.from_json(facts)
        counts = (split.examples, split.source_tokens, split.target_tokens, *split.shards)
        if min(counts) < 0 or not 0 < split.examples == sum(split.shards):
            raise ValueError(f"{task['name']}/{name} has impossible counts")
        splits[name] = split
    _check_name(task["name"])
    optional: dict[str, Any] = {  # absent in older caches
        key: kind(**task[key])
        for key, kind in (("share", Share), ("context", Context))
        if task.get(key)
    }
    return CachedTask(task["name"], task["source_lang"], task["target_lang"], splits, **optional)


def _check_name(name: str) -> None:
    """Raise ValueError if a name, used in a path, leads out of its folder."""
    if is_outside(name):
        raise ValueError(f"{name!r} is outside the cache")
