"""Token cache: sentence pairs as piece ids on disk, read by index.

    CACHE/cache.json                               format, tasks, splits and their sizes
    CACHE/vocabulary/                              the vocabulary of the ids
    CACHE/tasks/TASK/SPLIT-00000.array_record      records
    CACHE/tasks/TASK/SPLIT-lengths.npy             int32 [n, 2]: source pieces, target pieces

A record is little-endian int32: the number of source pieces, the source pieces, the target pieces.
Records hold no tags and no eos, so that one cache serves every instruction and layout. Caches are
written by `mnmt_jax.data.cache_writer`.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.data.corpus import Share
from mnmt_jax.errors import UserError
from mnmt_jax.files.bucket import refuse_bucket
from mnmt_jax.files.json_objects import parse_json
from mnmt_jax.files.path_checks import is_outside
from mnmt_jax.files.storage_errors import one_line, storage_error_reason
from mnmt_jax.vocabulary.vocabulary import Vocabulary

FORMAT = 2
_OPEN_FILES = 256  # many systems limit a process to 1024 open files
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:1"
_SERIAL_SECONDS = 1e-3


@dataclasses.dataclass(frozen=True)
class Split:
    """Size and content hash of one split of a cached task.

    Attributes:
        examples: number of sentence pairs.
        source_tokens: total number of source pieces.
        target_tokens: total number of target pieces.
        shards: number of examples in each shard file.
        content: SHA-256 of the records in order; independent of the division into shards.
    """

    examples: int
    source_tokens: int
    target_tokens: int
    shards: tuple[int, ...]
    content: str


@dataclasses.dataclass(frozen=True)
class CachedTask:
    """One task of a cache: its languages, its splits, and its share of the corpus.

    Attributes:
        name: unique in the cache; also the name of the task's folder.
        source_lang: code of the source language.
        target_lang: code of the target language.
        splits: the splits by name.
        share: fraction of the corpus's training pairs that the task holds; None for all.
    """

    name: str
    source_lang: str
    target_lang: str
    splits: Mapping[str, Split]
    share: Share | None = None


class TokenCache:
    """A token cache on disk, read by index. It is thread-safe.

    Attributes:
        directory: its folder.
        vocabulary: the vocabulary of its ids.
        tasks: its tasks by name, in the order written.
    """

    def __init__(
        self, directory: Path, vocabulary: Vocabulary, tasks: Mapping[str, CachedTask]
    ) -> None:
        self.directory = directory
        self.vocabulary = vocabulary
        self.tasks = dict(tasks)
        self._lengths: dict[tuple[str, str], np.ndarray] = {}
        self._readers: collections.OrderedDict[Path, Any] = collections.OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, directory: str | Path) -> TokenCache:
        """Open a cache.

        Raises:
            UserError: if it is missing, damaged, of another format or with another vocabulary.
        """
        if not str(directory):
            raise UserError(
                "Data.cache is not set; name a folder that 'mnmt cache' wrote: "
                "--gin.Data.cache=\"'FOLDER'\""
            )
        directory = Path(directory)
        path = directory / "cache.json"
        refuse_bucket(directory)
        if not path.is_file():
            raise UserError(
                f"{path}: no such file; Data.cache must name a folder that 'mnmt cache' wrote"
            )
        try:
            facts = parse_json(path.read_bytes(), finite=False)
            version = facts.get("format")
            tasks = [_task_from_json(task) for task in facts["tasks"]] if version == FORMAT else []
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _damaged(path, f"{type(error).__name__}: {one_line(error)}") from error
        if version != FORMAT:
            raise UserError(
                f"{path}: format {version}, but this version reads format {FORMAT}; make the cache "
                "again"
            )
        vocabulary = Vocabulary.load(directory / "vocabulary")
        if facts.get("vocabulary") != vocabulary.fingerprint:
            raise UserError(f"{path}: written with another vocabulary than {directory}/vocabulary")
        return cls(directory, vocabulary, {task.name: task for task in tasks})

    def tasks_with(self, split: str) -> tuple[str, ...]:
        """Return the names of the tasks that have a split, in the order written."""
        return tuple(name for name, task in self.tasks.items() if split in task.splits)

    def split(self, task: str, split: str) -> Split:
        """Return the size and content hash of a split of a task.

        Raises:
            UserError: if the cache lacks the task or the task lacks the split.
        """
        if task not in self.tasks:
            examples = ", ".join(list(self.tasks)[:8])
            raise UserError(f"{self.directory}: no task '{task}'; it has {examples}, ...")
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
            info, path = self.split(task, split), lengths_path(self.directory, task, split)
            try:
                lengths = np.lib.format.open_memmap(path, mode="r")
            except (OSError, ValueError, EOFError) as error:
                raise _unreadable(path, error) from error
            if lengths.shape != (info.examples, 2) or lengths.dtype != np.int32:
                raise _damaged(path, f"{lengths.dtype}{list(lengths.shape)} inside")
            totals = [info.source_tokens, info.target_tokens]
            if lengths.min() < 0 or lengths.sum(axis=0, dtype=np.int64).tolist() != totals:
                raise _damaged(path, "its lengths do not match cache.json")
            self._lengths[key] = lengths
        return self._lengths[key]

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
            path = shard_path(self.directory, task, split, shard)
            try:
                with self._lock:
                    shard_records = _read_records(self._reader(path), shard_indices)
            except (OSError, RuntimeError, ValueError, IndexError) as error:
                raise _unreadable(path, error) from error
            if not _match_lengths(shard_records, self.lengths(task, split)[indices[in_shard]]):
                raise _damaged(path, "its records do not match the file of lengths")
            for i, record in zip(in_shard.tolist(), shard_records, strict=True):
                records[i] = record
        return records

    def pair(self, task: str, split: str, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the source and target pieces of one example, int32 `[pieces]` each."""
        tokens = np.frombuffer(self.read(task, split, np.array([index]))[0], "<i4")
        return tokens[1 : 1 + tokens[0]], tokens[1 + tokens[0] :]

    def files(self, task: str) -> Iterator[Path]:
        """Yield the paths of a task's files, relative to the cache's folder."""
        for name, split in self.tasks[task].splits.items():
            yield lengths_path(Path(), task, name)
            yield from (shard_path(Path(), task, name, n) for n in range(len(split.shards)))

    def _reader(self, path: Path) -> Any:
        """Return an open reader of a shard; close the least recently used one at the limit."""
        if path in self._readers:
            self._readers.move_to_end(path)
            return self._readers[path]
        from array_record.python import array_record_module

        if len(self._readers) == _OPEN_FILES:
            self._readers.popitem(last=False)[1].close()
        self._readers[path] = array_record_module.ArrayRecordReader(
            str(path), options=_READER_OPTIONS
        )
        return self._readers[path]

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
    """Read records one by one, and those that remain after a millisecond in parallel.

    In memory, the threads of a parallel read cost more than the records; from a disk or a network
    they hide its latency.
    """
    records: list[bytes] = []
    deadline = time.perf_counter() + _SERIAL_SECONDS
    while len(records) < len(indices) and time.perf_counter() < deadline:
        reader.seek(indices[len(records)])
        records.append(reader.read())
    if len(records) < len(indices):
        records += reader.read(indices[len(records) :])
    return records


def _unreadable(path: Path, error: Exception) -> UserError:
    """Return the error of an unreadable file: missing, a storage failure, or damaged."""
    if not path.is_file():
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


def _task_from_json(task: dict) -> CachedTask:
    """Return a task from its entry in cache.json.

    Raises:
        ValueError, TypeError, KeyError: if the entry does not describe a task.
    """
    splits = {}
    for name, facts in task["splits"].items():
        _check_name(name)
        split = Split(**{**facts, "shards": tuple(facts["shards"])})
        counts = (split.examples, split.source_tokens, split.target_tokens, *split.shards)
        if min(counts) < 0 or not 0 < split.examples == sum(split.shards):
            raise ValueError(f"{task['name']}/{name} has impossible counts")
        splits[name] = split
    _check_name(task["name"])
    share = Share(**task["share"]) if task.get("share") else None  # absent in older caches: all
    return CachedTask(task["name"], task["source_lang"], task["target_lang"], splits, share)


def _check_name(name: str) -> None:
    """Raise ValueError if a name, used in a path, leads out of its folder."""
    if is_outside(name):
        raise ValueError(f"{name!r} is outside the cache")
