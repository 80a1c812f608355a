"""Plan of a table: its trials, analyses and counts, and the steps that they take."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from mnmt_jax.errors import warn
from mnmt_jax.papers.analyses import Analysis, analyses
from mnmt_jax.papers.compared_rows import compared_key
from mnmt_jax.papers.counts import counted_splits
from mnmt_jax.papers.experiments import experiments
from mnmt_jax.papers.scales import Scale
from mnmt_jax.papers.selection import parse_hypotheses, select_rows
from mnmt_jax.papers.tables import Paper, Row, Table, load_papers
from mnmt_jax.papers.trials import Trial, trials
from mnmt_jax.papers.workflow import Workflow


@dataclasses.dataclass(frozen=True)
class TablePlan:
    """What a command runs of a table.

    Attributes:
        paper: the paper.
        table: the table.
        trials: seeds of the experiments of its rows.
        analyses: analyses of its models.
        counts: mixture whose sentences are counted -> splits.
        workflow: the steps of all of these.
        targets: names of the steps that must be done.
    """

    paper: Paper
    table: Table
    trials: tuple[Trial, ...]
    analyses: tuple[Analysis, ...]
    counts: Mapping[str, tuple[str, ...]]
    workflow: Workflow
    targets: tuple[str, ...]


def plan_table(
    table: Table,
    scale: Scale,
    *,
    rows: str | None,
    seeds: int | None,
    data: Path,
    hypotheses: Sequence[str],
    metrics: Mapping[str, tuple[str, str]],
) -> TablePlan:
    """Plan a table, or rows of it.

    Args:
        table: the table.
        scale: size of the reproduction.
        rows: numbers of rows; None for all that can be run, the analyses and the counts.
        seeds: number of seeds; None for the paper's; if the corpora are miniatures, for one, or
            two where a column is the variance over seeds.
        data: folder of the corpora; not looked into if they are miniatures.
        hypotheses: `ROW=FOLDER` of outside systems.
        metrics: flags of `mnmt evaluate` for scores that need a model, by metric.

    Raises:
        UserError: if a row is unknown or cannot be run.
    """
    paper, folders = load_papers()[table.paper], parse_hypotheses(table, hypotheses)
    folder = None if scale.miniature else data
    chosen = select_rows(paper, table, rows, folders)
    if rows:  # without, every row that can be run is there
        _warn_of_missing_references(paper, table, chosen)
    selected = trials(
        paper,
        table,
        chosen,
        seeds=seeds or (_tiny_seeds(table) if scale.miniature else None),
        data=folder,
        hypotheses=folders,
    )
    analysed = () if rows else analyses(paper, table, folder)
    counts = {} if rows else counted_splits(paper, table)
    workflow = Workflow(paper, scale, folder, metrics)
    targets = [workflow.add(trial) for trial in selected]
    for analysis in analysed:
        targets += workflow.add_analysis(analysis)
    targets += [workflow.add_count(mixture, splits) for mixture, splits in counts.items()]
    return TablePlan(paper, table, selected, analysed, counts, workflow, tuple(targets))


def _warn_of_missing_references(paper: Paper, table: Table, rows: Sequence[Row]) -> None:
    """Warn of rows whose columns of changes stay empty without another row."""
    planned = {
        (row.name, corpus): experiment
        for row in table.rows
        for corpus, experiment in experiments(paper, table, row).items()
    }
    names, chosen = [row.name for row in table.rows], {row.name for row in rows}
    for row in rows:
        columns = [column for column in table.columns if column.key in row.published]
        keys = filter(None, (compared_key(column, row, planned) for column in columns))
        for name in dict.fromkeys(name for name, _ in keys if name not in chosen):
            number = names.index(name) + 1
            warn(
                f"{table.full_name}: row '{row.name}' is compared with row {number} "
                f"('{name}'); add {number} to --rows, or its changes stay empty"
            )


def _tiny_seeds(table: Table) -> int:
    return 2 if any(column.metric == "variance" for column in table.columns) else 1
