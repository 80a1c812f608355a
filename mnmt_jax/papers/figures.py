"""Figures of reproduced tables: our scores and published ones in the paper's axes.

The file of a figure has its axes, and a row its point:

    [figure]
    x_title = "layers with branches"
    y_title = "gain in BLEU"       # default: title of the column
    logarithmic = false            # x axis; default: false
    one_chart = false              # all columns in one chart; default: one for each
    ratio = ["table10", "table11"] # a column of a direction is a point; x is the ratio of these
                                   # tables' numbers for its target language; instead of point.x
    table = "table3"               # table of the paper that prints scores of some points
    [figure.columns]               # columns here -> columns there, whose mean they are; {corpus} is
                                   # the row's corpus
    "supervised.bleu" = ["ted19.en_to_x.bleu", "ted19.x_to_en.bleu"]

    [[rows]]
    point.x = 3                    # default: not drawn, only compared with
    point.series = "TDO"
    point.panel = "TED-19"         # default: one panel
    point.relative_to = "TDO"      # row of which the relative change is drawn; default: the score
    point.printed = "TED-19: TDO"  # row of `table`
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from mnmt_jax.errors import UserError, suggest
from mnmt_jax.pages.svg_points import Point, Series
from mnmt_jax.papers.cells import Cell
from mnmt_jax.papers.reproduction import Reproduction
from mnmt_jax.papers.tables import Column, Number, Paper, Row, Table

_FIELDS = ("x_title", "y_title", "logarithmic", "one_chart", "ratio", "table", "columns")
_POINT_FIELDS = ("x", "series", "panel", "relative_to", "printed")


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart of a figure.

    Attributes:
        title: title; empty if the figure has one chart.
        x_title: title of the x axis.
        y_title: title of the y axis.
        logarithmic: whether the x axis is logarithmic.
        series: its series, with at least one value in all.
    """

    title: str
    x_title: str
    y_title: str
    logarithmic: bool
    series: tuple[Series, ...]


def charts_of(paper: Paper, reproduction: Reproduction) -> tuple[Chart, ...]:
    """Return the charts of a figure that have values; none for a table.

    Args:
        paper: the paper.
        reproduction: published and our numbers.

    Raises:
        UserError: naming the table, row and field that is wrong.
    """
    table = reproduction.table
    check_figure(paper, table)
    if not table.figure:
        return ()
    if "ratio" in table.figure:
        return _language_charts(paper, reproduction)
    panels = list(dict.fromkeys(_panel(row) for row in _drawn(table)))
    groups = [table.columns] if table.figure.get("one_chart") else [(c,) for c in table.columns]
    charts = [_chart(paper, reproduction, panel, columns) for panel in panels for columns in groups]
    return tuple(chart for chart in charts if chart.series)


def check_figure(paper: Paper, table: Table) -> None:
    """Check the fields of a figure and of the points of its rows.

    Raises:
        UserError: naming the table, row and field that is wrong.
    """
    place = table.full_name
    if unknown := [name for name in table.figure if name not in _FIELDS]:
        hint = suggest(unknown[0], _FIELDS)
        raise UserError(f"{place}: figure has an unknown field '{unknown[0]}'; {hint}")
    if table.figure and not table.figure.get("x_title"):
        raise UserError(f"{place}: figure has no 'x_title'")
    names = [row.name for row in table.rows]
    for row in table.rows:
        point = row.facts.get("point", {})
        if point and not table.figure:
            raise UserError(f"{place}: row '{row.name}' has a point; the table has no 'figure'")
        if unknown := [name for name in point if name not in _POINT_FIELDS]:
            hint = suggest(unknown[0], _POINT_FIELDS)
            raise UserError(
                f"{place}: row '{row.name}': unknown field 'point.{unknown[0]}'; {hint}"
            )
        if (other := point.get("relative_to")) and other not in names:
            raise UserError(f"{place}: row '{row.name}': relative_to '{other}' is no row")
        if point.get("printed"):
            _printed_row(paper, table, row)


def _language_charts(paper: Paper, reproduction: Reproduction) -> tuple[Chart, ...]:
    """Return the chart whose points are columns, at a ratio of their target language."""
    table = reproduction.table
    series = []
    for row in table.rows:
        label = row.facts.get("point", {}).get("series", "")
        points = [
            dataclasses.replace(
                _point(paper, reproduction, row, column, _language_ratio(paper, table, column)),
                label=column.title,
            )
            for column in table.columns
            if "-" in column.group
        ]
        if label and any(point.values for point in points):
            ordered = sorted(points, key=lambda point: point.x)
            series.append(Series(label, tuple(ordered), joined=False))
    if not series:
        return ()
    axes = str(table.figure["x_title"]), str(table.figure.get("y_title", table.columns[0].title))
    return (Chart("", *axes, bool(table.figure.get("logarithmic")), tuple(series)),)


def _language_ratio(paper: Paper, table: Table, column: Column) -> float:
    """Return the ratio of two tables' numbers for the target language of a column.

    Raises:
        UserError: if a table has no number of the language.
    """
    code = column.group.rpartition("-")[2]
    numbers = []
    for name in table.figure["ratio"]:
        rows = [row for row in paper.tables[name].rows if row.name == code and row.published]
        if not rows:
            place = table.full_name
            raise UserError(f"{place}: figure.ratio: {name} has no number of '{code}'")
        numbers.append(float(next(iter(rows[0].published.values()))))
    return numbers[0] / numbers[1]


def _drawn(table: Table) -> list[Row]:
    """Return the rows with a place on the x axis; others are only compared with."""
    return [row for row in table.rows if "x" in row.facts.get("point", {})]


def _panel(row: Row) -> str:
    return str(row.facts["point"].get("panel", ""))


def _chart(
    paper: Paper, reproduction: Reproduction, panel: str, columns: Sequence[Column]
) -> Chart:
    table = reproduction.table
    relative = any("relative_to" in row.facts["point"] for row in _drawn(table))
    several = len(columns) > 1  # their titles are in the legend
    y_title = str(table.figure.get("y_title", columns[0].title))
    if relative:
        y_title = "relative change, %" if several else f"relative change of {y_title}, %"
    return Chart(
        title=panel,
        x_title=str(table.figure["x_title"]),
        y_title=y_title,
        logarithmic=bool(table.figure.get("logarithmic")),
        series=tuple(
            series
            for column in columns
            for series in _series(paper, reproduction, panel, column, with_title=several)
        ),
    )


def _series(
    paper: Paper, reproduction: Reproduction, panel: str, column: Column, *, with_title: bool
) -> Iterator[Series]:
    """Yield the series of a panel with values in a column."""
    points: dict[str, list[Point]] = {}
    for row in _drawn(reproduction.table):
        if _panel(row) != panel:
            continue
        point = _point(paper, reproduction, row, column, float(row.facts["point"]["x"]))
        if point.values:
            label = str(row.facts["point"].get("series", ""))
            parts = [label, column.title] if with_title else [label or column.title]
            points.setdefault(", ".join(filter(None, parts)), []).append(point)
    for label, unsorted in points.items():
        yield Series(label, tuple(sorted(unsorted, key=lambda point: point.x)))


def _point(paper: Paper, reproduction: Reproduction, row: Row, column: Column, x: float) -> Point:
    """Return the scores of a row, or their relative changes in percent."""
    table, facts = reproduction.table, row.facts["point"]
    cell = _cell(paper, reproduction, row, column)
    ours, published = _values(cell)
    interval = cell.interval
    if name := facts.get("relative_to"):
        (base,) = [other for other in table.rows if other.name == name]
        our_base, published_base = _values(_cell(paper, reproduction, base, column))
        ours = _relative(ours, our_base)
        published = _relative(published, published_base)
        interval = None  # the base has an uncertainty of its own
    return Point(x, ours, interval if ours is not None else None, published)


def _values(cell: Cell) -> tuple[float | None, float | None]:
    ours = None if cell.ours is None else cell.ours.mean
    return ours, None if cell.published is None else float(cell.published)


def _relative(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else 100 * (value / base - 1)


def _cell(paper: Paper, reproduction: Reproduction, row: Row, column: Column) -> Cell:
    """Return the cell of a row, with a published number of another table if it has none."""
    cell = reproduction.cells.get((row.name, column.key), Cell(None, None))
    if cell.published is not None:
        return cell
    number = _printed_number(paper, reproduction.table, row, column.key)
    if number is None and column.metric == "bleu_gain":
        number = _printed_gain(paper, reproduction.table, row, column)
    return dataclasses.replace(cell, published=number)


def _printed_number(paper: Paper, table: Table, row: Row, key: str) -> Decimal | None:
    """Return the mean of the columns of another table that a column stands for; None if missing."""
    printed = _printed_row(paper, table, row)
    columns: Mapping[str, Sequence[str]] = table.figure.get("columns", {})
    keys = [
        name.replace("{corpus}", row.facts.get("corpus", "")) for name in columns.get(key, [key])
    ]
    numbers = [Decimal(printed[name]) for name in keys if name in printed]
    return statistics.mean(numbers) if numbers and len(numbers) == len(keys) else None


def _printed_gain(paper: Paper, table: Table, row: Row, column: Column) -> Decimal | None:
    """Return a gain from another table's scores of a row, and of that which it compares with."""
    key = column.key.removesuffix("_gain")
    base = {item.name: item for item in table.rows}.get(row.facts.get("compared_with", ""))
    if base is None:
        return None
    score, base_score = (_printed_number(paper, table, item, key) for item in (row, base))
    return None if score is None or base_score is None else score - base_score


def _printed_row(paper: Paper, table: Table, row: Row) -> Mapping[str, Number]:
    """Return the numbers that another table prints for a row; empty if none does.

    Raises:
        UserError: if the file names a table or row that there is not.
    """
    name = row.facts.get("point", {}).get("printed")
    if not name:
        return {}
    place, source = table.full_name, table.figure.get("table", "")
    if source not in paper.tables:
        raise UserError(f"{place}: figure: no table '{source}' of this paper")
    for other in paper.tables[source].rows:
        if other.name == name:
            return other.published
    raise UserError(f"{place}: row '{row.name}': {source} has no row '{name}'")
