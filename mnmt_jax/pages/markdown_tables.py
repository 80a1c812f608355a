"""Markdown tables and the numbers in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table with padded columns, right-aligned except the first."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        label, *values = (
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "| " + " | ".join([label, *values]) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(cells[0]), "| " + " | ".join(rule) + " |", *map(line, cells[1:])])


def format_score(value: float | None) -> str:
    """Format a percentage with one decimal; None is a dash."""
    return "–" if value is None else f"{value:z.1f}"


def format_difference(value: float, decimals: int = 1) -> str:
    """Format a difference with its sign, e.g. `-1,200.5`; one that rounds to zero is `+0.0`."""
    return f"{value:+z,.{decimals}f}"


def format_count(value: float | None) -> str:
    """Format an integer with thousands separators; None is a dash."""
    return "–" if value is None else f"{value:,.0f}"


def format_half_width(interval: tuple[float, float] | None) -> str:
    """Format half the width of an interval, e.g. ` ±0.8`; "" for None."""
    return "" if interval is None else f" ±{(interval[1] - interval[0]) / 2:.1f}"
