"""Heat maps of any numbers, as HTML tables; all values are also text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mnmt_jax.pages.html_elements import Child, Html, tag


def value_heatmap(
    caption: Child,
    columns: Sequence[str],
    rows: Sequence[tuple[str, Sequence[float | None]]],
    *,
    largest: float,
    write: Callable[[float], str],
) -> Html:
    """Return a heat map of any numbers, with one hue from 0 to `largest` and another below 0.

    Args:
        caption: caption of the table.
        columns: column headings.
        rows: heading and values of each row, one value per column; None is shown as a dash.
        largest: absolute value with the full colour; equal for maps to be compared.
        write: function that formats a value; the cell's title has four significant digits.
    """

    def cell(value: float | None) -> Html:
        if value is None:
            return tag("td", "–", class_="none")
        share = min(1.0, abs(value) / largest) if largest else 0.0
        hue = "good" if value >= 0 else "bad"
        shade = f"--share:{100 * share:.0f}%"
        return tag("td", write(value), class_=hue, style=shade, title=f"{value:.4g}")

    head = [tag("th", "", class_="corner"), [tag("th", text, scope="col") for text in columns]]
    body = [
        tag("tr", tag("th", name, scope="row"), [cell(value) for value in values])
        for name, values in rows
    ]
    content = tag("thead", tag("tr", head)), tag("tbody", body)
    table = tag("table", tag("caption", caption), *content, class_="heat")
    return tag("div", table, class_="map scroll values")


def color_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of a colour scale in percent: multiples of ten around the values.

    The scale starts at 0 unless all values lie in its upper half.
    """
    if not values:
        return 0.0, 100.0
    high = max(10.0, 10.0 * math.ceil(max(values) / 10 - 1e-9))
    low = 10.0 * math.floor(min(values) / 10)
    return (low if low > high / 2 and low < high else 0.0), high
