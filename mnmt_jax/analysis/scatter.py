"""Scatter charts as inline SVG: a colour per group, a shape per kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mnmt_jax.pages.html_elements import Html, tag
from mnmt_jax.pages.style_sheet import COLOURS, colour_class

_SIZE, _EDGE, _RADIUS = 420, 12, 3.2
_SHAPES = 3


@dataclass(frozen=True)
class PointGroup:
    """Points of one colour and shape.

    Attributes:
        label: name in the legend and for screen readers.
        points: (x, y).
        colour: index of the colour, from 0.
        shape: 0 is a circle, 1 a square, 2 a triangle; larger numbers wrap around.
    """

    label: str
    points: Sequence[Sequence[float]]
    colour: int
    shape: int


def scatter_chart(title: str, groups: Sequence[PointGroup]) -> Html:
    """Draw groups of points without axes, whose values have no meaning.

    Args:
        title: caption.
        groups: groups with at least one point in total.
    """
    points = [point for group in groups for point in group.points]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    span = max(max(xs) - min(xs), max(ys) - min(ys)) or 1.0
    unit = (_SIZE - 2 * _EDGE) / span
    elements = []
    for group in groups:
        marks = [
            _mark(group.shape, _EDGE + (x - min(xs)) * unit, _SIZE - _EDGE - (y - min(ys)) * unit)
            for x, y in group.points
        ]
        elements.append(tag("g", tag("title", group.label), marks, **_colour(group, groups)))
    drawing = tag(
        "svg",
        elements,
        viewBox=f"0 0 {_SIZE} {_SIZE}",
        role="img",
        aria_label=f"{title}: points of {len(groups)} groups, which the legend names",
    )
    return tag("figure", tag("figcaption", title), drawing)


def scatter_legend(groups: Sequence[PointGroup]) -> Html:
    """Draw the legend of charts."""
    items = []
    for group in groups:
        mark = tag("g", _mark(group.shape, 6, 6), **_colour(group, groups))
        swatch = tag("svg", mark, viewBox="0 0 12 12", style="width:12px", aria_hidden="true")
        items.append(tag("span", swatch, tag("span", group.label), class_="item"))
    return tag("div", items, class_="legend")


def _colour(group: PointGroup, groups: Sequence[PointGroup]) -> dict[str, str]:
    """Return the colour attributes of a group: from the palette, or from evenly spaced hues."""
    count = 1 + max(other.colour for other in groups)
    hue = f"hsl({round(360 * group.colour / count)} 65% 48%)"
    fill = "var(--run)" if count <= len(COLOURS) else hue
    return {"class_": colour_class(group.colour), "style": f"fill:{fill};fill-opacity:.75"}


def _mark(shape: int, x: float, y: float) -> Html:
    kind, r = shape % _SHAPES, _RADIUS
    if kind == 0:
        return tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{r}")
    corners = [(-r, -r), (r, -r), (r, r), (-r, r)] if kind == 1 else [(0, -r), (r, r), (-r, r)]
    return tag("polygon", points=" ".join(f"{x + a:.1f},{y + b:.1f}" for a, b in corners))
