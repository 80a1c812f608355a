"""Cells of reproduced tables as text: numbers, differences and intervals."""

from __future__ import annotations

from mnmt_jax.papers.cells import Cell
from mnmt_jax.papers.tables import EMPTY

INTERVAL_LEGEND = (
    "Intervals: with one seed, the 95 % interval by bootstrap over the test sentences (1,000 "
    "samples); with several, the range over seeds. COMET and BERTScore have none for one seed."
)
_LEAST_COUNT = 10_000


def published_text(cell: Cell | None) -> str:
    """Return the published number as printed, or a dash."""
    return EMPTY if cell is None or cell.published is None else f"{cell.published:,}"


def ours_text(cell: Cell | None) -> str:
    """Return our mean over seeds, or a dash."""
    return EMPTY if cell is None or cell.ours is None else format_number(cell.ours.mean)


def difference_text(cell: Cell | None) -> str:
    """Return our mean minus the published number, with its sign, or a dash."""
    difference = None if cell is None else cell.difference
    return EMPTY if difference is None else format_number(difference, "+")


def interval_text(cell: Cell | None) -> str:
    """Return the ends of the interval or range, or a dash."""
    if cell is None or cell.interval is None:
        return EMPTY
    low, high = map(format_number, cell.interval)
    return f"{low} to {high}"


def interval_kind(cell: Cell | None) -> str:
    """Return what the interval is: `95 %, sentences`, `range of N seeds`, or a dash."""
    if cell is None or cell.ours is None or cell.interval is None:
        return EMPTY
    seeds = cell.ours.count
    return f"range of {seeds} seeds" if seeds > 1 else "95 %, sentences"


def format_number(value: float, sign: str = "") -> str:
    """Return a score with two decimals, or a count without."""
    return f"{value:{sign},.0f}" if abs(value) >= _LEAST_COUNT else f"{value:{sign}.2f}"
