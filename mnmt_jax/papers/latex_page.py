"""LaTeX pages of reproduced tables."""

from __future__ import annotations

from mnmt_jax.papers.cell_texts import (
    INTERVAL_LEGEND,
    difference_text,
    interval_text,
    ours_text,
    published_text,
)
from mnmt_jax.papers.figures import charts_of
from mnmt_jax.papers.latex_figure import escape, latex_figure
from mnmt_jax.papers.reproduction import Reproduction
from mnmt_jax.papers.tables import EMPTY, Paper

# Shrink a table to the width of the text, and to most of its height.
_FIT_WIDTH = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"
_FIT_HEIGHT = (
    r"\resizebox*{!}{\ifdim\totalheight>0.8\textheight 0.8\textheight\else\totalheight\fi}{%"
)
_OUR_LINES = (("ours", ours_text), ("difference", difference_text), ("interval", interval_text))


def latex_page(paper: Paper, reproduction: Reproduction, notice: str) -> str:
    """Return the LaTeX table (booktabs): published numbers, and below them ours.

    Args:
        paper: the paper.
        reproduction: published and our numbers.
        notice: sentence at the start of the caption; may be empty.
    """
    table = reproduction.table
    title = f"{table.number} of {paper.title}: {table.title}."
    caption = " ".join(filter(None, [notice, title, "First line: published.", INTERVAL_LEGEND]))
    lines = [
        r"% \usepackage{booktabs,graphicx}",
        r"\begin{table}",
        r"\centering",
        _FIT_HEIGHT,
        _FIT_WIDTH,
        r"\begin{tabular}{l" + "r" * len(table.columns) + "}",
        r"\toprule",
        _line("system", *(column.title for column in table.columns)),
        r"\midrule",
        *_body(reproduction),
        r"\bottomrule",
        r"\end{tabular}}}",
        rf"\caption{{{escape(caption)}}}",
        r"\end{table}",
        *latex_figure(charts_of(paper, reproduction), " ".join(filter(None, [notice, title]))),
        "",
    ]
    return "\n".join(lines)


def _body(reproduction: Reproduction) -> list[str]:
    """Return a line for each row, and further lines for those with scores of ours."""
    table, lines = reproduction.table, []
    for row in table.rows:
        cells = [reproduction.cells.get((row.name, column.key)) for column in table.columns]
        lines.append(_line(row.name, *map(published_text, cells)))
        for name, text in _OUR_LINES:
            texts = list(map(text, cells))
            if set(texts) - {EMPTY}:
                lines.append(r"\quad " + _line(name, *texts))
    return lines


def _line(*cells: str) -> str:
    return " & ".join(map(escape, cells)) + r" \\"
