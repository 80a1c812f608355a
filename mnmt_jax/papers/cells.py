"""Cells of a reproduced table: our scores in the columns of the published one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from operator import sub, truediv

from mnmt_jax.evaluation.result import RunResult
from mnmt_jax.evaluation.seed_statistics import SeedSummary, summarize_scores
from mnmt_jax.evaluation.timing import Timing
from mnmt_jax.papers.groups import group_mean
from mnmt_jax.papers.intervals import Evaluation, SentenceIntervals
from mnmt_jax.papers.tables import Column, Number

COMPARED_METRICS = ("bleu_gain", "relative_time")
"""Metrics that compare with the row `compared_with`."""
_CHANGES = ("bleu_change", "bleu_gain")  # metrics of differences
FIELDS = {
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
"""Metric of a column -> field of `DirectionResult`."""
# Group of a column -> group of validated directions.
_VALIDATED = {
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
    field = FIELDS.get(column.metric)
    if ours is None or len(evaluations) != 1 or field is None:
        return Cell(published, ours)
    reference_evaluation = before[0] if column.metric in _CHANGES else None
    interval = intervals.of_column(column, field, evaluations[0], reference_evaluation)
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
    scores = [group_score(run, column) for run in runs]
    if column.metric in {*_CHANGES, *COMPARED_METRICS}:
        if len(reference) != len(runs):
            return None
        before = [group_score(run, column) for run in reference]
        compare = truediv if column.metric == "relative_time" else sub
        scores = [
            None if None in pair else compare(*pair) for pair in zip(scores, before, strict=True)
        ]
    known = [score for score in scores if score is not None]
    if not known:
        return None
    summary = summarize_scores(known)
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
        measures = result.validation.get(_VALIDATED.get(column.group, ""), {})
        return measures.get(column.metric)
    field = FIELDS.get(column.metric)
    if field is None:
        return None
    undefined = result.undefined_directions(field)
    return group_mean(result.values(field), column.group, result.supervised, undefined)


def _update_seconds(result: RunResult) -> float | None:
    """Return the seconds of an update of the training, validation included; None if unknown."""
    return result.seconds / result.step if result.seconds and result.step else None
