"""Passes of a preparation: pure functions that read and write files of a folder.

Each pass is a list of units that depend on the pass before alone, so they may run in any order and
on any machine that shares the folder. A unit that is done is not repeated. The text of a pass is
removed when the filter of the next stage has read it.

read     a split of a pair of languages: clean text in chunks
filter   a chunk: transforms and rules of a stage, then keys for deduplication or pieces
repeats  a partition of the keys of a pair of languages: indices of pairs that repeat earlier ones
write    a split of a task or of a pair of languages: files of the output
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from mnmt_jax.data.corpus import Corpus, DropReport, FileCorpus
from mnmt_jax.data.mixtures import PlannedTask
from mnmt_jax.data.preparation.chunk_files import (
    read_batch,
    read_facts,
    repeated,
    rows_of_chunk,
    save,
    write_batch,
    write_facts,
    write_keys,
)
from mnmt_jax.data.preparation.runners import Unit
from mnmt_jax.data.preparation.score_files import ScoredPair, ScoreFiles, scored_pairs
from mnmt_jax.data.preparation.stages import Counts, Stage
from mnmt_jax.data.preparation.steps import PairBatch
from mnmt_jax.vocabulary.language_codes import Direction

REPORT_FILE = "preparation.json"
"""Name of the report of a preparation, in the folder of its output."""


class Output(Protocol):
    """What a preparation makes of the pairs that a recipe keeps; picklable.

    Attributes:
        flag: flag of the command that names the output's folder.
    """

    flag: ClassVar[str]

    @property
    def vocabulary(self) -> Path | None:
        """Folder of the vocabulary; None if nothing is encoded."""

    def check(self, folder: Path, overwrite: bool) -> None:
        """Check that the output can be written to a folder.

        Raises:
            UserError: if not.
        """

    def identity(self) -> dict[str, Any]:
        """Return what must be equal to continue a preparation."""

    def write_chunk(self, stem: Path, batch: PairBatch, stage: Stage, counts: Counts) -> int:
        """Write the pairs of a chunk that the piece rules of the last stage keep.

        Args:
            stem: path of the chunk without suffix.
            batch: pairs after the last stage.
            stage: the last stage.
            counts: counts what is dropped.

        Returns:
            The number of pairs written.
        """

    def units(self, tasks: Sequence[PlannedTask], groups: Sequence[Group]) -> list[Unit]:
        """Return the arguments of `write` after the job, a group first."""

    def write(self, job: Job, group: Group, *unit: Any) -> None:
        """Write the files of a unit of `units` from the chunks of its group."""

    def assemble(self, job: Job, tasks: Sequence[PlannedTask], folder: Path) -> None:
        """Make the output of the finished files in a folder."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What all units of a preparation share; picklable.

    Attributes:
        work: folder of the units of this preparation alone, which all processes see.
        corpus: the text.
        output: what is made of the pairs.
        stages: stages of training text; text of other splits has their transforms alone.
        chunk_pairs: pairs of a chunk before any is dropped.
        scores: files with scores of training pairs; the corpus is in files then.
    """

    work: Path
    corpus: Corpus
    output: Output
    stages: tuple[Stage, ...]
    chunk_pairs: int
    scores: tuple[ScoreFiles, ...] = ()

    def stages_of(self, split: str) -> tuple[Stage, ...]:
        """Return the stages of a split's text."""
        if split == "train":
            return self.stages
        return (Stage(tuple(step for stage in self.stages for step in stage.transforms)),)


@dataclasses.dataclass(frozen=True, order=True)
class Group:
    """A split of a pair of languages, whose text both directions share.

    Attributes:
        split: `train`, `validation` or `test`.
        languages: the sorted codes.
    """

    split: str
    languages: Direction

    @property
    def name(self) -> str:
        """Name of its folders."""
        return f"{self.split}.{'-'.join(self.languages)}"

    @classmethod
    def of(cls, split: str, direction: Direction) -> Group:
        """Return the group that has a direction's text."""
        first, second = sorted(direction)
        return cls(split, (first, second))


def raw_folder(job: Job, group: Group) -> Path:
    """Return the folder of a group's clean text."""
    return job.work / "text" / group.name


def stage_folder(job: Job, group: Group, stage: int) -> Path:
    """Return the folder of a group's chunks after a stage."""
    return job.work / f"stage_{stage}" / group.name


def write_clean_text(job: Job, group: Group, direction: Direction) -> None:
    """Write the clean text of a group in chunks, and the sizes of the chunks.

    Args:
        job: the preparation.
        group: whose text.
        direction: direction of the group to read; matters if only one is a task's, since a
            published sample may be of that one alone.

    Raises:
        UserError: as `Corpus.pairs`.
    """
    folder = raw_folder(job, group)
    done = folder / "chunks.json"
    if done.is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    sizes, report = [], DropReport()
    scored = _scored_pairs(job, group, direction, report)
    for number, chunk in enumerate(_chunks(scored, job.chunk_pairs)):
        pairs, scores = zip(*chunk, strict=True)
        sources, targets = zip(*pairs, strict=True)
        batch = PairBatch(sources, targets, group.languages, _columns(job, group, scores))
        write_batch(_chunk_stem(folder, number), batch)
        sizes.append(len(batch))
    write_facts(done, {"pairs": sizes, "unclean": dict(report.dropped)})


def _scored_pairs(
    job: Job, group: Group, direction: Direction, report: DropReport
) -> Iterator[ScoredPair]:
    """Yield the pairs of a direction in the order of the sorted codes, with their scores."""
    is_sorted = direction == group.languages
    pairs: Iterator[ScoredPair]
    corpus = job.corpus.part(group.split)
    if isinstance(corpus, FileCorpus):
        files = _score_files(job, group)
        pairs = scored_pairs(corpus, group.split, direction, files, report)
    else:
        pairs = ((pair, ()) for pair in corpus.pairs(group.split, direction))
    for (source, target), scores in pairs:
        yield (source, target) if is_sorted else (target, source), scores


def _score_files(job: Job, group: Group) -> tuple[ScoreFiles, ...]:
    return job.scores if group.split == "train" else ()


def _columns(job: Job, group: Group, scores: Sequence[tuple[float, ...]]) -> dict[str, np.ndarray]:
    """Return the scores of pairs by name, float32 `[pairs]` each."""
    names = [item.name for item in _score_files(job, group)]
    columns = np.array(scores, np.float32).reshape(len(scores), -1).T
    return dict(zip(names, columns, strict=True))


def _chunks(pairs: Iterator[ScoredPair], size: int) -> Iterator[list[ScoredPair]]:
    while chunk := list(itertools.islice(pairs, size)):
        yield chunk


def chunk_sizes(job: Job, group: Group) -> list[int]:
    """Return the numbers of pairs of a group's chunks as they were read."""
    return read_facts(raw_folder(job, group) / "chunks.json")["pairs"]


def unclean_lines(job: Job, group: Group) -> dict[str, int]:
    """Return the numbers of lines of a group that were not read as a pair, by reason."""
    return read_facts(raw_folder(job, group) / "chunks.json")["unclean"]


def filter_chunk(job: Job, group: Group, stage: int, number: int, partitions: int) -> None:
    """Apply a stage to a chunk; write its text and keys, or after the last stage the output.

    Args:
        job: the preparation.
        group: whose chunk.
        stage: number of the stage.
        number: number of the chunk.
        partitions: number of partitions of the keys.
    """
    stem = _chunk_stem(stage_folder(job, group, stage), number)
    done = stem.with_suffix(".json")
    if done.is_file():
        return
    stem.parent.mkdir(parents=True, exist_ok=True)
    stages, counts = job.stages_of(group.split), Counts()
    batch = _input_of_stage(job, group, stage, number)
    if stage:
        kept = np.ones(len(batch.sources), bool)
        kept[rows_of_chunk(_repeat_files(job, group, stage - 1), number)] = False
        batch = counts.keep(stages[stage - 1].repeats_label, batch, kept)
    batch = stages[stage].apply(batch, counts)
    facts: dict[str, Any] = {"pairs": len(batch.sources)}
    key_rule = stages[stage].repeats
    if key_rule is None:
        facts["pairs"] = job.output.write_chunk(stem, batch, stages[stage], counts)
    else:
        write_batch(stem, batch)
        keys = key_rule.keys(batch)
        facts["keys"] = write_keys(stem.with_suffix(".keys.npy"), number, keys, partitions)
    write_facts(done, {**facts, **counts.as_facts()})


def remove_input(job: Job, group: Group, stage: int) -> None:
    """Remove the text, scores and keys of the pass before a stage that all chunks have finished.

    The facts of its chunks stay, so the pass still counts as done.
    """
    for pattern in ("[0-9]*.text", "[0-9]*.npy"):
        for path in _input_folder(job, group, stage).glob(pattern):
            path.unlink()


def _input_folder(job: Job, group: Group, stage: int) -> Path:
    return stage_folder(job, group, stage - 1) if stage else raw_folder(job, group)


def _input_of_stage(job: Job, group: Group, stage: int, number: int) -> PairBatch:
    stem = _chunk_stem(_input_folder(job, group, stage), number)
    if stage:
        pairs = read_facts(stem.with_suffix(".json"))["pairs"]
    else:
        pairs = chunk_sizes(job, group)[number]
    names = [item.name for item in _score_files(job, group)]
    return read_batch(stem, pairs, group.languages, names)


def find_repeats(job: Job, group: Group, stage: int, partition: int) -> None:
    """Write the indices of a group's pairs that repeat earlier ones by a key of one partition."""
    path = stage_folder(job, group, stage) / f"repeats-{partition:05d}.npy"
    if path.is_file():
        return
    tables = []
    for number in range(len(chunk_sizes(job, group))):
        stem = _chunk_stem(stage_folder(job, group, stage), number)
        first, last = read_facts(stem.with_suffix(".json"))["keys"][partition : partition + 2]
        tables.append(np.array(np.load(stem.with_suffix(".keys.npy"), mmap_mode="r")[first:last]))
    save(path, repeated(np.concatenate(tables)))


def _repeat_files(job: Job, group: Group, stage: int) -> list[Path]:
    return sorted(stage_folder(job, group, stage).glob("repeats-*.npy"))


def write_output(job: Job, *unit: Any) -> None:
    """Write the files of a unit of the output."""
    job.output.write(job, *unit)


def last_chunks(job: Job, group: Group) -> list[Path]:
    """Return the paths, without suffixes, of a group's chunks after the last stage."""
    folder = stage_folder(job, group, len(job.stages_of(group.split)) - 1)
    return [_chunk_stem(folder, number) for number in range(len(chunk_sizes(job, group)))]


def chunk_facts(job: Job, group: Group, stage: int) -> Sequence[dict[str, Any]]:
    """Return the facts of a group's chunks after a stage, in order."""
    folder = stage_folder(job, group, stage)
    return [
        read_facts(_chunk_stem(folder, number).with_suffix(".json"))
        for number in range(len(chunk_sizes(job, group)))
    ]


def _chunk_stem(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}"
