"""Cells of a reproduced table: our scores in the columns of the published one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from operator import sub, truediv
from pathlib import Path

from mnmt_jax.evaluation.result import RunResult, read_result
from mnmt_jax.evaluation.seed_statistics import SeedSummary, summarize_scores
from mnmt_jax.evaluation.timing import Timing, read_timing
from mnmt_jax.papers.conditions import Conditions, CountParameters, conditions_of
from mnmt_jax.papers.experiments import Experiment, data_notes
from mnmt_jax.papers.groups import group_mean
from mnmt_jax.papers.intervals import Evaluation, SentenceIntervals
from mnmt_jax.papers.published_scores import (
    scoring_notes,
    uses_procedure,
    with_published_scores,
)
from mnmt_jax.papers.tables import Column, Number, Table
from mnmt_jax.papers.trials import Trial

# Metrics of differences, and metrics that compare with the row `compared_with`.
_CHANGES = ("bleu_change", "bleu_gain")
_COMPARED = ("bleu_gain", "relative_time")
# Metric of a column -> field of `DirectionResult`.
_FIELDS = {
    "bleu": "bleu",
    "bleu_change": "bleu",
    "bleu_gain": "bleu",
    "variance": "bleu",
    "spbleu": "spbleu",
    "chrf": "chrf",
    "exact": "exact_match",
    "comet": "comet",
    "bert_score": "bert_score",
    "off_target": "off_target_lid",
    "off_target_nearest": "off_target_nearest",
}
# Group of a column -> curve of validation losses.
_CURVES = {
    "supervised": "supervised",
    "zero_shot": "zero_shot",
    "en_to_x": "from_english",
    "x_to_en": "to_english",
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of a reproduced table.

    Attributes:
        published: the printed number; None if the paper has none.
        ours: summary over seeds; None if it was not computed.
        sentence_interval: 95 % interval of a single seed's score, by bootstrap over sentences; None
            for several seeds, or if it was not computed.
    """

    published: Number | None
    ours: SeedSummary | None
    sentence_interval: tuple[float, float] | None = None

    @property
    def difference(self) -> float | None:
        """Our mean minus the published number; None if one is missing."""
        if self.ours is None or self.published is None:
            return None
        return self.ours.mean - float(self.published)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The range over seeds, or the interval over the sentences of a single seed."""
        if self.ours is not None and self.ours.count > 1:
            return self.ours.low, self.ours.high
        return self.sentence_interval


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """A published table beside our scores.

    Attributes:
        table: the published table.
        cells: (name of a row, key of a column) -> cell.
        evaluations: (name of a row, corpus of its columns) -> evaluations, one per seed.
        conditions: conditions of our runs.
        notes: what differs from the paper's conditions.
        analysis_pages: title -> page of an analysis, below the output folder.
        reports: title -> report of an evaluation, with translations, below the output folder.
    """

    table: Table
    cells: Mapping[tuple[str, str], Cell]
    evaluations: Mapping[tuple[str, str], Sequence[Evaluation]]
    conditions: Sequence[Conditions] = ()
    notes: tuple[str, ...] = ()
    analysis_pages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    reports: Mapping[str, str] = dataclasses.field(default_factory=dict)


def collect(
    table: Table,
    trials: Sequence[Trial],
    output: Path,
    *,
    flores200_model: Path | None = None,
    count_parameters: CountParameters | None = None,
) -> Reproduction:
    """Read the evaluations of a table's trials.

    Args:
        table: the published table.
        trials: the trials that were run; others have no scores of ours.
        output: output folder of the workflow; resampled scores are kept in `resampled` there.
        flores200_model: tokenizer of spBLEU; None looks into sacreBLEU's cache.
        count_parameters: counts the parameters of a training's model, for the conditions; None
            does not compare them.

    Raises:
        UserError: if an evaluation is missing or damaged.
    """
    timed = {
        (trial.row, trial.prefix): read_timing(output / trial.evaluation)
        for trial in trials
        if trial.experiment.benchmark
    }
    trials = [trial for trial in trials if not trial.experiment.benchmark]
    evaluations: dict[tuple[str, str], list[Evaluation]] = {}
    plain: dict[str, list[Evaluation]] = {}  # without the row's changes of decoding
    for trial in trials:
        folder = output / trial.evaluation
        evaluation = _read_evaluation(trial.experiment, folder, output)
        evaluations.setdefault((trial.row, trial.prefix), []).append(evaluation)
        if not trial.experiment.decode:
            plain.setdefault(trial.experiment.run_name, []).append(evaluation)
    experiments = {(trial.row, trial.prefix): trial.experiment for trial in trials}
    intervals = SentenceIntervals(output / "resampled", flores200_model)
    cells = {}
    for row in table.rows:
        for column in table.columns:
            key = row.name, column.corpus
            before = plain.get(experiments[key].run_name, []) if key in experiments else []
            if column.metric in _COMPARED:
                before = evaluations.get((row.facts.get("compared_with", ""), column.corpus), [])
            published = row.published.get(column.key)
            cell = make_cell(column, published, evaluations.get(key, []), before, intervals)
            if key in timed:
                cell = timed_cell(column, published, timed[key])
            if cell.published is not None or cell.ours is not None:
                cells[row.name, column.key] = cell
    notes = data_notes(trial.experiment for trial in trials if not trial.experiment.pretrained)
    conditions = [
        conditions_of(key[0], evaluations[key], experiment, output, count_parameters)
        for key, experiment in experiments.items()
    ]
    notes += scoring_notes(trial.experiment for trial in trials)
    notes += [f"{row}: {timing.describe()}" for (row, _), timing in timed.items()]
    reports = {trial.title: f"{trial.evaluation}/report.html" for trial in trials}
    return Reproduction(table, cells, evaluations, conditions, tuple(notes), reports=reports)


def _read_evaluation(experiment: Experiment, folder: Path, output: Path) -> Evaluation:
    """Read an evaluation, with the scores of the authors' procedure if the table has them."""
    result = read_result(folder)
    if not uses_procedure(experiment):
        return Evaluation(result, folder)
    cache = result.config.get("data", {}).get("cache", "")
    vocabulary = output / cache / "vocabulary"
    scoring = experiment.data.procedure
    return Evaluation(with_published_scores(result), folder, scoring, vocabulary)


def timed_cell(column: Column, published: Number | None, timing: Timing) -> Cell:
    """Return a cell with our time, or the tokens that were generated in it."""
    values = {
        "tokens": float(timing.tokens),
        "seconds": timing.mean_seconds,
        "seconds_per_token": timing.seconds_per_token,
    }
    ours = values.get(column.metric)
    return Cell(published, None if ours is None else summarize_scores([ours]))


def make_cell(
    column: Column,
    published: Number | None,
    evaluations: Sequence[Evaluation],
    before: Sequence[Evaluation],
    intervals: SentenceIntervals,
) -> Cell:
    """Return a cell with our scores.

    Args:
        column: the column.
        published: the printed number.
        evaluations: evaluations of the row, one per seed.
        before: what columns of changes, gains and relative times compare with, one per seed:
            evaluations of the same runs with unchanged decoding, or of another row.
        intervals: intervals over sentences, for one seed.
    """
    runs, reference = ([item.result for item in group] for group in (evaluations, before))
    ours = summarize_column(column, runs, reference)
    if ours is None or len(evaluations) != 1:
        return Cell(published, ours)
    is_change = column.metric in _CHANGES
    interval = intervals.of_column(
        column,
        _FIELDS.get(column.metric, ""),
        evaluations[0],
        before[0] if is_change else None,
    )
    return Cell(published, ours, interval)


def summarize_column(
    column: Column, runs: Sequence[RunResult], reference: Sequence[RunResult]
) -> SeedSummary | None:
    """Return a column's value over seeds; None if it cannot be computed.

    Args:
        column: the column.
        runs: evaluations of the row, one per seed.
        reference: evaluations that columns of changes, gains and relative times compare with, one
            per seed.
    """
    scores = [score for run in runs if (score := group_score(run, column)) is not None]
    if column.metric in {*_CHANGES, *_COMPARED}:
        before = [score for run in reference if (score := group_score(run, column)) is not None]
        if len(before) != len(scores):
            return None
        compare = truediv if column.metric == "relative_time" else sub
        scores = [compare(*pair) for pair in zip(scores, before, strict=True)]
    if not scores:
        return None
    summary = summarize_scores(scores)
    if column.metric != "variance":
        return summary
    return None if summary.variance is None else summarize_scores([summary.variance])


def group_score(result: RunResult, column: Column) -> float | None:
    """Return the value of a column for one run; None if it has none.

    Args:
        result: an evaluation.
        column: the column; `mnmt_jax.papers.groups.group_mean` describes its group.
    """
    if column.metric == "parameters":
        return result.parameters
    if column.metric == "relative_time":
        return _update_seconds(result)
    if column.metric in ("nll", "perplexity"):
        loss = _validation_nll(result, column.group)
        return math.exp(loss) if loss is not None and column.metric == "perplexity" else loss
    field = _FIELDS.get(column.metric)
    if field is None:
        return None
    return group_mean(result.values(field), column.group, result.supervised)


def _update_seconds(result: RunResult) -> float | None:
    """Return the seconds of an update of the training, validation included; None if unknown."""
    return result.seconds / result.step if result.seconds and result.step else None


def _validation_nll(result: RunResult, group: str) -> float | None:
    """Return the validation loss at the evaluated step; None if the run did not log it."""
    points = dict(result.curves.get(_CURVES.get(group, ""), ()))
    return points.get(result.step) if result.step is not None else None
