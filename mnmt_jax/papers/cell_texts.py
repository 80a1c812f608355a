"""Cells of reproduced tables as text: numbers, differences and intervals."""

from __future__ import annotations

from decimal import Decimal

from mnmt_jax.pages.markdown_tables import format_difference
from mnmt_jax.papers.cells import Cell
from mnmt_jax.papers.tables import EMPTY, number_text

INTERVAL_LEGEND = (
    "Intervals: with one seed, the 95 % interval by bootstrap over the test sentences (1,000 "
    "samples); with several, the range over seeds."
)
_LEAST_COUNT = 10_000
_LEAST_DECIMALS = 2


def published_text(cell: Cell | None) -> str:
    """Return the published number as printed, or a dash."""
    return number_text(None if cell is None else cell.published)


def ours_text(cell: Cell | None) -> str:
    """Return our mean over seeds, or a dash."""
    if cell is None or cell.ours is None:
        return EMPTY
    return format_number(cell.ours.mean, decimals=_decimals(cell))


def difference_text(cell: Cell | None) -> str:
    """Return our mean minus the published number, with its sign, or a dash."""
    difference = None if cell is None else cell.difference
    if cell is None or difference is None:
        return EMPTY
    return format_difference(difference, _shown_decimals(difference, _decimals(cell)))


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


def format_number(value: float, *, decimals: int = _LEAST_DECIMALS) -> str:
    """Return a score with decimals, or a count without."""
    return f"{value:z,.{_shown_decimals(value, decimals)}f}"


def _shown_decimals(value: float, decimals: int) -> int:
    return 0 if abs(value) >= _LEAST_COUNT else decimals


def _decimals(cell: Cell) -> int:
    """Return the decimals for our number: two, or as many as the published one; none for counts."""
    if isinstance(cell.published, int) and cell.ours and cell.ours.mean.is_integer():
        return 0
    exponent = Decimal(cell.published or 0).as_tuple().exponent
    return max(_LEAST_DECIMALS, -exponent if isinstance(exponent, int) else 0)
