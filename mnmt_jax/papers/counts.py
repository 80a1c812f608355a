"""Numbers of sentences in tables of data, counted by `mnmt count`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mnmt_jax.data.mixtures import get_mixture
from mnmt_jax.data.published_corpora import PUBLISHED
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.seed_statistics import summarize_scores
from mnmt_jax.files.json_objects import read_object
from mnmt_jax.papers.cells import Cell
from mnmt_jax.papers.experiments import corpus_settings
from mnmt_jax.papers.output_folders import count_file
from mnmt_jax.papers.reproduction import Reproduction
from mnmt_jax.papers.tables import Column, Paper, Row, Table

_SPLITS = {"valid": "validation", "test": "test"}  # group of a column -> split
Counts = Mapping[str, Mapping[str, int]]


def counted_splits(paper: Paper, table: Table) -> dict[str, tuple[str, ...]]:
    """Return the mixtures that a table of data counts, with the splits that its columns name.

    Args:
        paper: paper of the table.
        table: any table; one that is not of data, or names no corpus, counts nothing.
    """
    if table.kind != "data":
        return {}
    groups = [column.group for column in table.columns]
    splits = ("train", *(split for group, split in _SPLITS.items() if group in groups))
    corpora = [table.corpus, *(row.facts.get("corpus", "") for row in table.rows)]
    return {corpus_settings(paper, corpus).mixture: splits for corpus in filter(None, corpora)}


def with_counts(paper: Paper, reproduction: Reproduction, output: Path) -> Reproduction:
    """Return a reproduced table of data with our counts.

    Raises:
        UserError: if a count is missing or damaged.
    """
    cells, table = dict(reproduction.cells), reproduction.table
    counts = {
        mixture: _read(output / count_file(mixture)) for mixture in counted_splits(paper, table)
    }
    for row in table.rows:
        mixture = "" if row.unavailable else _mixture(paper, table, row)
        for column in table.columns if mixture else ():
            ours = count_cell(counts[mixture], mixture, row.facts.get("language", ""), column)
            published = row.published.get(column.key)
            if ours is not None and published is not None:
                cells[row.name, column.key] = Cell(published, summarize_scores([ours]))
    files = {f"sentences by direction, {name}": count_file(name, "html") for name in counts}
    pages = {**reproduction.analysis_pages, **files}
    return dataclasses.replace(reproduction, cells=cells, analysis_pages=pages)


def count_cell(counts: Counts, mixture: str, language: str, column: Column) -> float | None:
    """Return our number for a cell; None if the counts have none.

    Args:
        counts: sentences by split and direction.
        mixture: name of the mixture.
        language: language of the row, counted in its pair with English or alone; empty for a row
            of the whole mixture.
        column: `GROUP.sentences`, with the group `train` or `test`, over all directions of the
            split, `valid`, over the training directions, or `all`, their mean; `sentences_min`,
            `sentences_max`; `zero_shot.directions`.
    """
    train = counts["train"]
    if language:
        names = (f"{language}-{language}", f"en-{language}", f"{language}-en")
        return next((float(train[name]) for name in names if name in train), None)
    if column.metric == "directions":
        return float(_zero_shot_count(mixture))
    if column.group == "valid":
        return float(sum(counts["validation"].get(name, 0) for name in train))
    if column.group in ("train", "test"):
        return float(sum(counts[column.group].values()))
    reduced = {"sentences_min": min, "sentences_max": max}.get(column.metric, _mean)
    return float(reduced(train.values()))


def _mean(values: Any) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def _zero_shot_count(mixture: str) -> int:
    return len(PUBLISHED[get_mixture(mixture).corpus].zero_shot)


def _mixture(paper: Paper, table: Table, row: Row) -> str:
    corpus = row.facts.get("corpus") or table.corpus
    return corpus_settings(paper, corpus).mixture if corpus else ""


def _read(path: Path) -> Counts:
    if not path.is_file():
        raise UserError(f"{path}: no such file; remove its step from done/ and run the table again")
    counts: Counts = read_object(path, "sentences", remedy="remove it and count again")["sentences"]
    return counts
