"""Rows of a reproduced table as systems that are compared over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mnmt_jax.evaluation.result import RunResult
from mnmt_jax.papers.cells import FIELDS
from mnmt_jax.papers.reproduction import Reproduction


def seed_groups(
    reproduction: Reproduction,
) -> Iterator[tuple[str, dict[str, list[RunResult]], Sequence[str]]]:
    """Yield title, groups and names, as `seed_table` takes them, of each corpus with several seeds.

    Args:
        reproduction: the reproduced table. Its first row with evaluations on a corpus is what the
            others are compared with, in the metrics of the table's columns.
    """
    for corpus in dict.fromkeys(corpus for _, corpus in reproduction.evaluations):
        groups = {
            row: [evaluation.result for evaluation in evaluations]
            for (row, of), evaluations in reproduction.evaluations.items()
            if of == corpus and evaluations
        }
        if len(groups) < 2 or max(map(len, groups.values())) < 2:
            continue
        results = [result for group in groups.values() for result in group]
        columns = (column for column in reproduction.table.columns if column.corpus == corpus)
        fields = dict.fromkeys(
            FIELDS[column.metric] for column in columns if column.metric in FIELDS
        )
        names = [
            field
            for field in fields
            if any(value is not None for r in results for value in r.values(field).values())
        ]
        if names:
            yield f"Over seeds, {corpus}".rstrip(", "), groups, names
