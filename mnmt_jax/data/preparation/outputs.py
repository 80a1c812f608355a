"""Outputs of a preparation: a token cache, or text files of the pairs that a recipe keeps."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mnmt_jax.data.cache import CachedTask, Split
from mnmt_jax.data.cache_writer import (
    DEFAULT_SHARD_EXAMPLES,
    check_cache_directory,
    check_output_directory,
    link_or_copy,
    write_cache_facts,
    write_split,
)
from mnmt_jax.data.mixtures import PlannedTask
from mnmt_jax.data.preparation.chunk_files import (
    read_batch,
    read_encoded,
    read_facts,
    write_batch,
    write_encoded,
    write_facts,
)
from mnmt_jax.data.preparation.passes import REPORT_FILE, Group, Job, last_chunks
from mnmt_jax.data.preparation.runners import Unit
from mnmt_jax.data.preparation.stages import Counts, Stage, select_pairs
from mnmt_jax.data.preparation.steps import PairBatch
from mnmt_jax.files.atomic_write import new_folder
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_SPLIT_FACTS = "split.json"


@dataclasses.dataclass(frozen=True)
class CacheOutput:
    """A token cache.

    Attributes:
        vocabulary: folder of the vocabulary.
        shard_examples: most examples of a shard file.
        flag: flag of the command that names the folder.
    """

    flag: ClassVar[str] = "--output"
    vocabulary: Path
    shard_examples: int = DEFAULT_SHARD_EXAMPLES

    def check(self, folder: Path, overwrite: bool) -> None:
        """Check that the output can be written to a folder.

        Raises:
            UserError: if not; as `check_cache_directory`.
        """
        check_cache_directory(folder, overwrite)

    def identity(self) -> dict[str, Any]:
        """Return what must be equal to continue a preparation."""
        return {
            "vocabulary": Vocabulary.load(self.vocabulary).fingerprint,
            "shard_examples": self.shard_examples,
        }

    def write_chunk(self, stem: Path, batch: PairBatch, stage: Stage, counts: Counts) -> int:
        """Write the pieces of a chunk; see `Output`."""
        sides = _encode(self.vocabulary, batch)
        rows = np.flatnonzero(_kept_pieces(sides, batch, stage, counts)).tolist()
        write_encoded(stem, *([side[row] for row in rows] for side in sides))
        return len(rows)

    def units(self, tasks: Sequence[PlannedTask], groups: Sequence[Group]) -> list[Unit]:
        """Return the arguments of `write`: a group, a task's name and its direction."""
        return [
            (Group.of(split, task.direction), task.name, task.direction)
            for task in tasks
            for split in task.splits
        ]

    def write(self, job: Job, group: Group, name: str, direction: Direction) -> None:
        """Write the shards and lengths of a split of a task, and what cache.json says of it."""
        folder = _split_folder(job, name, group.split)
        if folder.is_dir():
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        is_reversed = direction != group.languages
        chunks = map(read_encoded, last_chunks(job, group))
        pairs = (pair for chunk in chunks for pair in chunk.pairs(reverse=is_reversed))
        with new_folder(folder, overwrite=True, flag="") as partial:
            written = write_split(partial, name, group.split, pairs, self.shard_examples)
            write_facts(partial / _SPLIT_FACTS, dataclasses.asdict(written))

    def assemble(self, job: Job, tasks: Sequence[PlannedTask], folder: Path) -> None:
        """Make the cache of the finished splits in a folder."""
        cached = []
        for task in tasks:
            splits = {}
            for split in task.splits:
                finished = _split_folder(job, task.name, split)
                splits[split] = Split.from_json(read_facts(finished / _SPLIT_FACTS))
                _link_files(finished / "tasks", folder / "tasks")
            present = {name: split for name, split in splits.items() if split.examples}
            cached.append(CachedTask(task.name, *task.direction, present))
        write_cache_facts(folder, cached, Vocabulary.load(self.vocabulary))


@dataclasses.dataclass(frozen=True)
class TextOutput:
    """Text files `SPLIT.FIRST-SECOND.LANGUAGE`, a sentence a line, for each pair of languages.

    Attributes:
        vocabulary: folder of the vocabulary of rules on pieces; None if there are none.
        flag: flag of the command that names the folder.
    """

    flag: ClassVar[str] = "--text_output"
    vocabulary: Path | None = None

    def check(self, folder: Path, overwrite: bool) -> None:
        """Check that the output can be written to a folder.

        Raises:
            UserError: if not; as `check_output_directory`.
        """
        check_output_directory(
            folder, overwrite, mark=REPORT_FILE, kind="prepared text", flag=self.flag
        )

    def identity(self) -> dict[str, Any]:
        """Return what must be equal to continue a preparation."""
        if self.vocabulary is None:
            return {"text": True}
        return {"text": True, "vocabulary": Vocabulary.load(self.vocabulary).fingerprint}

    def write_chunk(self, stem: Path, batch: PairBatch, stage: Stage, counts: Counts) -> int:
        """Write the text of a chunk; see `Output`."""
        if self.vocabulary is not None and stage.piece_rules:
            sides = _encode(self.vocabulary, batch)
            batch = select_pairs(batch, _kept_pieces(sides, batch, stage, counts))
        write_batch(stem, dataclasses.replace(batch, scores={}))
        return len(batch)

    def units(self, tasks: Sequence[PlannedTask], groups: Sequence[Group]) -> list[Unit]:
        """Return the arguments of `write`: a group."""
        return [(group,) for group in groups]

    def write(self, job: Job, group: Group) -> None:
        """Write the text files of a split of two languages."""
        folder = job.work / "splits" / group.name
        if folder.is_dir():
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(folder, overwrite=True, flag="") as partial:
            paths = [partial / f"{group.name}.{language}" for language in group.languages]
            with open(paths[0], "wb") as first, open(paths[1], "wb") as second:
                for stem in last_chunks(job, group):
                    pairs = read_facts(stem.with_suffix(".json"))["pairs"]
                    batch = read_batch(stem, pairs, group.languages, ())
                    for file, lines in ((first, batch.sources), (second, batch.targets)):
                        file.write("".join(f"{line}\n" for line in lines).encode())

    def assemble(self, job: Job, tasks: Sequence[PlannedTask], folder: Path) -> None:
        """Collect the finished files in a folder."""
        for finished in sorted((job.work / "splits").iterdir()):
            _link_files(finished, folder)


def _split_folder(job: Job, name: str, split: str) -> Path:
    """Return the folder of the finished files of a split of a task."""
    return job.work / "splits" / f"{name}.{split}"


def _link_files(source: Path, target: Path) -> None:
    """Link the files below a folder into another."""
    for path in source.rglob("*"):
        if path.is_file():
            link_or_copy(path, target / path.relative_to(source))


def _encode(vocabulary: Path, batch: PairBatch) -> list[list[list[int]]]:
    """Return the pieces of the first and of the second sentences."""
    encoder = _load_vocabulary(vocabulary)
    return [
        encoder.encode_lines(lines, code)
        for lines, code in zip((batch.sources, batch.targets), batch.direction, strict=True)
    ]


def _kept_pieces(
    sides: Sequence[Sequence[Sequence[int]]], batch: PairBatch, stage: Stage, counts: Counts
) -> np.ndarray:
    """Return which pairs the piece rules keep, bool `[pairs]`."""
    lengths = np.array([[len(ids) for ids in side] for side in sides], np.int32)
    return stage.kept_pieces(batch, lengths.reshape(2, -1).T, counts)


@functools.lru_cache(maxsize=1)
def _load_vocabulary(folder: Path) -> Vocabulary:
    return Vocabulary.load(folder)
