"""Result pages of reproduced tables: Markdown, LaTeX and HTML."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mnmt_jax.evaluation.html_elements import Html, tag
from mnmt_jax.evaluation.html_page import generator_mark, html_page, section, text_table
from mnmt_jax.evaluation.markdown_tables import markdown_table
from mnmt_jax.evaluation.result import RunResult
from mnmt_jax.files.atomic_write import write_text
from mnmt_jax.papers.cells import Cell, Reproduction
from mnmt_jax.papers.tables import Column, Paper
from mnmt_jax.papers.workflow import Scale

TINY_NOTICE = (
    "Made with --scale tiny, by tiny models on made text: our numbers mean nothing. They show that "
    "every step runs."
)
_EMPTY = "–"
_CONDITIONS_TITLE = "Conditions of our runs"
_CONDITIONS = ("row", "corpus", "updates", "parameters", "sentences", "decoding")
_LEAST_COUNT = 10_000
_LATEX = str.maketrans(
    {"%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "→": r"$\rightarrow$", "–": "--"}
)


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
    for suffix, page in (("md", markdown_page), ("tex", latex_page), ("html", html_report)):
        write_text(folder / f"{name}.{suffix}", page(paper, reproduction, scale))
    return folder / f"{name}.html"


def markdown_page(paper: Paper, reproduction: Reproduction, scale: Scale) -> str:
    """Return the Markdown page: one line for each row and column of numbers."""
    table = reproduction.table
    lines = [
        f"# {table.number} of {paper.title}",
        "",
        f"{table.caption}.",
        "",
    ]
    if scale.miniature:
        lines += [f"**{TINY_NOTICE}**", ""]
    header = ["row", "column", "published", "ours", "range", "seeds", "difference"]
    lines += [markdown_table(header, list(_long_rows(reproduction))).rstrip(), ""]
    if conditions := _conditions(reproduction):
        shown = markdown_table(_CONDITIONS, conditions).rstrip()
        lines += [f"## {_CONDITIONS_TITLE}", "", shown, ""]
    lines += _notes(reproduction)
    return "\n".join(lines)


def latex_page(paper: Paper, reproduction: Reproduction, scale: Scale) -> str:
    """Return the LaTeX table (booktabs): published above ours in every row."""
    table = reproduction.table
    caption = f"{table.number} of {paper.title}: {table.title}. First line: published."
    if scale.miniature:
        caption = f"{TINY_NOTICE} {caption}"
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        r"\begin{tabular}{l" + "r" * len(table.columns) + "}",
        r"\toprule",
        _latex_row("system", *(column.title for column in table.columns)),
        r"\midrule",
    ]
    for row in table.rows:
        cells = [reproduction.cells.get((row.name, column.key)) for column in table.columns]
        lines.append(_latex_row(row.name, *map(_published, cells)))
        if any(cell and cell.ours for cell in cells):
            lines.append(_latex_row(r"\quad ours", *map(_ours, cells)))
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{_latex(caption)}}}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def html_report(paper: Paper, reproduction: Reproduction, scale: Scale) -> str:
    """Return the HTML page: the table with published number, ours and difference in each cell."""
    table = reproduction.table
    head = tag("tr", tag("th", "system"), *(tag("th", column.title) for column in table.columns))
    body = [
        tag(
            "tr",
            tag("th", row.name, title=row.unavailable) if row.unavailable else tag("th", row.name),
            *(_html_cell(reproduction.cells.get((row.name, c.key)), c) for c in table.columns),
        )
        for row in table.rows
    ]
    title = f"{table.number}: {table.title}"
    sections: list[Html] = [tag("h1", title), tag("p", paper.title)]
    if scale.miniature:
        sections.append(tag("p", tag("strong", TINY_NOTICE)))
    published = tag("table", tag("thead", head), tag("tbody", body), class_="averages")
    grid = tag("div", published, class_="scroll")
    legend = "Each cell: ours (mean over seeds), the published number, and the difference."
    sections.append(section("Published and ours", tag("p", legend), grid))
    if conditions := _conditions(reproduction):
        sections.append(section(_CONDITIONS_TITLE, text_table(_CONDITIONS, conditions)))
    if notes := [*_unavailable(reproduction), *table.notes]:
        sections.append(section("Notes", tag("ul", *(tag("li", note) for note in notes))))
    return html_page(title, sections, generator=generator_mark("mnmt reproduce"))


def _html_cell(cell: Cell | None, column: Column) -> Html:
    if cell is None:
        return tag("td", _EMPTY)
    published = tag("small", f" {_published(cell)}")
    if cell.ours is None:
        return tag("td", published)
    difference = cell.difference
    shown = "" if difference is None else f" ({_format(difference, '+')})"
    return tag("td", tag("b", _ours(cell)), published, tag("small", shown), title=column.title)


def _long_rows(reproduction: Reproduction) -> Iterable[list[str]]:
    for row in reproduction.table.rows:
        for column in reproduction.table.columns:
            cell = reproduction.cells.get((row.name, column.key))
            if cell is None:
                continue
            ours = cell.ours
            spread = (
                f"{_format(ours.low)} to {_format(ours.high)}"
                if ours and ours.count > 1
                else _EMPTY
            )
            difference = _EMPTY if cell.difference is None else _format(cell.difference, "+")
            seeds = str(ours.count) if ours else _EMPTY
            yield [row.name, column.title, _published(cell), _ours(cell), spread, seeds, difference]


def _conditions(reproduction: Reproduction) -> list[list[str]]:
    """Return what determines our numbers: updates, parameters, sentences and decoding."""
    lines = []
    for row, by_corpus in reproduction.results.items():
        for results in by_corpus.values():
            lines.append([row, *_condition(results[0])])
    return lines


def _condition(result: RunResult) -> list[str]:
    parameters = _EMPTY if result.parameters is None else f"{result.parameters:,}"
    step = _EMPTY if result.step is None else f"{result.step:,}"
    sentences = sum(item.sentences for item in result.directions)
    decoding = ", ".join(f"{key} {value}" for key, value in result.decoding.items())
    return [result.task, step, parameters, f"{sentences:,}", decoding]


def _unavailable(reproduction: Reproduction) -> list[str]:
    rows = reproduction.table.rows
    return [f"{row.name}: {row.unavailable}." for row in rows if row.unavailable]


def _notes(reproduction: Reproduction) -> list[str]:
    notes = [*_unavailable(reproduction), *reproduction.table.notes]
    return ["## Notes", "", *(f"- {note}" for note in notes), ""] if notes else []


def _published(cell: Cell | None) -> str:
    return _EMPTY if cell is None or cell.published is None else f"{cell.published:,}"


def _ours(cell: Cell | None) -> str:
    return _EMPTY if cell is None or cell.ours is None else _format(cell.ours.mean)


def _format(value: float, sign: str = "") -> str:
    """Return a score with two decimals, or a count without."""
    return f"{value:{sign},.0f}" if abs(value) >= _LEAST_COUNT else f"{value:{sign}.2f}"


def _latex_row(*cells: str) -> str:
    return " & ".join(map(_latex, cells)) + r" \\"


def _latex(text: str) -> str:
    return text.translate(_LATEX)
