"""Cells of a reproduced table: our scores in the columns of the published one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mnmt_jax.evaluation.published_averages import EC40_TABLE_TIERS
from mnmt_jax.evaluation.result import RunResult, read_result
from mnmt_jax.evaluation.seed_statistics import SeedSummary, summarize_scores
from mnmt_jax.papers.tables import Column, Number, Table
from mnmt_jax.papers.workflow import Trial
from mnmt_jax.vocabulary.languages import EC40_TIERS, MITRE_GROUPS, Direction

# Metric of a column -> field of `DirectionResult`.
_FIELDS = {
    "bleu": "bleu",
    "bleu_change": "bleu",
    "variance": "bleu",
    "spbleu": "spbleu",
    "chrf": "chrf",
    "exact": "exact_match",
    "comet": "comet",
    "bert_score": "bert_score",
    "off_target": "off_target_lid",
    "off_target_nearest": "off_target_nearest",
}
_TIERS = dict(zip(EC40_TIERS, EC40_TABLE_TIERS.values(), strict=True))
_GROUPS: Mapping[str, tuple[str, ...]] = {
    **_TIERS,
    **{
        name.lower().replace("-", "_").replace(" ", "_"): codes
        for name, codes in MITRE_GROUPS.items()
    },
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
    """

    published: Number | None
    ours: SeedSummary | None

    @property
    def difference(self) -> float | None:
        """Our mean minus the published number; None if one is missing."""
        if self.ours is None or self.published is None:
            return None
        return self.ours.mean - float(self.published)


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """A published table beside our scores.

    Attributes:
        table: the published table.
        cells: (name of a row, key of a column) -> cell.
        results: name of a row -> evaluations, by corpus of the columns.
    """

    table: Table
    cells: Mapping[tuple[str, str], Cell]
    results: Mapping[str, Mapping[str, Sequence[RunResult]]]


def collect(table: Table, trials: Sequence[Trial], output: Path) -> Reproduction:
    """Read the evaluations of a table's trials.

    Args:
        table: the published table.
        trials: the trials that were run; others have no scores of ours.
        output: output folder of the workflow.

    Raises:
        UserError: if an evaluation is missing or damaged.
    """
    results: dict[str, dict[str, list[RunResult]]] = {}
    plain: dict[str, list[RunResult]] = {}  # without the row's changes of decoding
    for trial in trials:
        by_corpus = results.setdefault(trial.row, {})
        by_corpus.setdefault(trial.prefix, []).append(read_result(output / trial.evaluation))
        if not trial.experiment.decode:
            runs = plain.setdefault(trial.experiment.run_name, [])
            runs.append(by_corpus[trial.prefix][-1])
    experiments = {(trial.row, trial.prefix): trial.experiment for trial in trials}
    cells = {}
    for row in table.rows:
        for column in table.columns:
            published = row.published.get(column.key)
            runs = results.get(row.name, {}).get(column.corpus, [])
            experiment = experiments.get((row.name, column.corpus))
            reference = plain.get(experiment.run_name, []) if experiment else []
            ours = summarize_column(column, runs, reference)
            if published is not None or ours is not None:
                cells[row.name, column.key] = Cell(published, ours)
    return Reproduction(table, cells, results)


def summarize_column(
    column: Column, runs: Sequence[RunResult], plain: Sequence[RunResult]
) -> SeedSummary | None:
    """Return a column's value over seeds; None if it cannot be computed.

    Args:
        column: the column.
        runs: evaluations of the row, one per seed.
        plain: evaluations of the same runs with unchanged decoding, for columns of changes.
    """
    scores = [score for run in runs if (score := group_score(run, column)) is not None]
    if column.metric == "bleu_change":
        before = [score for run in plain if (score := group_score(run, column)) is not None]
        if len(before) != len(scores):
            return None
        scores = [after - score for after, score in zip(scores, before, strict=True)]
    if not scores:
        return None
    summary = summarize_scores(scores)
    if column.metric != "variance":
        return summary
    return None if summary.variance is None else summarize_scores([summary.variance])


def group_score(result: RunResult, column: Column) -> float | None:
    """Return the mean score of a column's directions, or the parameter count; None if it has none.

    Args:
        result: an evaluation.
        column: the column; its group is `supervised`, `zero_shot`, `all`, a direction (`de-fr`) or
            `A_to_B`, where A and B are a code, a tier or group of languages, `x` for any, or
            `non_english`.
    """
    if column.metric == "parameters":
        return result.parameters
    if column.metric == "nll":
        return _validation_nll(result, column.group)
    field = _FIELDS.get(column.metric)
    if field is None:
        return None
    values = result.values(field)
    means = []
    for group in _averaged_groups(column.group):
        directions = _directions(group, tuple(values), result.supervised)
        if scores := [value for pair in directions if (value := values[pair]) is not None]:
            means.append(sum(scores) / len(scores))
    return sum(means) / len(means) if means else None


def _validation_nll(result: RunResult, group: str) -> float | None:
    """Return the validation loss at the evaluated step; None if the run did not log it."""
    points = dict(result.curves.get(_CURVES.get(group, ""), ()))
    return points.get(result.step) if result.step is not None else None


def _averaged_groups(group: str) -> tuple[str, ...]:
    """Return the groups whose means a group averages.

    A tier of EC-40 to or from all languages is the mean of its four tier-by-tier means, as in the
    authors' script (`mnmt_jax.evaluation.published_averages.ec40_table`).
    """
    source, _, target = group.partition("_to_")
    if source in _TIERS and target == "x":
        return tuple(f"{source}_to_{tier}" for tier in _TIERS)
    if source == "x" and target in _TIERS:
        return tuple(f"{tier}_to_{target}" for tier in _TIERS)
    return (group,)


def _directions(
    group: str, directions: Sequence[Direction], supervised: Iterable[Direction] | None
) -> list[Direction]:
    if group == "all":
        return list(directions)
    if group in ("supervised", "zero_shot"):
        if supervised is None:
            return []
        trained = set(supervised)
        return [pair for pair in directions if (pair in trained) == (group == "supervised")]
    source, separator, target = group.partition("_to_")
    if separator:
        return [pair for pair in directions if _is_in(pair[0], source) and _is_in(pair[1], target)]
    return [pair for pair in directions if "-".join(pair) == group]


def _is_in(code: str, group: str) -> bool:
    """Return whether a language belongs to a group; a code is the group of itself."""
    if group == "non_english":
        return code != "en"
    return group == "x" or code in _GROUPS.get(group, (group,))
