"""Analyses of a table's models by `mnmt analyse`.

An `[[analyses]]` entry of a table's file has a `name`, a `command` (kind and flags of `mnmt
analyse`) and `runs` (with the fields of a row); optionally a `corpus`, `rows`, and `compare = true`
if one command reads all runs.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.errors import UserError
from mnmt_jax.papers.experiments import Experiment, make_experiment, slug, with_released_files
from mnmt_jax.papers.tables import Paper, Row, Table

# The names of `mnmt_jax.analysis.analysis_files`, which modules of papers do not import.
RESULT, PAGE = "analysis.json", "analysis.html"
_FIELDS = ("name", "command", "runs", "corpus", "rows", "compare")


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
        compare: whether one command reads all runs; otherwise there is a command for each.
    """

    name: str
    table: str
    command: tuple[str, ...]
    runs: Mapping[str, Experiment]
    rows: Mapping[str, str]
    compare: bool = False

    @property
    def seed(self) -> int:
        """Seed of the analysed runs, the first of the paper."""
        return next(iter(self.runs.values())).data.seeds[0]

    @property
    def kind(self) -> str:
        """Kind of `mnmt analyse`."""
        return self.command[0]

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Names of the runs that one command analyses together."""
        names = tuple(self.runs)
        return (names,) if self.compare else tuple((name,) for name in names)

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


def analyses(paper: Paper, table: Table, data: Path | None = None) -> tuple[Analysis, ...]:
    """Return the analyses of a table.

    Args:
        paper: paper of the table.
        table: the table.
        data: folder of the corpora, where released vocabularies are looked for; None for nowhere.

    Raises:
        UserError: naming the table, analysis and field that is wrong.
    """
    return tuple(_analysis(paper, table, fields, data) for fields in table.analyses)


def _analysis(paper: Paper, table: Table, fields: Mapping[str, Any], data: Path | None) -> Analysis:
    place = f"{table.full_name}: analysis '{fields.get('name', '')}'"
    if missing := [name for name in ("name", "command", "runs") if not fields.get(name)]:
        raise UserError(f"{place}: '{missing[0]}' is missing")
    if unknown := [name for name in fields if name not in _FIELDS]:
        raise UserError(f"{place}: unknown field '{unknown[0]}'")
    corpus = fields.get("corpus", table.corpus)
    if not corpus:
        raise UserError(f"{place}: set 'corpus', which the table does not name")
    runs = {}
    for facts in fields["runs"]:
        row = Row(facts["name"], {}, "", {key: facts[key] for key in facts if key != "name"})
        experiment = make_experiment(paper, table, row, corpus)
        runs[row.name] = with_released_files(experiment, data)
    rows = dict(fields.get("rows", {}))
    if wrong := [name for name in rows if name not in {row.name for row in table.rows}]:
        raise UserError(f"{place}: rows: the table has no row '{wrong[0]}'")
    return Analysis(
        name=fields["name"],
        table=table.full_name,
        command=tuple(shlex.split(fields["command"])),
        runs=runs,
        rows=rows,
        compare=fields.get("compare", False),
    )
