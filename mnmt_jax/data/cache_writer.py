"""Writing token caches: encode text pairs, write tasks, reuse the tasks of another cache."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.data.cache import FORMAT, CachedTask, Split, TokenCache, lengths_path, shard_path
from mnmt_jax.data.corpus import Share
from mnmt_jax.data.document_context import Context
from mnmt_jax.data.instruction import split_auxiliary
from mnmt_jax.errors import UserError, pluralize, warn
from mnmt_jax.files.atomic_write import (
    check_replaceable,
    is_occupied,
    new_folder,
)
from mnmt_jax.files.bucket import refuse_bucket
from mnmt_jax.files.file_digest import FileDigest
from mnmt_jax.files.path_checks import MAX_JOINED_BYTES, check_name
from mnmt_jax.vocabulary.language_codes import Direction, find_code
from mnmt_jax.vocabulary.vocabulary import Vocabulary

DEFAULT_SHARD_EXAMPLES = 1_000_000
_TRAIN = "train"
_ENCODE_LINES = 1024
_LENGTHS_BUFFER = 2**20  # numbers that are written at a time
# One record per group, so that a single example can be read; small records do not compress.
_WRITER_OPTIONS = "group_size:1,uncompressed"

TokenPair = tuple[Sequence[int], Sequence[int]]


@dataclasses.dataclass(frozen=True)
class TaskSource:
    """A task to encode and write: its languages and, per split, a function that yields its pairs.

    Attributes:
        name: unique in the cache; also the name of the task's folder.
        source_lang: code of the source language.
        target_lang: code of the target language.
        splits: per split name, a function without arguments that yields pairs of piece ids.
        share: fraction of the corpus's training pairs that the task holds; None for all.
        context: how its pairs were made of documents; None for single sentences.
    """

    name: str
    source_lang: str
    target_lang: str
    splits: Mapping[str, Callable[[], Iterable[TokenPair]]]
    share: Share | None = None
    context: Context | None = None

    def write(self, directory: Path, shard_examples: int) -> CachedTask:
        """Write the task's files.

        Args:
            directory: folder of the new cache.
            shard_examples: most examples per shard file.

        Raises:
            UserError: if there is no example, or no pair of a split has pieces on both sides.
        """
        splits = {
            split: write_split(directory, self.name, split, self._pairs(split), shard_examples)
            for split in self.splits
        }
        non_empty = {name: split for name, split in splits.items() if split.examples}
        if not non_empty:
            raise no_examples_error(self.name)
        languages = self.source_lang, self.target_lang
        return CachedTask(self.name, *languages, non_empty, self.share, self.context)

    def _pairs(self, split: str) -> Iterator[TokenPair]:
        """Yield the pairs of a split; of two languages, without those that lack pieces on a side.

        Raises:
            UserError: if there are pairs, but all lack pieces.
        """
        one_language = self.source_lang == self.target_lang
        number = count = first = 0
        for number, pair in enumerate(self.splits[split](), start=1):
            if one_language or all(len(side) for side in pair):
                yield pair
            else:
                count, first = count + 1, first or number
        if not count:
            return
        problem = (
            f"task '{self.name}', {split}: {count} of {pluralize(number, 'pair')} (first: pair "
            f"{first}) have a side without pieces in this vocabulary"
        )
        if count == number:
            raise UserError(f"{problem}; give a vocabulary of this text with --vocabulary")
        warn(f"{problem}, such as control characters alone; left out")


@dataclasses.dataclass(frozen=True, eq=False)
class ReusedTask:
    """A task of another cache with compatible ids; its files are linked, not encoded again.

    Attributes:
        cache: the other cache.
        name: name of the task in both caches.
    """

    cache: TokenCache
    name: str

    @property
    def source_lang(self) -> str:
        """Code of the source language."""
        return self.cache.tasks[self.name].source_lang

    @property
    def target_lang(self) -> str:
        """Code of the target language."""
        return self.cache.tasks[self.name].target_lang

    @property
    def splits(self) -> Mapping[str, Split]:
        """Size of each split."""
        return self.cache.tasks[self.name].splits

    @property
    def context(self) -> Context | None:
        """How its pairs were made of documents; None for single sentences."""
        return self.cache.tasks[self.name].context

    def write(self, directory: Path, shard_examples: int) -> CachedTask:
        """Hard-link the task's files; copy them where the file system refuses links.

        Args:
            directory: folder of the new cache.
            shard_examples: ignored; the shards stay as they are.
        """
        del shard_examples
        for name, path in self.cache.files(self.name):
            link_or_copy(path, directory / name)
        return self.cache.tasks[self.name]


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file; copy it where the file system refuses links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def reused_tasks(cache: TokenCache, vocabulary: Vocabulary) -> Iterator[ReusedTask]:
    """Yield all tasks of a cache, to be written into another cache.

    Args:
        cache: the cache that has the tasks.
        vocabulary: vocabulary of the other cache: that of `cache`, or an extension of it by
            languages.

    Raises:
        UserError: if the vocabulary gives the ids of the cache another meaning, tags in prompts
            included, or a language of a task another tag.
    """
    if not vocabulary.is_extension_of(cache.vocabulary):
        raise UserError(
            f"{cache.directory}: its vocabulary is neither that of --vocabulary nor the one before "
            "languages were added to it; cache its text again with --vocabulary"
        )
    tags_moved = vocabulary.first_tag != cache.vocabulary.first_tag
    for name in cache.tasks:
        if tags_moved and has_prompts(cache, name):
            raise UserError(
                f"{cache.directory}: '{name}' has prompts, whose language tags have other ids in "
                "--vocabulary; name the cache without prompts, and repeat --auxiliary"
            )
        _check_tags(cache, name, vocabulary)
        yield ReusedTask(cache, name)


def _check_tags(cache: TokenCache, name: str, vocabulary: Vocabulary) -> None:
    """Check that text of `pt` with the tag of `pt_BR` does not get that of a new language `pt`."""
    task = cache.tasks[name]
    for language in (task.source_lang, task.target_lang):
        before = find_code(language, cache.vocabulary.languages)
        now = None
        with contextlib.suppress(UserError):  # several varieties
            now = find_code(language, vocabulary.languages)
        if before != now:
            raise UserError(
                f"{cache.directory}: '{name}' has the tag of {before} for '{language}', which has "
                f"another in --vocabulary; cache its text again with the language {before}"
            )


def has_prompts(cache: TokenCache, name: str) -> bool:
    """Return whether the sources of a task include auxiliary translations (`join_auxiliary`).

    Only the first training pair is read: all pairs of a task have them, or none.
    """
    if _TRAIN not in cache.tasks[name].splits:
        return False
    source, _ = cache.pair(name, _TRAIN, 0)
    return bool(split_auxiliary(cache.vocabulary, source)[1].size)


def encode_pairs(
    vocabulary: Vocabulary, pairs: Iterable[tuple[str, str]], direction: Direction | None = None
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the piece ids of text pairs, encoding blocks of lines.

    Args:
        vocabulary: encodes the text.
        pairs: source and target text.
        direction: their languages; needed only by a vocabulary with copies or added languages.
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
    tasks: Iterable[TaskSource | ReusedTask],
    *,
    vocabulary: Vocabulary,
    overwrite: bool = False,
    shard_examples: int = DEFAULT_SHARD_EXAMPLES,
    report: Callable[[str], None] = lambda line: None,
    texts: Mapping[str, str] | None = None,
) -> TokenCache:
    """Write a token cache atomically: the folder appears under its name when it is complete.

    Args:
        directory: folder of the new cache.
        tasks: tasks to encode, or to reuse from another cache of the vocabulary.
        vocabulary: saved with the cache.
        overwrite: replace an existing cache instead of refusing.
        shard_examples: most examples per shard file.
        report: called with one line per finished task.
        texts: further files to write into the folder, by name.

    Returns:
        The opened cache.

    Raises:
        UserError: if the directory exists (with `overwrite`: and is not a cache) or cannot be
            written, a task's name cannot name a folder, two tasks share a name, a task has no
            example, or a language has no tag in the vocabulary.
    """
    directory = Path(directory)
    check_cache_directory(directory, overwrite)
    with new_folder(directory, overwrite=overwrite) as partial:
        write_tasks(
            partial, tasks, vocabulary=vocabulary, shard_examples=shard_examples, report=report
        )
        for name, text in (texts or {}).items():
            (partial / name).write_text(text, encoding="utf-8")
    return TokenCache.open(directory)


def write_tasks(
    folder: Path,
    tasks: Iterable[TaskSource | ReusedTask],
    *,
    vocabulary: Vocabulary,
    shard_examples: int = DEFAULT_SHARD_EXAMPLES,
    report: Callable[[str], None] = lambda line: None,
) -> None:
    """Write the files of a cache to a folder; names and languages are checked before any text.

    Args:
        folder: folder without the files of a cache.
        tasks: as in `write_cache`.
        vocabulary: as in `write_cache`.
        shard_examples: as in `write_cache`.
        report: as in `write_cache`.

    Raises:
        UserError: as `write_cache`, except for the directory.
    """
    tasks = list(tasks)
    _check_tasks(tasks, vocabulary)
    written = []
    for task in tasks:
        written.append(task.write(folder, shard_examples))
        report(_task_line(written[-1]))
    write_cache_facts(folder, written, vocabulary)


def _check_tasks(tasks: Sequence[TaskSource | ReusedTask], vocabulary: Vocabulary) -> None:
    """Check that there are tasks, their names, and that their languages have tags.

    Raises:
        UserError: if not.
    """
    if not tasks:
        raise UserError("no tasks to write; name a mixture or directions")
    names: set[str] = set()
    for task in tasks:
        check_name(task.name, "task", max_bytes=MAX_JOINED_BYTES)
        if task.name in names:
            raise UserError(
                f"task '{task.name}' occurs twice, in the corpus and a cache or in two caches; "
                "choose another name for your files with --name, or leave that cache out of "
                "--also"
            )
        names.add(task.name)
        for language in (task.source_lang, task.target_lang):
            vocabulary.tag_id(language)


def write_cache_facts(directory: Path, tasks: Iterable[CachedTask], vocabulary: Vocabulary) -> None:
    """Write the vocabulary of a cache, and `cache.json`, which describes its tasks."""
    vocabulary.save(directory / "vocabulary")
    facts = {
        "format": FORMAT,
        "vocabulary": vocabulary.fingerprint,
        "tasks": [dataclasses.asdict(task) for task in tasks],
    }
    (directory / "cache.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def check_cache_directory(directory: str | Path, overwrite: bool | None) -> None:
    """Check that a cache can be written to a directory.

    Args:
        directory: the folder.
        overwrite: whether a cache may be replaced; None where the command has no such flag.

    Raises:
        UserError: if the directory cannot be written or is in a bucket, has content that is not a
            cache, or has a cache and `overwrite` is not set.
    """
    refuse_bucket(directory, "write the cache to a folder, and copy it with 'gcloud storage cp -r'")
    check_output_directory(Path(directory), overwrite, mark="cache.json", kind="a cache")


def check_output_directory(
    directory: Path, overwrite: bool | None, *, mark: str, kind: str, flag: str = "--output"
) -> None:
    """Check that a folder of a kind can be written.

    Args:
        directory: the folder.
        overwrite: whether one of the same kind may be replaced; None where the command has no such
            flag.
        mark: name of a file that all folders of the kind have.
        kind: name of the kind in messages.
        flag: flag that selects another path.

    Raises:
        UserError: if the directory cannot be written, is in a bucket, a mount point or the current
            folder, has other content, or exists and `overwrite` is not set.
    """
    refuse_bucket(directory)
    check_replaceable(directory, flag)
    if not is_occupied(directory):
        return
    if not (directory / mark).is_file():
        raise UserError(f"{directory}: already exists and is not {kind}; choose another {flag}")
    if not overwrite:
        remedy = "" if overwrite is None else " or pass --overwrite"
        raise UserError(f"{directory}: already exists; choose another {flag}{remedy}")


def no_examples_error(task: str) -> UserError:
    """Return the error of a task whose splits are all empty."""
    return UserError(f"task '{task}' has no examples; check the corpus and its directions")


def write_split(
    directory: Path, task: str, split: str, pairs: Iterable[TokenPair], shard_examples: int
) -> Split:
    """Write the shards and lengths of a split of a task, in constant memory.

    Args:
        directory: folder of the cache.
        task: name of the task.
        split: name of the split.
        pairs: piece ids of source and target.
        shard_examples: most examples per shard file.

    Returns:
        Its size; without examples nothing is written.
    """
    shards: list[int] = []
    content = hashlib.sha256()
    writer = None
    lengths = _LengthsFile(lengths_path(directory, task, split))
    for source, target in pairs:
        if writer is None or shards[-1] == shard_examples:
            if writer is not None:
                writer.close()
            writer = _open_writer(shard_path(directory, task, split, len(shards)))
            shards.append(0)
        record = np.array([len(source), *source, *target], "<i4").tobytes()
        writer.write(record)
        content.update(len(record).to_bytes(4, "little") + record)
        lengths.add(len(source), len(target))
        shards[-1] += 1
    if writer is not None:
        writer.close()
    counts = lengths.close()
    if not shards:
        return Split(*counts, (), content.hexdigest())
    paths = (shard_path(directory, task, split, number) for number in range(len(shards)))
    return Split(
        *counts,
        shards=tuple(shards),
        content=content.hexdigest(),
        lengths_file=FileDigest.of(lengths.path),
        shard_files=tuple(map(FileDigest.of, paths)),
    )


class _LengthsFile:
    """A file of lengths in NumPy's format that grows; its first bytes are written last.

    Attributes:
        path: path of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._buffer = array.array("i")
        self._totals = np.zeros(2, np.int64)
        self._examples = 0

    def add(self, source: int, target: int) -> None:
        """Add the lengths of an example."""
        self._buffer.extend((source, target))
        if len(self._buffer) == _LENGTHS_BUFFER:
            self._flush()

    def close(self) -> tuple[int, int, int]:
        """Write the rest; return the numbers of examples, source pieces and target pieces."""
        self._flush()
        if self._examples:
            with open(self.path, "r+b") as file:
                file.write(self._header())
        return self._examples, int(self._totals[0]), int(self._totals[1])

    def _flush(self) -> None:
        table = np.array(self._buffer, np.int32).reshape(-1, 2)
        if not len(table):
            return
        with open(self.path, "ab" if self._examples else "wb") as file:
            if not self._examples:
                file.write(self._header())  # of this size, whatever the number of examples
            file.write(table.tobytes())
        self._examples += len(table)
        self._totals += table.sum(axis=0, dtype=np.int64)
        self._buffer = array.array("i")

    def _header(self) -> bytes:
        buffer = io.BytesIO()
        facts = {"descr": "<i4", "fortran_order": False, "shape": (self._examples, 2)}
        np.lib.format.write_array_header_1_0(buffer, facts)
        return buffer.getvalue()


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


def _task_line(task: CachedTask) -> str:
    """Return the report line of a finished task."""
    splits = ", ".join(f"{split.examples} {name}" for name, split in task.splits.items())
    share = f" (share {task.share.of_pairs:g}, seed {task.share.seed})" if task.share else ""
    return f"{task.name}: {splits}{share}"
