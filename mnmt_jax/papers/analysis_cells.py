"""Numbers and pages of a reproduced table that come from analyses."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.design.layouts import REGISTER, SOURCE
from mnmt_jax.evaluation.seed_statistics import summarize_scores
from mnmt_jax.files.json_objects import read_json
from mnmt_jax.papers.analyses import RESULT, Analysis
from mnmt_jax.papers.cells import Cell
from mnmt_jax.papers.reproduction import Reproduction
from mnmt_jax.papers.tables import Column

# Group of a column -> class of tokens in the result of a probe.
_SCRIPTS = {"ar": "Arabic", "ru": "Cyrillic", "zh": "Han"}
# Metric of a column -> field of an alignment, and whether it is a sum over layers or a mean.
_ALIGNMENT = {
    "top1_attention": ("first", True),
    "top2_attention": ("second", True),
    "top2_distance": ("distance", False),
    "entropy": ("entropy", False),
}


def with_analyses(
    reproduction: Reproduction, analysed: Sequence[Analysis], output: Path
) -> Reproduction:
    """Return a reproduced table with the pages and numbers of its analyses.

    Raises:
        UserError: if a result is missing or damaged.
    """
    cells, table = dict(reproduction.cells), reproduction.table
    for analysis, row in itertools.product(analysed, table.rows):
        if row.name not in analysis.rows:
            continue
        result = _read_result(analysis, analysis.rows[row.name], output)
        for column in table.columns:
            score = analysis_score(analysis, row.name, column, result)
            if score is not None:
                published = row.published.get(column.key)
                cells[row.name, column.key] = Cell(published, summarize_scores([score]))
    pages = {title: page for analysis in analysed for title, page in analysis.pages().items()}
    return dataclasses.replace(reproduction, cells=cells, analysis_pages=pages)


def _read_result(analysis: Analysis, part: str, output: Path) -> Mapping[str, Any]:
    names = next((names for names in analysis.groups if part in names), analysis.groups[0])
    result: Mapping[str, Any] = read_json(
        output / analysis.folder(names) / RESULT, remedy="repeat the command"
    )
    return result


def analysis_score(
    analysis: Analysis, row: str, column: Column, result: Mapping[str, Any]
) -> float | None:
    """Return the number of a cell; None if the analysis does not have it.

    Args:
        analysis: an analysis of the table.
        row: name of one of its rows.
        column: the column.
        result: the result that the row's cells are read from.
    """
    if analysis.kind == "probe":
        return _share(result, column, analysis.rows[row])
    if analysis.kind == "alignment" and column.metric in _ALIGNMENT:
        return _attention_of_registers(result, *_ALIGNMENT[column.metric])
    return None


def _share(probe: Mapping[str, Any], column: Column, part: str) -> float | None:
    """Return the percentage of a class among token types, at the last location of two models."""
    classes = probe["gains"][-1]["classes"]
    shares = classes.get(_SCRIPTS.get(column.group, column.group), {"all": 0.0, "gained": 0.0})
    return shares[part]


def _attention_of_registers(alignment: Mapping[str, Any], field: str, is_sum: bool) -> float | None:
    """Return a statistic of the registers' attention to the source, mean over directions."""
    values = []
    for direction in alignment["directions"]:
        layers = [
            layer["choices"][SOURCE][field]
            for layer in direction["layers"]
            if layer["query"] == REGISTER and SOURCE in layer["choices"]
        ]
        defined = [value for value in layers if value is not None]
        if defined:
            values.append(sum(defined) / (1 if is_sum else len(defined)))
    return sum(values) / len(values) if values else None
