"""The token cache: sentence pairs as piece ids on disk, read by index.

    CACHE/cache.json                               what is inside
    CACHE/vocabulary/                              the vocabulary the ids belong to
    CACHE/tasks/TASK/SPLIT-00000.array_record      records
    CACHE/tasks/TASK/SPLIT-lengths.npy             int32 [n, 2]: source pieces, target pieces

A record is little-endian int32: the number of source pieces, the source pieces, the target pieces.
Tags and eos are absent, so that one cache serves every instruction and layout.
"""

from __future__ import annotations

import array
import collections
import dataclasses
import hashlib
import io
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mnmt_jax.data.corpus import Share
from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import check_writable, new_folder
from mnmt_jax.files.bucket import refuse_bucket
from mnmt_jax.files.json_objects import parse_json
from mnmt_jax.files.path_names import MAX_JOINED_BYTES, check_name, leads_out
from mnmt_jax.files.storage import one_line, storage_trouble
from mnmt_jax.vocabulary.languages import Direction
from mnmt_jax.vocabulary.pieces import Vocabulary

if TYPE_CHECKING:
    from mnmt_jax.data.taken import TakenTask

FORMAT = 2
SHARD_EXAMPLES = 1_000_000
_ENCODE_LINES = 1024
_OPEN_FILES = 256  # a process may often open only 1024
# One record per group, so that a single example can be read; small records do not compress.
_WRITER_OPTIONS = "group_size:1,uncompressed"
_READER_OPTIONS = "readahead_buffer_size:0"

TokenPair = tuple[Sequence[int], Sequence[int]]


@dataclasses.dataclass(frozen=True)
class TaskSource:
    """A task to be written: its languages and, per split, a function that yields its pairs.

    Attributes:
        name: unique; a folder of the cache.
        source_lang: code of the source language.
        target_lang: code of the target language.
        splits: per split name, a function without arguments that yields pairs of piece ids.
        share: of the training pairs there are that these are; None for all.
    """

    name: str
    source_lang: str
    target_lang: str
    splits: Mapping[str, Callable[[], Iterable[TokenPair]]]
    share: Share | None = None

    def write(self, directory: Path, shard_examples: int) -> CachedTask:
        """Writes its files.

        Args:
            directory: of the cache to be.
            shard_examples: examples per shard file at most.

        Raises:
            UserError: if there is no example.
        """
        splits = {
            split: _write_split(directory, self.name, split, (pairs(), shard_examples))
            for split, pairs in self.splits.items()
        }
        kept = {name: split for name, split in splits.items() if split.examples}
        if not kept:
            raise UserError(
                f"task '{self.name}' has no examples; check the corpus and its directions"
            )
        return CachedTask(self.name, self.source_lang, self.target_lang, kept, self.share)


@dataclasses.dataclass(frozen=True)
class Split:
    """What the cache holds of a task's split.

    Attributes:
        examples: sentence pairs.
        source_tokens: source pieces in all.
        target_tokens: target pieces in all.
        shards: examples of each shard file.
        content: hash of the records in order, the same however they are cut into shards.
    """

    examples: int
    source_tokens: int
    target_tokens: int
    shards: tuple[int, ...]
    content: str


@dataclasses.dataclass(frozen=True)
class CachedTask:
    """A task of a cache; `share` as in `TaskSource`."""

    name: str
    source_lang: str
    target_lang: str
    splits: Mapping[str, Split]
    share: Share | None = None


def encode_pairs(
    vocabulary: Vocabulary, pairs: Iterable[tuple[str, str]], direction: Direction | None = None
) -> Iterator[tuple[list[int], list[int]]]:
    """Yields the piece ids of text pairs, encoding many lines at a time.

    Args:
        vocabulary: turns text into ids.
        pairs: source and target text.
        direction: their languages; only a vocabulary with copies or additions needs them.
    """
    languages = direction or (None, None)
    block: list[tuple[str, str]] = []
    for pair in pairs:
        block.append(pair)
        if len(block) == _ENCODE_LINES:
            yield from _encode_block(vocabulary, block, languages)
            block = []
    if block:
        yield from _encode_block(vocabulary, block, languages)


def write_cache(
    directory: str | Path,
    tasks: Iterable[TaskSource | TakenTask],
    *,
    vocabulary: Vocabulary,
    overwrite: bool = False,
    shard_examples: int = SHARD_EXAMPLES,
    report: Callable[[str], None] = lambda line: None,
) -> TokenCache:
    """Writes a token cache; it appears under its name only when complete.

    Args:
        directory: where the cache will be.
        tasks: what to write, or take from another cache of the vocabulary.
        vocabulary: saved with the cache.
        overwrite: replace an existing cache instead of refusing.
        shard_examples: examples per shard file at most.
        report: called with one line per finished task.

    Returns:
        The opened cache.

    Raises:
        UserError: if the directory exists (with `overwrite`: and is no cache) or cannot be written,
            a task's name is no name of a folder, two tasks share a name, a task has no example, or
            a language has no tag in the vocabulary.
    """
    directory = Path(directory)
    check_absent(directory, overwrite)
    with new_folder(directory, overwrite=overwrite) as partial:
        written: dict[str, CachedTask] = {}
        for task in tasks:
            check_name(task.name, "task", max_bytes=MAX_JOINED_BYTES)
            if task.name in written:
                raise UserError(
                    f"task '{task.name}' is given twice, by the corpus and a cache or by two "
                    "caches; name files of your own otherwise with --name, or leave that cache out "
                    "of --also"
                )
            for language in (task.source_lang, task.target_lang):
                vocabulary.tag_id(language)
            written[task.name] = task.write(partial, shard_examples)
            report(_task_line(written[task.name]))
        if not written:
            raise UserError("no tasks to write; name a mixture or directions")
        vocabulary.save(partial / "vocabulary")
        facts = {
            "format": FORMAT,
            "vocabulary": vocabulary.fingerprint,
            "tasks": [dataclasses.asdict(task) for task in written.values()],
        }
        (partial / "cache.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return TokenCache.open(directory)


def check_absent(directory: str | Path, overwrite: bool) -> None:
    """Refuses to write where something is or nothing can be; a cache may be overwritten.

    Raises:
        UserError: if so.
    """
    directory = Path(directory)
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        check_writable(directory)
        return
    if not (directory / "cache.json").is_file():
        raise UserError(f"{directory}: exists and is no cache; choose another directory")
    if not overwrite:
        raise UserError(f"{directory}: exists; choose another directory or pass --overwrite")


class TokenCache:
    """A token cache on disk, read by index. Safe to use from several threads.

    Attributes:
        directory: where it is.
        vocabulary: the vocabulary its ids belong to.
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
        """Opens a cache.

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
            raise UserError(f"{path}: no such file; Data.cache must name what 'mnmt cache' wrote")
        try:
            facts = parse_json(path.read_bytes(), finite=False)
            found = facts.get("format")
            tasks = [_task_from_json(task) for task in facts["tasks"]] if found == FORMAT else []
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _damaged(path, f"{type(error).__name__}: {one_line(error)}") from error
        if found != FORMAT:
            raise UserError(f"{path}: format {found}, this version reads {FORMAT}; make it again")
        vocabulary = Vocabulary.load(directory / "vocabulary")
        if facts.get("vocabulary") != vocabulary.fingerprint:
            raise UserError(f"{path}: written with another vocabulary than {directory}/vocabulary")
        return cls(directory, vocabulary, {task.name: task for task in tasks})

    def tasks_with(self, split: str) -> tuple[str, ...]:
        """Returns the names of the tasks that have a split, in the order written."""
        return tuple(name for name, task in self.tasks.items() if split in task.splits)

    def split(self, task: str, split: str) -> Split:
        """Returns what is known of a split.

        Raises:
            UserError: if the cache lacks the task or the task lacks the split.
        """
        if task not in self.tasks:
            known = ", ".join(list(self.tasks)[:8])
            raise UserError(f"{self.directory}: no task '{task}'; it has {known}, ...")
        splits = self.tasks[task].splits
        if split not in splits:
            raise UserError(f"{self.directory}: task '{task}' has no split '{split}'")
        return splits[split]

    def lengths(self, task: str, split: str) -> np.ndarray:
        """Returns the source and target pieces of every example, int32 `[n, 2]`, memory-mapped.

        Raises:
            UserError: if their file is missing or damaged.
        """
        key = (task, split)
        if key not in self._lengths:
            known, path = self.split(task, split), _lengths_path(self.directory, task, split)
            try:
                lengths = np.lib.format.open_memmap(path, mode="r")
            except (OSError, ValueError, EOFError) as error:
                raise _unreadable(path, error) from error
            if lengths.shape != (known.examples, 2) or lengths.dtype != np.int32:
                raise _damaged(path, f"{lengths.dtype}{list(lengths.shape)} inside")
            totals = [known.source_tokens, known.target_tokens]
            if lengths.min() < 0 or lengths.sum(axis=0, dtype=np.int64).tolist() != totals:
                raise _damaged(path, "other lengths than in cache.json")
            self._lengths[key] = lengths
        return self._lengths[key]

    def read(self, task: str, split: str, indices: np.ndarray) -> list[bytes]:
        """Returns the records of examples, in the order asked for.

        Args:
            task: its name.
            split: its name.
            indices: int `[n]`, each below the number of examples.

        Raises:
            UserError: if a file is missing or damaged.
        """
        shards = np.cumsum((0, *self.split(task, split).shards))
        indices = np.asarray(indices)
        shard_of = np.searchsorted(shards, indices, side="right") - 1
        records: list[bytes] = [b""] * len(indices)
        for shard in np.unique(shard_of).tolist():
            wanted = np.flatnonzero(shard_of == shard)
            local = (indices[wanted] - shards[shard]).tolist()
            path = _shard_path(self.directory, task, split, shard)
            try:
                with self._lock:
                    found = self._reader(path).read(local)
            except (OSError, RuntimeError, ValueError, IndexError) as error:
                raise _unreadable(path, error) from error
            if not _fit(found, self.lengths(task, split)[indices[wanted]]):
                raise _damaged(path, "its records do not have the lengths beside it")
            for place, record in zip(wanted.tolist(), found, strict=True):
                records[place] = record
        return records

    def pair(self, task: str, split: str, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the source and target pieces of one example, int32."""
        tokens = np.frombuffer(self.read(task, split, np.array([index]))[0], "<i4")
        return tokens[1 : 1 + tokens[0]], tokens[1 + tokens[0] :]

    def files(self, task: str) -> Iterator[Path]:
        """Yields the names of a task's files, from the cache's folder on."""
        for name, split in self.tasks[task].splits.items():
            yield _lengths_path(Path(), task, name)
            yield from (_shard_path(Path(), task, name, n) for n in range(len(split.shards)))

    def _reader(self, path: Path) -> Any:
        """Returns an open file; the least recently used ones are closed."""
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


def _unreadable(path: Path, error: Exception) -> UserError:
    """Says why a file could not be read, and whether a new cache would help."""
    if not path.is_file():
        return UserError(f"{path}: is missing; make the cache again with 'mnmt cache'")
    if trouble := storage_trouble(error):
        return UserError(f"{path}: cannot be read ({trouble}); see to the storage")
    return _damaged(path, one_line(error))


def _damaged(path: Path, why: str) -> UserError:
    return UserError(f"{path}: is damaged ({why}); make the cache again with 'mnmt cache'")


def _fit(records: Sequence[bytes], lengths: np.ndarray) -> bool:
    """Returns whether records have the source and target pieces that are known of them."""
    if len(records) != len(lengths):
        return False
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    if not np.array_equal(sizes, 4 * (1 + lengths.sum(axis=1, dtype=np.int64))):
        return False
    sources = np.frombuffer(b"".join(record[:4] for record in records), "<i4")
    return np.array_equal(sources, lengths[:, 0])


def split_records(records: Sequence[bytes], lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Separates the sources and targets of many records at once.

    Args:
        records: as `TokenCache.read` returns them.
        lengths: source and target pieces of each, int `[n, 2]`.

    Returns:
        All source pieces and all target pieces, int32, one example after the other.

    Raises:
        UserError: if a record and its lengths disagree: the cache is damaged.
    """
    tokens = np.frombuffer(b"".join(records), "<i4")
    counts = np.empty((len(records), 3), np.int64)
    counts[:, 0] = 1
    counts[:, 1:] = lengths
    if counts.sum() != tokens.size:
        raise UserError("token cache is damaged: records and lengths disagree; make it again")
    kind = np.repeat(np.tile(np.arange(3, dtype=np.int8), len(records)), counts.reshape(-1))
    if not np.array_equal(tokens[kind == 0], counts[:, 1]):
        raise UserError("token cache is damaged: records and lengths disagree; make it again")
    return tokens[kind == 1], tokens[kind == 2]


def _write_split(
    directory: Path, task: str, split: str, pairs_and_size: tuple[Iterable[TokenPair], int]
) -> Split:
    pairs, shard_examples = pairs_and_size
    lengths = array.array("i")
    shards: list[int] = []
    content = hashlib.sha256()
    writer = None
    for source, target in pairs:
        if writer is None or shards[-1] == shard_examples:
            if writer is not None:
                writer.close()
            writer = _open_writer(_shard_path(directory, task, split, len(shards)))
            shards.append(0)
        record = np.array([len(source), *source, *target], "<i4").tobytes()
        writer.write(record)
        content.update(len(record).to_bytes(4, "little") + record)
        lengths.extend((len(source), len(target)))
        shards[-1] += 1
    if writer is None:
        return Split(0, 0, 0, (), content.hexdigest())
    writer.close()
    table = np.array(lengths, np.int32).reshape(-1, 2)
    held = io.BytesIO()  # into a file, NumPy's errors do not say what the system said
    np.save(held, table)
    _lengths_path(directory, task, split).write_bytes(held.getbuffer())
    totals = table.sum(axis=0, dtype=np.int64)
    return Split(len(table), int(totals[0]), int(totals[1]), tuple(shards), content.hexdigest())


def _open_writer(path: Path) -> Any:
    from array_record.python import array_record_module

    path.parent.mkdir(parents=True, exist_ok=True)
    return array_record_module.ArrayRecordWriter(str(path), _WRITER_OPTIONS)


def _encode_block(
    vocabulary: Vocabulary,
    block: Sequence[tuple[str, str]],
    languages: tuple[str | None, str | None],
) -> Iterator[tuple[list[int], list[int]]]:
    sides = zip(zip(*block, strict=True), languages, strict=True)
    yield from zip(*(vocabulary.encode_lines(lines, code) for lines, code in sides), strict=True)


def _shard_path(directory: Path, task: str, split: str, shard: int) -> Path:
    return directory / "tasks" / task / f"{split}-{shard:05d}.array_record"


def _lengths_path(directory: Path, task: str, split: str) -> Path:
    return directory / "tasks" / task / f"{split}-lengths.npy"


def _task_from_json(task: dict) -> CachedTask:
    """Makes a task of its facts.

    Raises:
        ValueError: or a `TypeError` or `KeyError`, if the facts are not those of a task.
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
    share = Share(**task["share"]) if task.get("share") else None  # before there were shares: all
    return CachedTask(task["name"], task["source_lang"], task["target_lang"], splits, share)


def _check_name(name: str) -> None:
    """Raises unless a name can stand in a path without leading out of its folder."""
    if leads_out(name):
        raise ValueError(f"{name!r} leads out of the cache")


def _task_line(task: CachedTask) -> str:
    splits = ", ".join(f"{split.examples} {name}" for name, split in task.splits.items())
    share = f" (share {task.share.of_pairs:g}, seed {task.share.seed})" if task.share else ""
    return f"{task.name}: {splits}{share}"
