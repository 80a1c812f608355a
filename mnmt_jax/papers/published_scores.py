"""Scores by the procedures of the papers' scripts, for tables whose numbers are made so."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from mnmt_jax.evaluation.published_procedures import PROCEDURES
from mnmt_jax.evaluation.result import DirectionResult, RunResult
from mnmt_jax.papers.experiments import CorpusSettings, Experiment

_SCORES = ("bleu", "spbleu", "chrf", "comet", "bert_score")


def with_published_scores(result: RunResult) -> RunResult:
    """Return an evaluation whose scores are those of its published procedure.

    Args:
        result: an evaluation with `--paper_compatible`. Scores that the procedure does not compute
            become None.
    """
    directions = tuple(map(_replace, result.directions))
    return dataclasses.replace(result, directions=directions)


def _replace(item: DirectionResult) -> DirectionResult:
    scores = {name: item.paper.get(name) for name in _SCORES}
    return dataclasses.replace(item, **scores)  # type: ignore[arg-type]


def scoring_notes(experiments: Iterable[Experiment]) -> list[str]:
    """Return a note for each corpus whose authors score by a procedure of their own."""
    corpora = {item.data.corpus: item.data for item in experiments if item.data.procedure}
    return [_note(data) for data in corpora.values()]


def _note(data: CorpusSettings) -> str:
    label = PROCEDURES[data.procedure].label
    if data.as_published:
        return f"Our scores on {data.corpus} are by the authors' procedure ({label})."
    return (
        f"Our scores on {data.corpus} are plain sacreBLEU; the authors' scripts score otherwise "
        f"({label})."
    )
