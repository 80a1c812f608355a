"""Scores that need an external model, and the flags that name it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from mnmt_jax.papers.tables import Table


class ScoreModel(NamedTuple):
    """A score that needs a model.

    Attributes:
        title: title of the score.
        flag: name of the flag of `mnmt evaluate` and `mnmt reproduce`.
        kind: what the flag names, `FILE` or `FOLDER`.
    """

    title: str
    flag: str
    kind: str


SCORE_MODELS: Mapping[str, ScoreModel] = MappingProxyType(
    {
        "comet": ScoreModel("COMET", "comet", "FILE"),
        "bert_score": ScoreModel("BERTScore", "bert_score", "FOLDER"),
        "spbleu": ScoreModel("spBLEU", "flores200_model", "FILE"),
    }
)
"""Metric of a column -> its model."""


def missing_models(table: Table, filled: Iterable[str]) -> list[str]:
    """Return a line for each score of a table whose model is not named.

    Args:
        table: the table.
        filled: metrics that have a model, or scores.
    """
    columns = {column.metric for column in table.columns} - set(filled)
    return [
        f"{model.title}: cells stay empty without --{model.flag} {model.kind}"
        for metric, model in SCORE_MODELS.items()
        if metric in columns
    ]
