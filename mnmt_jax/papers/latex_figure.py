"""LaTeX figures (pgfplots) of reproduced tables, and LaTeX's special characters."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mnmt_jax.pages.svg_points import MAX_TICKS
from mnmt_jax.papers.figures import Chart

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
_COLOURS = ("blue", "red", "teal", "orange", "violet", "brown", "black")


def escape(text: str) -> str:
    """Return text with LaTeX's special characters escaped, and minus signs as such."""
    escaped = "-{}-".join(part.translate(_ESCAPES) for part in text.split("--"))
    return _MINUS.sub("$-$", escaped)


def latex_figure(charts: Sequence[Chart], caption: str) -> list[str]:
    """Return the lines of a figure.

    Args:
        charts: its charts; without any there is no figure.
        caption: caption.
    """
    if not charts:
        return []
    return [
        "",
        r"% \usepackage{pgfplots}",
        r"\begin{figure}",
        r"\centering",
        *(line for chart in charts for line in _axis(chart)),
        rf"\caption{{{escape(caption)} Filled circles are ours, open squares are printed.}}",
        r"\end{figure}",
    ]


def _axis(chart: Chart) -> list[str]:
    """Return a picture of a chart's series."""
    mode = "semilogxaxis" if chart.logarithmic else "axis"
    ticks = sorted({point.x for series in chart.series for point in series.points})
    options = [
        f"title={{{escape(chart.title)}}}",
        f"xlabel={{{escape(chart.x_title)}}}",
        f"ylabel={{{escape(chart.y_title)}}}",
        *([f"xtick={{{','.join(f'{x:g}' for x in ticks)}}}"] if len(ticks) <= MAX_TICKS else []),
        *(["log ticks with fixed point"] if chart.logarithmic else []),
        r"legend style={font=\scriptsize, at={(0.5,-0.25)}, anchor=north}",
        "legend cell align=left",
        "height=0.35" + r"\textheight",
    ]
    lines = [r"\begin{tikzpicture}", rf"\begin{{{mode}}}[{', '.join(options)}]"]
    for number, series in enumerate(chart.series):
        colour = _COLOURS[number % len(_COLOURS)]
        ours = [(point.x, point.y) for point in series.ours]
        published = [(point.x, point.published) for point in series.published]
        style = colour if series.joined else f"{colour}, only marks"
        lines += _plot(f"{series.label}, ours", f"{style}, mark=*", ours)
        lines += _plot(f"{series.label}, published", f"{style}, dashed, mark=square", published)
    return [*lines, rf"\end{{{mode}}}", r"\end{tikzpicture}"]


def _plot(label: str, style: str, points: Sequence[tuple[float, float | None]]) -> list[str]:
    if not points:
        return []
    places = " ".join(f"({x:g},{y:.4g})" for x, y in points)
    return [rf"\addplot[{style}] coordinates {{{places}}};", rf"\addlegendentry{{{escape(label)}}}"]
