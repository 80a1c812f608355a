"""Point charts: lines between points, ticks of the x axis, and a single place."""

from __future__ import annotations

import re

import pytest

from mnmt_jax.pages.svg_points import Point, Series, point_chart


def _chart(points, *, joined: bool = True, logarithmic: bool = False) -> str:
    series = Series("model", tuple(points), joined)
    return point_chart("F", [series], x_title="x", y_title="y", logarithmic=logarithmic)


def _x_labels(page: str) -> list[str]:
    """Return the texts below the x axis, which is at 252 pixels."""
    return re.findall(r'y="270"[^>]*>([\d.-]+)<', page)


def test_lines_join_points_of_a_kind():
    points = [Point(1, 0.0, None, 10.0), Point(2, 5.0), Point(3, 10.0, None, 0.0)]
    ours, published = "M56.0 252.0L282.0 131.0L508.0 10.0", "M56.0 10.0L508.0 252.0"
    page = _chart(points)
    assert f'<path d="{ours}"' in page and f'<path d="{published}" class="dashed"' in page
    apart = _chart(points, joined=False)
    assert ours not in apart and published not in apart and apart.count("<circle") == 4


@pytest.mark.parametrize(
    ("first", "logarithmic", "labels", "middle"),
    [
        (1.0, True, ["1", "10", "100", "1000"], 56 + 452 / 3),
        (1.0, False, ["0", "200", "400", "600", "800", "1000"], 56 + 452 / 100),
        (0.0, True, ["0", "200", "400", "600", "800", "1000"], 56 + 452 / 100),
    ],
)
def test_many_places_have_round_ticks(first, logarithmic, labels, middle):
    """Zero has no place on a logarithmic axis."""
    places = [first, 5.0, 10.0, *range(100, 1001, 75)]
    page = _chart([Point(x, 1.0 + x) for x in places], logarithmic=logarithmic)
    assert _x_labels(page) == labels
    assert float(re.findall(r'<circle cx="([\d.]+)"', page)[2]) == pytest.approx(middle, abs=0.06)


def test_many_layers_have_whole_ticks():
    assert _x_labels(_chart([Point(x, 1.0 + x) for x in range(13)])) == ["0", "3", "6", "9", "12"]


def test_a_single_place_is_in_the_middle():
    page = _chart([Point(5, 1.0)], logarithmic=True)
    assert _x_labels(page) == ["4", "5", "6"] and '<circle cx="282.0"' in page
