"""Experiments of rows whose translations are files of an outside system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.outside_hypotheses import HypothesisFiles
from mnmt_jax.papers.cells import FIELDS
from mnmt_jax.papers.experiments import Experiment, corpus_settings, row_columns, row_corpora, slug
from mnmt_jax.papers.groups import TRAINING_GROUPS
from mnmt_jax.papers.tables import Column, Paper, Row, Table

# Translations in files are of one search with one training.
_NEEDS_RUNS = ("bleu_change", "variance")


def outside_experiments(
    paper: Paper, table: Table, row: Row, folder: Path
) -> Mapping[str, Experiment]:
    """Return the experiments of a row whose translations are files, by corpus of its columns.

    A checksum of the files is part of the evaluation's name: changed translations are scored anew.
    The directions that count as supervised are those of the corpus.

    Args:
        paper: paper of the table.
        table: the table.
        row: its row.
        folder: folder of the files, as for `mnmt evaluate --hypotheses`, or of such folders by
            corpus.

    Raises:
        UserError: if the folder does not exist, the row has no corpus, or no column of it can be
            computed from translations.
    """
    if not folder.is_dir():
        raise UserError(f"--hypotheses: {folder}: no such folder")
    columns = [column for column in row_columns(table, row) if _is_in_files(column)]
    if not columns:
        raise UserError(
            f"--hypotheses: no column of '{row.name}' can be computed from translations; leave "
            "the flag out"
        )
    by_prefix: dict[str, Experiment] = {}
    for prefix, corpus in row_corpora(table, row).items():
        scored = [column for column in columns if column.corpus == prefix]
        if not scored:
            continue
        files = HypothesisFiles(folder / corpus if (folder / corpus).is_dir() else folder)
        data = corpus_settings(paper, corpus)
        by_prefix[prefix] = Experiment(
            model=slug(row.name),
            data=data,
            evaluate=("--trained_on", data.mixture)
            if _needs_training(scored, data.evaluate)
            else (),
            pretrained=True,
            evaluated=f"{corpus}+{files.fingerprint()}",
            hypotheses=str(files.folder.resolve()),
        )
    return by_prefix


def _is_in_files(column: Column) -> bool:
    return column.metric in FIELDS and column.metric not in _NEEDS_RUNS


def _needs_training(columns: Sequence[Column], flags: Sequence[str]) -> bool:
    """Return whether columns, or flags of the evaluation, speak of training directions."""
    groups = {column.group for column in columns} | set(flags)
    return not groups.isdisjoint(TRAINING_GROUPS)
