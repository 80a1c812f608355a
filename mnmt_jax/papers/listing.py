"""Text about published tables for the terminal: lists, numbers and plans."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from mnmt_jax.data.mixtures import get_mixture
from mnmt_jax.data.published_corpora import PUBLISHED, PublishedCorpus
from mnmt_jax.evaluation.markdown_tables import markdown_table
from mnmt_jax.papers import estimates
from mnmt_jax.papers.experiments import experiments
from mnmt_jax.papers.tables import Paper, Table
from mnmt_jax.papers.workflow import Step, Trial

_EMPTY = "–"


def list_papers(papers: Iterable[Paper]) -> str:
    """Return a table of the tables and figures of some papers."""
    header = ["table", "number", "shows", "rows", "run here", "numbers"]
    sections = []
    for paper in papers:
        rows = [
            [
                f"{paper.name}/{table.name}",
                table.number,
                table.title,
                str(len(table.rows)),
                str(runnable_rows(paper, table)),
                str(table.cells),
            ]
            for table in paper.tables.values()
        ]
        sections.append(f"{paper.title}\n\n{markdown_table(header, rows)}")
    return "\n".join(sections)


def runnable_rows(paper: Paper, table: Table) -> int:
    """Return the number of rows that `mnmt reproduce` can run."""
    return sum(bool(experiments(paper, table, row)) for row in table.rows)


def show_table(table: Table) -> str:
    """Return the published numbers of a table, with the notes on them."""
    header = ["system", *(column.title for column in table.columns)]
    rows = [
        [row.name, *(_number(row.published.get(column.key)) for column in table.columns)]
        for row in table.rows
    ]
    lines = [f"{table.number}: {table.title} (section {table.section})", ""]
    lines += [markdown_table(header, rows)] if rows else []
    lines += [f"{table.values}\n"] if table.values else []
    lines += [
        f"not run here: {row.name}: {row.unavailable}" for row in table.rows if row.unavailable
    ]
    return "\n".join([*lines, *(f"note: {note}" for note in table.notes)])


def describe_plan(table: Table, trials: Sequence[Trial], steps: Sequence[Step]) -> str:
    """Return what a reproduction does and costs at full scale.

    Args:
        table: the table.
        trials: the trials of its rows.
        steps: all steps, in order.
    """
    trained = {
        trial.experiment.run_name: trial.experiment
        for trial in trials
        if not trial.experiment.pretrained
    }
    runs = {(t.experiment.run_name, t.seed) for t in trials if not t.experiment.pretrained}
    costs = {name: estimates.estimate(item) for name, item in trained.items()}
    header = ["model", "corpus", "directions", "parameters", "updates", "tokens/update", "FLOPs"]
    rows = [
        [
            item.model,
            item.data.corpus,
            f"{costs[name].directions}",
            f"{costs[name].parameters:,}",
            f"{costs[name].updates:,}",
            f"{costs[name].tokens:,}",
            f"{costs[name].flops:.3g}",
        ]
        for name, item in trained.items()
    ]
    flops, disk = estimates.total(costs[name] for name, _ in runs)
    hours = ", ".join(f"{name} {h:.3g}" for name, h in estimates.device_hours(flops).items())
    length = estimates.SENTENCE
    mixtures = dict.fromkeys(trial.experiment.data.mixture for trial in trials)
    corpora = [PUBLISHED[get_mixture(name).corpus] for name in mixtures]
    data = dict.fromkeys(f"data: {_place(row)}: {row.required_files}" for row in corpora)
    return "\n".join(
        [
            f"{table.paper}/{table.name}: {table.number}, {table.title}",
            f"{len(runs)} trainings, {len(trials)} evaluations, {len(steps)} steps",
            "",
            markdown_table(header, rows),
            f"FLOPs of all trainings, rows full of sentences of {length} pieces: {flops:.3g}",
            f"hours at {estimates.UTILIZATION:.0%} of the peak (assumed): {hours}",
            f"disk for checkpoints: {disk / 1e9:.3g} GB",
            "",
            *data,
            "",
            *(shlex.join(step.command) for step in steps),
        ]
    )


def _place(row: PublishedCorpus) -> str:
    return f"DATA/{row.folder or row.name}"


def _number(value: object) -> str:
    return _EMPTY if value is None else f"{value:,}"
