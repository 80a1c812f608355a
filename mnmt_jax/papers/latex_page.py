"""LaTeX pages of reproduced tables."""

from __future__ import annotations

import re

from mnmt_jax.papers.cell_texts import (
    INTERVAL_LEGEND,
    difference_text,
    interval_text,
    ours_text,
    published_text,
)
from mnmt_jax.papers.cells import Reproduction
from mnmt_jax.papers.tables import Paper

_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "%": r"\%",
        "_": r"\_",
        "&": r"\&",
        "#": r"\#",
        "$": r"\$",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "→": r"$\rightarrow$",
        "←": r"$\leftarrow$",
        "≥": r"$\geq$",
        "×": r"$\times$",
        "–": "--",
        "<": r"$<$",
        ">": r"$>$",
    }
)
_MINUS = re.compile(r"(?<![\w-])-(?=\d)")
_WIDE = 5  # columns from which the table is shrunk to the width of the text
_OUR_LINES = (("ours", ours_text), ("difference", difference_text), ("interval", interval_text))


def latex_page(paper: Paper, reproduction: Reproduction, notice: str) -> str:
    """Return the LaTeX table (booktabs): published numbers, and below them ours.

    Args:
        paper: the paper.
        reproduction: published and our numbers.
        notice: sentence at the start of the caption; may be empty.
    """
    table = reproduction.table
    caption = f"{table.number} of {paper.title}: {table.title}. First line: published."
    caption = " ".join(filter(None, [notice, caption, INTERVAL_LEGEND]))
    wide = len(table.columns) >= _WIDE
    lines = [
        r"% \usepackage{booktabs,graphicx}" if wide else r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        *([r"\resizebox{\textwidth}{!}{%"] if wide else []),
        r"\begin{tabular}{l" + "r" * len(table.columns) + "}",
        r"\toprule",
        _line("system", *(column.title for column in table.columns)),
        r"\midrule",
        *_body(reproduction),
        r"\bottomrule",
        r"\end{tabular}" + ("}" if wide else ""),
        rf"\caption{{{escape(caption)}}}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def _body(reproduction: Reproduction) -> list[str]:
    """Return a line for each row, and further lines for those with scores of ours."""
    table, lines = reproduction.table, []
    for row in table.rows:
        cells = [reproduction.cells.get((row.name, column.key)) for column in table.columns]
        lines.append(_line(row.name, *map(published_text, cells)))
        if any(cell and cell.ours for cell in cells):
            lines += [r"\quad " + _line(name, *map(text, cells)) for name, text in _OUR_LINES]
    return lines


def _line(*cells: str) -> str:
    return " & ".join(map(escape, cells)) + r" \\"


def escape(text: str) -> str:
    """Return text with LaTeX's special characters escaped, and minus signs as such."""
    escaped = "-{}-".join(part.translate(_ESCAPES) for part in text.split("--"))
    return _MINUS.sub("$-$", escaped)
