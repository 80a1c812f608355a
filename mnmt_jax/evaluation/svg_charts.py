"""Line and bar charts as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mnmt_jax.evaluation.html_elements import Html, breakable, tag
from mnmt_jax.evaluation.result import Curve
from mnmt_jax.evaluation.style_sheet import colour_class

_WIDTH, _HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 10, 48
_TICKS = 5
_ROW, _LABEL, _VALUE = 20, 60, 70  # of a bar: its height, room for its label and its value


@dataclass(frozen=True)
class Line:
    """One curve of a chart.

    Attributes:
        label: for the legend and for those who cannot see the chart.
        points: (x, y), x rising.
        run: number of the run, which gives the colour.
        dashed: draw dashes.
    """

    label: str
    points: Curve
    run: int
    dashed: bool = False


def line_chart(title: str, lines: Sequence[Line], *, x_title: str, y_title: str) -> Html:
    """Draw curves over common axes; the legend gives each curve's last value as text.

    Args:
        title: caption.
        lines: curves, each with at least one point.
        x_title: what x is.
        y_title: what y is, with its unit.
    """
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    whole = all(float(x).is_integer() for x in xs)
    x_ticks = ticks(min(0.0, *xs), max(xs), least=1.0 if whole else 0.0)
    y_ticks = ticks(min(ys), max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = []
    for y in y_ticks:
        left, height = place(x_ticks[0], y)
        parts.append(
            tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=_n(height), y2=_n(height), class_="grid")
        )
        parts.append(tag("text", _number(y), x=_n(left - 7), y=_n(height + 4), text_anchor="end"))
    for x in x_ticks:
        across, floor = place(x, y_ticks[0])
        anchor = "end" if x == x_ticks[-1] else "middle"
        parts.append(tag("text", _number(x), x=_n(across), y=_n(floor + 18), text_anchor=anchor))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(tag("text", x_title, x=_n(middle), y=_HEIGHT - 6, text_anchor="middle"))
    for line in lines:
        places = [place(*point) for point in line.points]
        path = "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in places)
        path += "h0" if len(places) == 1 else ""  # a dot, by the round cap
        style = "dashed" if line.dashed else ""
        parts.append(
            tag(
                "path", tag("title", line.label), d=path, class_=f"{colour_class(line.run)} {style}"
            )
        )
    drawing = tag(
        "svg",
        parts,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=f"{title}: {y_title} by {x_title}; last values are in the legend",
    )
    caption = tag("figcaption", title, tag("span", f" ({y_title})", class_="muted"))
    return tag("figure", caption, drawing, _legend(lines))


def bar_chart(title: str, bars: Sequence[tuple[str, float]], *, x_title: str) -> Html:
    """Draw a bar per label from 0 on, one below the other, each with its value as text.

    Args:
        title: caption.
        bars: label and value, at least one.
        x_title: what the values are.
    """
    values = [value for _, value in bars]
    low, high = min(0.0, *values), max(0.0, *values)
    width = _WIDTH - _LABEL - _VALUE
    unit = width / ((high - low) or 1.0)
    zero = _LABEL - low * unit
    parts = []
    for number, (label, value) in enumerate(bars):
        top = _ROW * number
        start, length = min(zero, zero + value * unit), abs(value * unit)
        text = _n(top + 0.72 * _ROW)
        parts += [
            tag("text", label, x=_LABEL - 8, y=text, text_anchor="end"),
            tag("rect", x=_n(start), y=_n(top + 3), width=_n(length), height=_ROW - 6),
            tag("text", f"{value:.4f}", x=_WIDTH, y=text, text_anchor="end"),
        ]
    drawing = tag(
        "svg",
        parts,
        viewBox=f"0 0 {_WIDTH} {_ROW * len(bars)}",
        role="img",
        aria_label=f"{title}: {x_title} by label; the values are text",
        class_="run-0",
    )
    caption = tag("figcaption", title, tag("span", f" ({x_title})", class_="muted"))
    return tag("figure", caption, drawing)


def ticks(low: float, high: float, least: float = 0.0) -> list[float]:
    """Return round numbers, evenly spaced, that enclose the range; at least two.

    Args:
        low: end of the range.
        high: the other end; equal ends are widened.
        least: distance between two numbers, e.g. 1 for layers.
    """
    if high <= low:
        low, high = (high - 0.1 * abs(high), high) if high else (0.0, 1.0)
    raw = (high - low) / _TICKS
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(size * magnitude for size in (1, 2, 2.5, 5, 10) if size * magnitude >= raw)
    step = max(step, least)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


def _legend(lines: Sequence[Line]) -> Html:
    items = []
    for line in lines:
        stroke = tag("path", d="M0 6H26", class_="dashed" if line.dashed else "")
        swatch = tag("svg", stroke, viewBox="0 0 26 12", style="width:26px", aria_hidden="true")
        text = tag("span", breakable(line.label), f": {line.points[-1][1]:.3f}")
        items.append(tag("span", swatch, text, class_=f"item {colour_class(line.run)}"))
    return tag("div", items, class_="legend")


def _n(value: float) -> str:
    """Write a coordinate."""
    return f"{value:.1f}".removesuffix(".0")


def _number(value: float) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:g}"
