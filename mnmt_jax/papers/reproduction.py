"""A published table beside our scores, read from the results of its trials."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mnmt_jax.data.mixtures import get_mixture
from mnmt_jax.evaluation.result import RunResult, read_result
from mnmt_jax.evaluation.timing import Timing, read_timing
from mnmt_jax.papers.cells import Cell, make_cell, timed_cell
from mnmt_jax.papers.compared_rows import Key, compared_key
from mnmt_jax.papers.conditions import Conditions, CountParameters, conditions_of
from mnmt_jax.papers.experiments import Experiment, data_notes
from mnmt_jax.papers.intervals import Evaluation, SentenceIntervals
from mnmt_jax.papers.published_scores import scoring_notes, uses_procedure, with_published_scores
from mnmt_jax.papers.score_models import missing_models
from mnmt_jax.papers.tables import Column, Row, Table
from mnmt_jax.papers.trials import Trial, stated_seeds
from mnmt_jax.vocabulary.language_codes import Direction


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
    evaluations: Mapping[Key, Sequence[Evaluation]]
    conditions: Sequence[Conditions] = ()
    notes: tuple[str, ...] = ()
    analysis_pages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    reports: Mapping[str, str] = dataclasses.field(default_factory=dict)


def collect(
    table: Table,
    trials: Sequence[Trial],
    output: Path,
    *,
    count_parameters: CountParameters | None = None,
) -> Reproduction:
    """Read the evaluations of a table's trials.

    Args:
        table: the published table.
        trials: the trials that were run; others have no scores of ours.
        output: output folder of the workflow; resampled scores are kept in `resampled` there.
        count_parameters: counts the parameters of a training's model, for the conditions; None
            does not compare them.

    Raises:
        UserError: if an evaluation is missing or damaged.
    """
    results = _Results(trials, output)
    intervals = SentenceIntervals(output / "resampled")
    cells, filled = {}, set()  # filled: metrics with scores of ours
    for row in table.rows:
        for column in table.columns:
            cell = results.cell(row, column, intervals)
            if cell.published is not None or cell.ours is not None:
                cells[row.name, column.key] = cell
            if cell.ours is not None:
                filled.add(column.metric)
    missing = missing_models(table, filled) if results.evaluated else []
    conditions = [
        conditions_of(
            key[0],
            results.evaluations[key],
            experiment,
            output,
            count_parameters,
            len(stated_seeds(table, experiment)),
        )
        for key, experiment in results.experiments.items()
    ]
    reports = {trial.title: f"{trial.evaluation}/report.html" for trial in results.evaluated}
    notes = (*missing, *results.notes())
    return Reproduction(table, cells, results.evaluations, conditions, notes, reports=reports)


class _Results:
    """Results of a table's trials, by row and corpus.

    Attributes:
        evaluated: trials that were evaluated; the others were timed.
        experiments: what was trained and evaluated.
        evaluations: evaluations, one per seed.
    """

    def __init__(self, trials: Sequence[Trial], output: Path) -> None:
        """Read them.

        Raises:
            UserError: if one is missing or damaged.
        """
        self.evaluated = [trial for trial in trials if not trial.experiment.benchmark]
        self.experiments = {(trial.row, trial.prefix): trial.experiment for trial in self.evaluated}
        self.evaluations: dict[Key, list[Evaluation]] = {}
        for trial in self.evaluated:
            evaluation = _read_evaluation(trial.experiment, output / trial.evaluation, output)
            self.evaluations.setdefault((trial.row, trial.prefix), []).append(evaluation)
        self._timings: dict[Key, Timing] = {
            (trial.row, trial.prefix): read_timing(output / trial.evaluation)
            for trial in trials
            if trial.experiment.benchmark
        }

    def cell(self, row: Row, column: Column, intervals: SentenceIntervals) -> Cell:
        """Return a cell of the table."""
        key, published = (row.name, column.corpus), row.published.get(column.key)
        if key in self._timings:
            return timed_cell(column, published, self._timings[key])
        compared = compared_key(column, row, self.experiments)
        before = self.evaluations[compared] if compared else []
        return make_cell(column, published, self.evaluations.get(key, []), before, intervals)

    def notes(self) -> tuple[str, ...]:
        """Return what differs from the paper in data and scoring, and how times vary."""
        used = [trial.experiment for trial in self.evaluated]
        timings = [f"{row}: {timing.describe()}" for (row, _), timing in self._timings.items()]
        trained = [experiment for experiment in used if not experiment.pretrained]
        return (*data_notes(trained), *scoring_notes(used), *timings)


def _grouped_as_before(result: RunResult, directions: Iterable[Direction]) -> RunResult:
    """Return a result whose zero-shot directions are those before back-translation trained them."""
    trained = set(directions)
    regrouped = [
        dataclasses.replace(item, supervised=item.direction in trained)
        for item in result.directions
    ]
    return dataclasses.replace(result, directions=tuple(regrouped))


def _read_evaluation(experiment: Experiment, folder: Path, output: Path) -> Evaluation:
    """Read an evaluation, with the scores of the authors' procedure if the table has them."""
    result = read_result(folder)
    if experiment.back_translation_rounds:
        result = _grouped_as_before(result, get_mixture(experiment.data.mixture).directions)
    if not uses_procedure(experiment):
        return Evaluation(result, folder)
    cache = result.config.get("data", {}).get("cache", "")
    vocabulary = output / cache / "vocabulary"
    scoring = experiment.data.procedure
    return Evaluation(with_published_scores(result), folder, scoring, vocabulary)
