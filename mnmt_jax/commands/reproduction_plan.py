"""Plan of a reproduction: trainings, their cost, files and commands."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mnmt_jax.cost.training_estimate import (
    SENTENCE,
    UTILIZATION,
    TrainingEstimate,
    device_hours,
    estimate_training,
    sum_estimates,
)
from mnmt_jax.data.mixtures import MIXTURES, get_mixture
from mnmt_jax.data.published_corpora import DATA_VARIABLE, PUBLISHED, PublishedCorpus
from mnmt_jax.pages.markdown_tables import markdown_table
from mnmt_jax.papers.analyses import Analysis
from mnmt_jax.papers.experiments import Experiment, data_notes, training_config
from mnmt_jax.papers.score_models import missing_models
from mnmt_jax.papers.steps import Step
from mnmt_jax.papers.tables import Table
from mnmt_jax.papers.trials import Trial
from mnmt_jax.papers.workflow import Workflow


def describe_plan(
    table: Table,
    trials: Sequence[Trial],
    analyses: Sequence[Analysis],
    plan: Workflow,
    *,
    data: Path = Path("data"),
) -> str:
    """Return what a reproduction does and costs at full scale.

    Args:
        table: the table.
        trials: seeds of experiments of its rows.
        analyses: its analyses.
        plan: the workflow of both.
        data: folder of the corpora.
    """
    trained = {name: item for (name, _), item in plan.trainings.items()}
    costs = {name: training_cost(item) for name, item in trained.items()}
    flops, disk = sum_estimates(costs[name] for name, _ in plan.trainings)
    hours = ", ".join(
        f"{name} {h:{',.0f' if h >= 100 else '.3g'}}" for name, h in device_hours(flops).items()
    )
    evaluations = sum(step.kind == "evaluate" for step in plan.steps)
    return "\n".join(
        [
            f"{table.full_name}: {table.number}, {table.title}",
            f"{len(plan.trainings)} trainings, {evaluations} evaluations, {len(plan.steps)} steps",
            "",
            _training_table(trained, costs, _uses(table, trials, analyses)),
            *_epoch_note(trained.values()),
            f"FLOPs of all trainings, rows full of sentences of {SENTENCE} pieces: {flops:.3g}",
            f"hours of training alone at {UTILIZATION:.0%} of the peak (assumed; small models "
            f"reach far less): {hours}",
            f"disk for checkpoints: {disk / 1e9:.3g} GB",
            "",
            *_required_files(trained.values(), plan.steps, data),
            *missing_models(table, plan.metrics),
            "",
            f"commands, in the output folder and with {DATA_VARIABLE}={data.resolve()}:",
            *(command_line(step.command) for step in plan.steps),
        ]
    )


def training_cost(experiment: Experiment) -> TrainingEstimate:
    """Estimate the cost of a training at full scale; of back-translation without its searches."""
    data, rounds = experiment.data, experiment.back_translation_rounds or 1
    cost = estimate_training(training_config(experiment), data.epoch_draws or data.sentences)
    return dataclasses.replace(
        cost, updates=rounds * cost.updates, flops=rounds * cost.flops, disk=rounds * cost.disk
    )


def command_line(words: Iterable[str]) -> str:
    """Return a shell's command line, with double quotes around values that have single ones."""
    return " ".join(_quote(word) for word in words)


def _quote(word: str) -> str:
    name, equals, value = word.partition("=")
    if "'" in value and not set(value) & set('"$`!\\'):
        return f'{shlex.quote(name)}{equals}"{value}"'
    return shlex.quote(word)


def _uses(table: Table, trials: Iterable[Trial], analyses: Iterable[Analysis]) -> dict[str, str]:
    """Return by run the numbers of its rows, as in `--rows`, and the names of its analyses."""
    numbers = {row.name: number for number, row in enumerate(table.rows, start=1)}
    uses = dict[str, dict[str, None]]()
    for trial in trials:
        uses.setdefault(trial.experiment.run_name, {})[str(numbers[trial.row])] = None
    for analysis in analyses:
        for run in analysis.runs.values():
            uses.setdefault(run.run_name, {})[analysis.name] = None
    return {run: ",".join(names) for run, names in uses.items()}


def _training_table(
    trained: Mapping[str, Experiment],
    costs: Mapping[str, TrainingEstimate],
    uses: Mapping[str, str],
) -> str:
    header = [
        "rows",
        "model",
        "corpus",
        "directions",
        "parameters",
        "updates",
        "tokens/update",
        "FLOPs",
    ]
    rows = []
    for name, item in trained.items():
        cost, directions = costs[name], get_mixture(item.data.mixture).directions
        sizes = [len(directions), cost.parameters, cost.updates, cost.tokens]
        counts = [f"{size:,}" for size in sizes]
        use = uses.get(name, "source run")
        rows.append([use, item.model, item.data.corpus, *counts, f"{cost.flops:.3g}"])
    return markdown_table(header, rows)


def _epoch_note(experiments: Iterable[Experiment]) -> list[str]:
    """Return a line about updates that are estimated from epochs; none if there are none."""
    if not any(training_config(item).train.epochs for item in experiments):
        return []
    return [
        f"updates of epochs (Train.epochs) are estimates for pairs of {SENTENCE} pieces; training "
        "counts them from the cache"
    ]


def _required_files(
    experiments: Iterable[Experiment], steps: Iterable[Step], data: Path
) -> list[str]:
    """Return a line for each corpus that a step reads, each imported model and vocabulary."""
    names: dict[str, None] = {}
    models: dict[str, None] = {}
    for step in steps:
        for flag, value in itertools.pairwise(step.command):
            if flag in ("--mixture", "--task"):
                names[MIXTURES[value].corpus if value in MIXTURES else value] = None
            elif flag == "--input" and step.kind == "import":
                models[f"{value}: the released model"] = None
    places = dict.fromkeys(_place(PUBLISHED.get(name), name, data) for name in names)
    return [f"data: {text}" for text in (*places, *models, *data_notes(experiments))]


def _place(row: PublishedCorpus | None, name: str, data: Path) -> str:
    if row is None:
        return f"{name}: embedded, no file"
    folder = data / (row.folder or row.name)
    return f"{folder}{'' if folder.is_dir() else ' (not there)'}: {row.required_files}"
