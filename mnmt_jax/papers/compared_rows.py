"""Comparison rows of columns with changes, gains and relative times."""

from __future__ import annotations

from collections.abc import Mapping

from mnmt_jax.papers.cells import COMPARED_METRICS
from mnmt_jax.papers.experiments import Experiment
from mnmt_jax.papers.tables import Column, Row

Key = tuple[str, str]
"""Name of a row, and corpus of its columns."""


def compared_key(column: Column, row: Row, experiments: Mapping[Key, Experiment]) -> Key | None:
    """Return the name of the row that a row is compared with in a column, and the corpus.

    A gain and a relative time are compared with another row of the table. A change compares two
    searches with the same model: the row's, and the one with the training's own settings, which
    has no change itself.

    Args:
        column: the column.
        row: the row.
        experiments: what is trained and evaluated.

    Returns:
        None if the column compares with no row, or with none of these experiments.
    """
    if column.metric in COMPARED_METRICS:
        key = (row.facts.get("compared_with", ""), column.corpus)
        return key if key in experiments else None
    experiment = experiments.get((row.name, column.corpus))
    if column.metric != "bleu_change" or experiment is None or not experiment.decode:
        return None
    return next(
        (
            key
            for key, other in experiments.items()
            if other.run_name == experiment.run_name and not other.decode
        ),
        None,
    )
