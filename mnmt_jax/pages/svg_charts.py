"""Line and bar charts as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mnmt_jax.pages.html_elements import Html, breakable, tag
from mnmt_jax.pages.style_sheet import colour_class

SIZE = _WIDTH, _HEIGHT = 520, 300
"""Width and height of a chart's coordinates."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 10, 48
_TICKS = 5
_ROUNDING = 1e-9  # relative difference up to which values are equal
_ROW, _LABEL, _VALUE = 20, 60, 70  # of a bar: height, widths of label and value


@dataclass(frozen=True)
class Line:
    """A curve of a line chart.

    Attributes:
        label: label in the legend and in the accessible title.
        points: (x, y) pairs, x increasing.
        run: index of the run; determines the colour.
        dashed: whether the line is dashed.
    """

    label: str
    points: Sequence[tuple[float, float]]
    run: int
    dashed: bool = False


@dataclass(frozen=True)
class Axes:
    """Axes of a chart, from their first to their last tick.

    Attributes:
        x_ticks: marked values of the x axis, increasing, at least two.
        y_ticks: marked values of the y axis, increasing, at least two.
        logarithmic: whether the x axis is logarithmic.
    """

    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    logarithmic: bool = False

    def to_pixels(self, x: float, y: float) -> tuple[float, float]:
        """Return the pixel coordinates of a point."""
        scale = math.log10 if self.logarithmic else float
        left, right = scale(self.x_ticks[0]), scale(self.x_ticks[-1])
        x_share = (scale(x) - left) / (right - left)
        y_share = (y - self.y_ticks[0]) / (self.y_ticks[-1] - self.y_ticks[0])
        return (
            _LEFT + x_share * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - y_share * (_HEIGHT - _TOP - _BOTTOM),
        )

    def elements(self, x_title: str) -> list[Html]:
        """Return grid lines and labels.

        Args:
            x_title: title of the x axis.
        """
        elements = []
        for y in self.y_ticks:
            left, pixel_y = self.to_pixels(self.x_ticks[0], y)
            ends: dict[str, str | int] = {
                "x1": _LEFT,
                "x2": _WIDTH - _RIGHT,
                "y1": _px(pixel_y),
                "y2": _px(pixel_y),
            }
            elements.append(tag("line", **ends, class_="grid"))
            place = {"x": _px(left - 7), "y": _px(pixel_y + 4)}
            elements.append(tag("text", _number(y), **place, text_anchor="end"))
        for x in self.x_ticks:
            pixel_x, bottom = self.to_pixels(x, self.y_ticks[0])
            place = {"x": _px(pixel_x), "y": _px(bottom + 18)}
            anchor = "end" if x == self.x_ticks[-1] else "middle"
            elements.append(tag("text", _number(x), **place, text_anchor=anchor))
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        elements.append(tag("text", x_title, x=_px(middle), y=_HEIGHT - 6, text_anchor="middle"))
        return elements


def line_chart(title: str, lines: Sequence[Line], *, x_title: str, y_title: str) -> Html:
    """Return a line chart; the legend has the last value of each curve.

    Args:
        title: caption.
        lines: curves, each with at least one point.
        x_title: title of the x axis.
        y_title: title of the y axis, with its unit.
    """
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    x_ticks = ticks(min(0.0, *xs), max(xs), integral=are_whole(xs))
    axes = Axes(x_ticks, ticks(min(ys), max(ys)))
    elements = axes.elements(x_title)
    for line in lines:
        pixels = [axes.to_pixels(*point) for point in line.points]
        path = "M" + "L".join(f"{_px(x)} {_px(y)}" for x, y in pixels)
        path += "h0" if len(pixels) == 1 else ""  # the round cap draws a dot
        style = "dashed" if line.dashed else ""
        elements.append(
            tag(
                "path", tag("title", line.label), d=path, class_=f"{colour_class(line.run)} {style}"
            )
        )
    drawing = tag(
        "svg",
        elements,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=f"{title}: {y_title} by {x_title}; last values are in the legend",
    )
    caption = tag("figcaption", title, tag("span", f" ({y_title})", class_="muted"))
    return tag("figure", caption, drawing, _legend(lines))


def bar_chart(title: str, bars: Sequence[tuple[str, float]], *, x_title: str) -> Html:
    """Return a horizontal bar chart, with each value also as text.

    Args:
        title: caption.
        bars: (label, value) pairs, at least one.
        x_title: description of the values.
    """
    values = [value for _, value in bars]
    low, high = min(0.0, *values), max(0.0, *values)
    width = _WIDTH - _LABEL - _VALUE
    unit = width / ((high - low) or 1.0)
    zero = _LABEL - low * unit
    elements = []
    for number, (label, value) in enumerate(bars):
        top = _ROW * number
        start, length = min(zero, zero + value * unit), abs(value * unit)
        baseline = _px(top + 0.72 * _ROW)
        elements += [
            tag("text", label, x=_LABEL - 8, y=baseline, text_anchor="end"),
            tag("rect", x=_px(start), y=_px(top + 3), width=_px(length), height=_ROW - 6),
            tag("text", f"{value:z.4f}", x=_WIDTH, y=baseline, text_anchor="end"),
        ]
    drawing = tag(
        "svg",
        elements,
        viewBox=f"0 0 {_WIDTH} {_ROW * len(bars)}",
        role="img",
        aria_label=f"{title}: {x_title} by label; the values are text",
        class_="run-0",
    )
    caption = tag("figcaption", title, tag("span", f" ({x_title})", class_="muted"))
    return tag("figure", caption, drawing)


def are_whole(values: Iterable[float]) -> bool:
    """Return whether all values are whole numbers, e.g. layers or updates."""
    return all(float(value).is_integer() for value in values)


def ticks(low: float, high: float, *, integral: bool = False) -> list[float]:
    """Return at least two evenly spaced round numbers that enclose a range.

    Args:
        low: lower end of the range.
        high: upper end of the range; if it is equal up to rounding, the range is widened.
        integral: whether the numbers are whole, e.g. for layers. The steps then include 3, so that
            an axis of 12 layers ends at 12.
    """
    if high - low <= _ROUNDING * max(abs(low), abs(high)):
        low, high = (high - 0.1 * abs(high), high) if high else (0.0, 1.0)
    raw = max((high - low) / _TICKS, 1.0 if integral else 0.0)
    magnitude = 10.0 ** math.floor(math.log10(raw))
    sizes = (1, 2, 3, 5, 10) if integral else (1, 2, 2.5, 5, 10)
    step = next(size * magnitude for size in sizes if size * magnitude >= raw)
    start, stop = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = 2 - math.floor(math.log10(step))
    return [round(index * step, digits) for index in range(start, stop + 1)]


def _legend(lines: Sequence[Line]) -> Html:
    items = []
    for line in lines:
        stroke = tag("path", d="M0 6H26", class_="dashed" if line.dashed else "")
        swatch = tag("svg", stroke, viewBox="0 0 26 12", style="width:26px", aria_hidden="true")
        text = tag("span", breakable(line.label), f": {line.points[-1][1]:z.3f}")
        items.append(tag("span", swatch, text, class_=f"item {colour_class(line.run)}"))
    return tag("div", items, class_="legend")


def _px(value: float) -> str:
    """Format a coordinate in pixels."""
    return f"{value:.1f}".removesuffix(".0")


def _number(value: float) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:g}"
