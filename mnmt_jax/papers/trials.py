"""Trials of a table: one seed of an experiment, for a row and a corpus of its columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from mnmt_jax.papers.experiments import Experiment, experiments, with_released_files
from mnmt_jax.papers.outside_rows import outside_experiments
from mnmt_jax.papers.tables import Paper, Row, Table


@dataclasses.dataclass(frozen=True)
class Trial:
    """One seed of an experiment, for a row and a corpus of its columns.

    Attributes:
        row: name of the row.
        prefix: corpus in the keys of the columns; empty in a table of one corpus.
        experiment: what is trained and evaluated.
        seed: seed of the training, `Train.seed`.
    """

    row: str
    prefix: str
    experiment: Experiment
    seed: int

    @property
    def title(self) -> str:
        """Row, corpus in a table of several, and seed."""
        return ", ".join(filter(None, (self.row, self.prefix, f"seed {self.seed}")))

    @property
    def evaluation(self) -> str:
        """Folder of its evaluation, below the output folder."""
        return f"evaluations/{self.experiment.evaluation_name}/seed{self.seed}"


def trials(
    paper: Paper,
    table: Table,
    rows: Sequence[Row],
    seeds: int | None = None,
    data: Path | None = None,
    hypotheses: Mapping[str, Path] = MappingProxyType({}),
) -> tuple[Trial, ...]:
    """Return the trials of some rows of a table.

    Args:
        paper: paper of the table.
        table: the table.
        rows: rows of the table.
        seeds: number of seeds; None for the paper's.
        data: folder of the corpora, where released vocabularies are looked for; None for nowhere.
        hypotheses: name of a row -> folder with the translations of an outside system; such a row,
            one that is timed and one of an imported model have one seed.
    """
    chosen: list[Trial] = []
    for row in rows:
        folder = hypotheses.get(row.name)
        by_prefix = (
            experiments(paper, table, row)
            if folder is None
            else outside_experiments(paper, table, row, folder)
        )
        for prefix, experiment in by_prefix.items():
            stated = stated_seeds(table, experiment)
            used = with_released_files(experiment, data)
            chosen += [
                Trial(row.name, prefix, used, seed)
                for seed in _choose_seeds(stated, seeds if _varies(experiment) else 1)
            ]
    return tuple(chosen)


def stated_seeds(table: Table, experiment: Experiment) -> tuple[int, ...]:
    """Return the seeds of an experiment in a table, one if its result does not depend on it."""
    seeds = tuple(table.seeds or experiment.data.seeds)
    return seeds if _varies(experiment) else seeds[:1]


def _varies(experiment: Experiment) -> bool:
    """Return whether an experiment has a result for each seed: whether it trains."""
    return not (experiment.hypotheses or experiment.benchmark or experiment.pretrained)


def _choose_seeds(stated: Sequence[int], count: int | None) -> tuple[int, ...]:
    """Return a number of seeds: the stated ones first, then those after the largest of them."""
    count = count or len(stated)
    further = range(max(stated) + 1, max(stated) + 1 + count)
    return (*stated, *further)[:count]
