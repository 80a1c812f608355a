"""Analyses of a table's models: which runs `mnmt analyse` reads, and the numbers of the table.

An `[[analyses]]` entry of a table's file has a `name`, a `command` (kind and flags of `mnmt
analyse`), `runs` (with the fields of a row), and optionally a `corpus` and `rows`.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.analysis.kinds import MULTI_RUN_KINDS
from mnmt_jax.errors import UserError
from mnmt_jax.files.json_objects import read_json
from mnmt_jax.papers.experiments import Experiment, make_experiment, slug
from mnmt_jax.papers.tables import Column, Paper, Row, Table

RESULT, PAGE = "analysis.json", "analysis.html"
_FIELDS = ("name", "command", "runs", "corpus", "rows")
# Group of a column -> class of tokens in the result of a probe.
_SCRIPTS = {"ar": "Arabic", "ru": "Cyrillic", "zh": "Han"}
# Metric of a column -> field of an alignment, and whether it is a sum over layers or a mean.
_ALIGNMENT = {
    "top1_attention": ("first", True),
    "top2_attention": ("second", True),
    "top2_distance": ("distance", False),
    "entropy": ("entropy", False),
}


@dataclasses.dataclass(frozen=True)
class Analysis:
    """An analysis of trained models.

    Attributes:
        name: unique name in the table.
        table: `PAPER/TABLE`.
        command: kind and flags of `mnmt analyse`.
        runs: name -> analysed model.
        rows: row of the table -> part of the result that its cells are read from: the name of a
            run, or of a set of token types (`all`, `gained`) of a probe.
    """

    name: str
    table: str
    command: tuple[str, ...]
    runs: Mapping[str, Experiment]
    rows: Mapping[str, str]

    @property
    def kind(self) -> str:
        """Kind of `mnmt analyse`."""
        return self.command[0]

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Names of the runs that one command analyses together."""
        names = tuple(self.runs)
        return (names,) if self.kind in MULTI_RUN_KINDS else tuple((name,) for name in names)

    def folder(self, names: Sequence[str]) -> str:
        """Return the folder of a group's result, below the output folder."""
        folder = f"analyses/{self.table}/{self.name}"
        if len(self.groups) == 1:
            return folder
        return f"{folder}/{slug('-'.join(names))}"

    def pages(self) -> dict[str, str]:
        """Return the pages of the results below the output folder, by title."""
        titles = {names: f"{self.name} ({', '.join(names)})" for names in self.groups}
        return {titles[names]: f"{self.folder(names)}/{PAGE}" for names in self.groups}


def analyses(paper: Paper, table: Table) -> tuple[Analysis, ...]:
    """Return the analyses of a table.

    Raises:
        UserError: naming the table, analysis and field that is wrong.
    """
    return tuple(_analysis(paper, table, fields) for fields in table.analyses)


def _analysis(paper: Paper, table: Table, fields: Mapping[str, Any]) -> Analysis:
    place = f"{table.paper}/{table.name}: analysis '{fields.get('name', '')}'"
    if missing := [name for name in ("name", "command", "runs") if not fields.get(name)]:
        raise UserError(f"{place}: '{missing[0]}' is missing")
    if unknown := [name for name in fields if name not in _FIELDS]:
        raise UserError(f"{place}: unknown field '{unknown[0]}'")
    corpus = fields.get("corpus", table.corpus)
    runs = {}
    for facts in fields["runs"]:
        row = Row(facts["name"], {}, "", {key: facts[key] for key in facts if key != "name"})
        runs[row.name] = make_experiment(paper, table, row, corpus)
    rows = dict(fields.get("rows", {}))
    if wrong := [name for name in rows if name not in {row.name for row in table.rows}]:
        raise UserError(f"{place}: rows: the table has no row '{wrong[0]}'")
    command = tuple(shlex.split(fields["command"]))
    return Analysis(fields["name"], f"{table.paper}/{table.name}", command, runs, rows)


def analysis_score(analysis: Analysis, row: str, column: Column, output: Path) -> float | None:
    """Return the number of a cell; None if the analysis does not have it.

    Args:
        analysis: an analysis of the table.
        row: name of the row.
        column: the column.
        output: output folder of the workflow.

    Raises:
        UserError: if the result is missing or damaged.
    """
    part = analysis.rows.get(row)
    if part is None:
        return None
    names = next((names for names in analysis.groups if part in names), analysis.groups[0])
    result = read_json(output / analysis.folder(names) / RESULT, remedy="repeat the command")
    if analysis.kind == "probe":
        return _share(result, column, part)
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
            layer["choices"]["source"][field]
            for layer in direction["layers"]
            if layer["query"] == "register" and "source" in layer["choices"]
        ]
        defined = [value for value in layers if value is not None]
        if defined:
            values.append(sum(defined) / (1 if is_sum else len(defined)))
    return sum(values) / len(values) if values else None
