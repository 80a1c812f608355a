"""Point charts as inline SVG: our scores with intervals, and published scores beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mnmt_jax.pages.html_elements import Html, breakable, tag
from mnmt_jax.pages.style_sheet import colour_class
from mnmt_jax.pages.svg_charts import SIZE, Axes, are_whole, ticks

_RADIUS = 4
MAX_TICKS = 12
"""Number of places up to which each has a tick."""


@dataclass(frozen=True)
class Point:
    """A point of a chart.

    Attributes:
        x: its place on the x axis.
        y: our score; None if there is none.
        interval: ends of its interval; None if it has none.
        published: the published score; None if there is none.
        label: name of the point; empty for its x.
    """

    x: float
    y: float | None = None
    interval: tuple[float, float] | None = None
    published: float | None = None
    label: str = ""

    @property
    def name(self) -> str:
        """Its label, or its x."""
        return self.label or f"{self.x:g}"

    @property
    def values(self) -> tuple[float, ...]:
        """All its values on the y axis."""
        ours = () if self.y is None else (self.y,)
        published = () if self.published is None else (self.published,)
        return (*ours, *(self.interval or ()), *published)


@dataclass(frozen=True)
class Series:
    """A series of a chart.

    Attributes:
        label: label in the legend.
        points: its points, x increasing.
        joined: whether lines join its points.
    """

    label: str
    points: tuple[Point, ...]
    joined: bool = True

    @property
    def ours(self) -> tuple[Point, ...]:
        """The points with a score of ours."""
        return tuple(point for point in self.points if point.y is not None)

    @property
    def published(self) -> tuple[Point, ...]:
        """The points with a published score."""
        return tuple(point for point in self.points if point.published is not None)


def point_chart(
    title: str, series: Sequence[Series], *, x_title: str, y_title: str, logarithmic: bool = False
) -> Html:
    """Return a chart of series: filled circles are ours, open squares are published.

    Args:
        title: caption.
        series: series with at least one value in all.
        x_title: title of the x axis.
        y_title: title of the y axis, with its unit.
        logarithmic: whether the x axis is logarithmic.
    """
    x_ticks, logarithmic = _x_ticks(series, logarithmic)
    ys = [value for item in series for point in item.points for value in point.values]
    axes = Axes(x_ticks, ticks(min(ys), max(ys)), logarithmic)
    width, height = SIZE
    drawing = tag(
        "svg",
        axes.elements(x_title),
        [_draw(axes, item, number) for number, item in enumerate(series)],
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=f"{title}: {y_title} by {x_title}; the values are in the table",
    )
    caption = tag("figcaption", title, tag("span", f" ({y_title})", class_="muted"))
    return tag("figure", caption, drawing, _legend(series), class_="points")


def _x_ticks(series: Sequence[Series], logarithmic: bool) -> tuple[list[float], bool]:
    """Return the ticks of the x axis, and whether it is logarithmic.

    The ticks are the places of the points if they are few, else round numbers or powers of ten.
    """
    xs = sorted({point.x for item in series for point in item.points if point.values})
    if len(xs) == 1:
        return [xs[0] - 1, xs[0], xs[0] + 1], False
    if len(xs) <= MAX_TICKS:
        return xs, logarithmic and xs[0] > 0
    if not logarithmic or xs[0] <= 0:
        return ticks(xs[0], xs[-1], integral=are_whole(xs)), False
    powers = range(math.floor(math.log10(xs[0])), math.ceil(math.log10(xs[-1])) + 1)
    return [10.0**power for power in powers], True


def _draw(axes: Axes, series: Series, number: int) -> Html:
    """Return the lines and marks of a series."""
    ours = [(point, axes.to_pixels(point.x, point.y or 0.0)) for point in series.ours]
    published = [axes.to_pixels(point.x, point.published or 0.0) for point in series.published]
    elements = []
    if series.joined:
        elements += [_path(pixels for _, pixels in ours), _path(published, "dashed")]
    for point, (x, y) in ours:
        if point.interval is not None:
            ends = [axes.to_pixels(point.x, end)[1] for end in point.interval]
            elements.append(tag("path", d=f"M{x:.1f} {ends[0]:.1f}V{ends[1]:.1f}"))
        label = tag("title", f"{series.label}, {point.name}: {point.y:.2f}")
        elements.append(tag("circle", label, cx=f"{x:.1f}", cy=f"{y:.1f}", r=_RADIUS))
    for point, (x, y) in zip(series.published, published, strict=True):
        label = tag("title", f"{series.label}, {point.name}: published {point.published:.2f}")
        corner = f"M{x - _RADIUS:.1f} {y - _RADIUS:.1f}"
        side = 2 * _RADIUS
        elements.append(tag("path", label, d=f"{corner}h{side}v{side}h-{side}z", class_="open"))
    return tag("g", elements, class_=colour_class(number))


def _path(pixels: Iterable[tuple[float, float]], style: str = "") -> Html:
    places = [f"{x:.1f} {y:.1f}" for x, y in pixels]
    return tag("path", d=f"M{'L'.join(places)}", class_=style) if len(places) > 1 else Html("")


def _legend(series: Sequence[Series]) -> Html:
    items = []
    for number, item in enumerate(series):
        if item.ours:
            items.append(_legend_item(f"{item.label}, ours", number, ""))
        if item.published:
            items.append(_legend_item(f"{item.label}, published", number, "dashed"))
    return tag("div", items, class_="legend")


def _legend_item(label: str, number: int, style: str) -> Html:
    stroke = tag("path", d="M0 6H26", class_=style)
    mark = tag("circle", cx=13, cy=6, r=_RADIUS)
    if style:
        mark = tag("path", d="M9 2h8v8h-8z", class_="open")
    swatch = tag("svg", stroke, mark, viewBox="0 0 26 12", style="width:26px", aria_hidden="true")
    text = tag("span", breakable(label))
    return tag("span", swatch, text, class_=f"item {colour_class(number)}")
