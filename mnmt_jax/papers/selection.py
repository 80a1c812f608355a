"""Selection of the rows of a table that a command runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from mnmt_jax.errors import UserError, suggest
from mnmt_jax.papers.counts import counted_splits
from mnmt_jax.papers.experiments import experiments
from mnmt_jax.papers.tables import Paper, Row, Table


def parse_hypotheses(table: Table, texts: Sequence[str]) -> dict[str, Path]:
    """Parse `ROW=FOLDER` flags; return the folder of each row.

    Args:
        table: the table.
        texts: values of `--hypotheses`.

    Raises:
        UserError: if a text has another form, or the table has no such row, or one is named twice.
    """
    folders: dict[str, Path] = {}
    for text in texts:
        names = [row.name for row in table.rows if text.startswith(f"{row.name}=")]
        if not names and "=" in text:
            name = text.rpartition("=")[0]
            hint = suggest(name, [row.name for row in table.rows])
            raise UserError(
                f"--hypotheses: no row '{name}'; {hint}'mnmt papers {table.full_name}' lists them"
            )
        if not names:
            raise UserError(
                f"--hypotheses: '{text}' must be ROW=FOLDER; 'mnmt papers "
                f"{table.full_name}' lists the rows"
            )
        name = max(names, key=len)
        if name in folders:
            raise UserError(f"--hypotheses: '{name}' is named twice; name one folder")
        folders[name] = Path(text.removeprefix(f"{name}="))
    return folders


def select_rows(
    paper: Paper, table: Table, numbers: str | None, filled: Collection[str] = ()
) -> tuple[Row, ...]:
    """Return the rows to run.

    Args:
        paper: paper of the table.
        table: the table.
        numbers: comma-separated numbers of rows, from 1; None for all rows that can be run.
        filled: names of rows whose translations are files.

    Raises:
        UserError: if a number is not of a row, a listed row cannot be run, no row can be, or a
            filled row is not listed.
    """

    def is_runnable(row: Row) -> bool:
        return row.name in filled or bool(experiments(paper, table, row))

    if numbers is None:
        rows = tuple(row for row in table.rows if is_runnable(row))
        if not rows and not table.analyses and not counted_splits(paper, table):
            reason = table.no_numbers or next(
                (r.unavailable for r in table.rows if r.unavailable), ""
            )
            raise UserError(
                f"{table.full_name}: no row of this table can be run"
                f"{f' ({reason})' if reason else ''}"
            )
        return rows
    chosen = {row.name: row for word in numbers.split(",") for row in _rows(table, word)}
    rows = tuple(chosen.values())
    for row in rows:
        if not is_runnable(row):
            raise UserError(f"--rows: '{row.name}' cannot be run: {row.unavailable or 'no model'}")
    for number, row in enumerate(table.rows, start=1):
        if row.name in filled and row.name not in chosen:
            raise UserError(
                f"--hypotheses: '{row.name}' is row {number}, which --rows={numbers} leaves out; "
                "add it, or leave the flag out"
            )
    return rows


def _rows(table: Table, word: str) -> Sequence[Row]:
    """Return the rows of `N` or `N-M`."""
    if not table.rows:
        raise UserError(f"--rows: {table.full_name} has no rows; leave it out")
    first, dash, last = word.partition("-")
    start = _row_number(table, first)
    end = _row_number(table, last) if dash else start
    if end < start:
        raise UserError(f"--rows: '{word}' ends before it starts")
    return table.rows[start - 1 : end]


def _row_number(table: Table, word: str) -> int:
    if not word.strip().isdecimal() or not 1 <= int(word) <= len(table.rows):
        raise UserError(
            f"--rows: '{word}' is not a number from 1 to {len(table.rows)}; 'mnmt papers "
            f"{table.full_name}' lists the rows"
        )
    return int(word)
