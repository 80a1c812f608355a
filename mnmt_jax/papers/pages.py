"""Result pages of reproduced tables: Markdown, LaTeX and HTML."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from mnmt_jax.evaluation.report import training_curves
from mnmt_jax.evaluation.result import RunResult
from mnmt_jax.evaluation.seed_statistics import explain_seeds, seed_table
from mnmt_jax.evaluation.significance_tables import seed_section
from mnmt_jax.files.atomic_write import write_text
from mnmt_jax.pages.html_elements import Html, tag
from mnmt_jax.pages.html_page import generator_mark, html_page, section, text_table
from mnmt_jax.pages.markdown_tables import markdown_table
from mnmt_jax.pages.svg_points import point_chart
from mnmt_jax.papers.cell_texts import (
    INTERVAL_LEGEND,
    difference_text,
    interval_kind,
    interval_text,
    ours_text,
    published_text,
)
from mnmt_jax.papers.cells import Cell
from mnmt_jax.papers.conditions import HEADER
from mnmt_jax.papers.figures import charts_of
from mnmt_jax.papers.latex_page import latex_page
from mnmt_jax.papers.reproduction import Reproduction
from mnmt_jax.papers.scales import Scale
from mnmt_jax.papers.seed_groups import seed_groups
from mnmt_jax.papers.tables import EMPTY, Column, Paper

_LEGEND = (
    "Each cell: ours (mean over seeds), the difference in parentheses, the interval, and the "
    f"published number. {INTERVAL_LEGEND}"
)
_CONDITIONS_TITLE = "Conditions of our runs"
_DIFFERENCES = (
    "What differs from the row's files at full scale, and from the number of training sentences "
    "that the paper states:"
)
_NO_DIFFERENCE = "nothing that is recorded."


def write_pages(paper: Paper, reproduction: Reproduction, scale: Scale, folder: Path) -> Path:
    """Write the pages of a reproduced table.

    Args:
        paper: its paper.
        reproduction: published and our numbers.
        scale: size of the reproduction.
        folder: folder for `NAME.md`, `NAME.tex` and `NAME.html`.

    Returns:
        The HTML page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = reproduction.table.name
    notice = scale.notice
    for suffix, page in (("md", markdown_page), ("tex", latex_page), ("html", html_report)):
        write_text(folder / f"{name}.{suffix}", page(paper, reproduction, notice))
    return folder / f"{name}.html"


def markdown_page(paper: Paper, reproduction: Reproduction, notice: str = "") -> str:
    """Return the Markdown page: one line for each row and column of numbers."""
    table = reproduction.table
    lines = [
        f"# {table.number} of {paper.title}",
        "",
        f"{table.caption}.",
        "",
    ]
    lines += [f"**{notice}**", ""] if notice else []
    if rows := list(_long_rows(reproduction)):
        header = ["row", "column", "published", "ours", "difference", "interval", "of"]
        lines += [markdown_table(header, rows).rstrip(), "", INTERVAL_LEGEND, ""]
    if any(cell.ours for cell in reproduction.cells.values()):
        lines += ["## Ours beside the published numbers", "", _markdown_grid(reproduction), ""]
    for title, groups, names in seed_groups(reproduction):
        lines += [f"## {title}", "", seed_table(groups, names), "", explain_seeds(groups), ""]
    for heading, links in _link_lists(reproduction).items():
        lines += [f"## {heading}", "", *(f"- [{title}]({page})" for title, page in links), ""]
    if reproduction.conditions:
        cells = [item.cells for item in reproduction.conditions]
        lines += [f"## {_CONDITIONS_TITLE}", "", markdown_table(HEADER, cells).rstrip(), ""]
        lines += [_DIFFERENCES, ""]
        lines += [*(f"- {text}" for text in _differences(reproduction)), ""]
    if notes := _notes(reproduction):
        lines += ["## Notes", "", *(f"- {note}" for note in notes), ""]
    return "\n".join(lines)


def _markdown_grid(reproduction: Reproduction) -> str:
    """Return the table of systems and columns: ours, the published number in parentheses."""
    table = reproduction.table
    rows = []
    for row in table.rows:
        cells = [reproduction.cells.get((row.name, column.key)) for column in table.columns]
        pairs = zip(map(ours_text, cells), map(published_text, cells), strict=True)
        rows.append([row.name, *(f"{ours} ({published})" for ours, published in pairs)])
    header = ["system: ours (published)", *(column.title for column in table.columns)]
    return markdown_table(header, rows).rstrip()


def html_report(paper: Paper, reproduction: Reproduction, notice: str = "") -> str:
    """Return the HTML page: figure, table, curves of training, conditions and notes."""
    table = reproduction.table
    title = f"{table.number}: {table.title}"
    sections: list[Html] = [tag("h1", title), tag("p", paper.title)]
    if notice:
        sections.append(tag("p", tag("strong", notice)))
    sections += _figure(paper, reproduction)
    if table.columns:
        sections.append(section("Published and ours", tag("p", _LEGEND), _html_table(reproduction)))
    for name, groups, names in seed_groups(reproduction):
        sections += seed_section(groups, names, name)
    sections += training_curves(_named_runs(reproduction))
    for heading, links in _link_lists(reproduction).items():
        items = (tag("li", tag("a", title, href=page)) for title, page in links)
        sections.append(section(heading, tag("ul", *items)))
    if reproduction.conditions:
        rows = text_table(HEADER, [item.cells for item in reproduction.conditions])
        differences = tag("ul", *(tag("li", text) for text in _differences(reproduction)))
        sections.append(section(_CONDITIONS_TITLE, rows, tag("p", _DIFFERENCES), differences))
    if notes := _notes(reproduction):
        sections.append(section("Notes", tag("ul", *(tag("li", note) for note in notes))))
    return html_page(title, sections, generator=generator_mark("mnmt reproduce"))


def _html_table(reproduction: Reproduction) -> Html:
    """Return the table of systems and columns."""
    table = reproduction.table
    head = tag("tr", tag("th", "system"), *(tag("th", column.title) for column in table.columns))
    body = [
        tag(
            "tr",
            tag("th", row.name, title=row.unavailable),
            *(_html_cell(reproduction.cells.get((row.name, c.key)), c) for c in table.columns),
        )
        for row in table.rows
    ]
    grid = tag("table", tag("thead", head), tag("tbody", body), class_="averages reproduced")
    return tag("div", grid, class_="scroll")


def _link_lists(reproduction: Reproduction) -> dict[str, list[tuple[str, str]]]:
    """Return headings of lists of links -> titles and pages, from the folder of the result page."""
    lists = {
        "Analyses": reproduction.analysis_pages,
        "Every direction, and translations": reproduction.reports,
    }
    return {
        heading: [(title, f"../../{page}") for title, page in pages.items()]
        for heading, pages in lists.items()
        if pages
    }


def _figure(paper: Paper, reproduction: Reproduction) -> list[Html]:
    """Return the section with the charts of a figure; none if there is nothing to draw."""
    drawings = [
        point_chart(
            chart.title or reproduction.table.title,
            chart.series,
            x_title=chart.x_title,
            y_title=chart.y_title,
            logarithmic=chart.logarithmic,
        )
        for chart in charts_of(paper, reproduction)
    ]
    if not drawings:
        return []
    explanation = "Filled circles are ours, open squares are printed in the paper or its tables."
    charts = tag("div", drawings, class_="charts")
    return [section("Figure", tag("p", explanation, class_="muted"), charts)]


def _named_runs(reproduction: Reproduction) -> list[RunResult]:
    """Return the evaluations of each training once, named by row, corpus and seed."""
    runs: dict[str, RunResult] = {}
    for (row, corpus), evaluations in reproduction.evaluations.items():
        for number, evaluation in enumerate(evaluations, start=1):
            seed = evaluation.result.config.get("train", {}).get("seed", number)
            parts = (row, corpus, f"seed {seed}" if len(evaluations) > 1 else "")
            name = ", ".join(filter(None, parts))
            curves = str(evaluation.result.curves)
            runs.setdefault(curves, dataclasses.replace(evaluation.result, name=name))
    return list(runs.values())


def _html_cell(cell: Cell | None, column: Column) -> Html:
    if cell is None:
        return tag("td", EMPTY)
    lines = []
    if cell.ours is not None:
        shown = "" if cell.difference is None else f" ({difference_text(cell)})"
        lines.append(tag("div", tag("b", ours_text(cell)), shown))
    if cell.interval is not None:
        interval = tag("small", interval_text(cell), title=interval_kind(cell), class_="muted")
        lines.append(tag("div", interval))
    if cell.published is not None:
        lines.append(tag("div", tag("small", f"published {published_text(cell)}")))
    return tag("td", lines, title=column.title)


def _long_rows(reproduction: Reproduction) -> Iterable[list[str]]:
    for row in reproduction.table.rows:
        for column in reproduction.table.columns:
            cell = reproduction.cells.get((row.name, column.key))
            if cell is not None:
                texts = (published_text, ours_text, difference_text, interval_text, interval_kind)
                yield [row.name, column.title, *(text(cell) for text in texts)]


def _differences(reproduction: Reproduction) -> list[str]:
    """Return a sentence for each row and corpus whose conditions differ, or that none does."""
    texts = [item.difference for item in reproduction.conditions if item.difference]
    return texts or [_NO_DIFFERENCE]


def _unavailable(reproduction: Reproduction) -> list[str]:
    rows = reproduction.table.rows
    filled = {name for name, _ in reproduction.evaluations}
    return [
        f"{row.name}: {'translations from files' if row.name in filled else row.unavailable}."
        for row in rows
        if row.unavailable
    ]


def _notes(reproduction: Reproduction) -> list[str]:
    return [*_unavailable(reproduction), *reproduction.notes, *reproduction.table.notes]
