"""Scores by the procedures of the papers' scripts, for tables whose numbers are made so."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from mnmt_jax.evaluation.published_procedures import PROCEDURES
from mnmt_jax.evaluation.result import DirectionResult, RunResult
from mnmt_jax.papers.experiments import Experiment

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


def uses_procedure(experiment: Experiment) -> bool:
    """Return whether an evaluation is scored by the authors' procedure.

    Translations from files are not: the procedure needs the vocabulary of their model.
    """
    return experiment.data.as_published and not experiment.hypotheses


def scoring_notes(experiments: Iterable[Experiment]) -> list[str]:
    """Return a note for each corpus whose authors score by a procedure of their own."""
    items = [item for item in experiments if item.data.procedure]
    return list(dict.fromkeys(map(_note, items)))


def _note(experiment: Experiment) -> str:
    data = experiment.data
    label = PROCEDURES[data.procedure].label
    if uses_procedure(experiment):
        return f"Our scores on {data.corpus} are by the authors' procedure ({label})."
    system = f" of {experiment.model}" if experiment.hypotheses else ""
    return (
        f"Our scores{system} on {data.corpus} are plain sacreBLEU; the authors' scripts "
        f"score otherwise ({label})."
    )
