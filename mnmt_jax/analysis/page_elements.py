"""Shared HTML elements of analysis pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mnmt_jax.pages.html_elements import Html, language_name, tag

JsonObject = Mapping[str, Any]

_DIGITS = 6


def muted_paragraph(text: str) -> Html:
    """Render a remark."""
    return tag("p", text, class_="muted")


def direction_label(direction: JsonObject) -> str:
    """Return the names of the languages of a direction."""
    return f"{language_name(direction['source'])} → {language_name(direction['target'])}"


def format_significant(value: float | None) -> str:
    """Format a number with three significant digits; a dash for None."""
    return "–" if value is None else f"{value:.3g}"


def format_percent(value: float | None) -> str:
    """Format a share as an integer percentage; a dash for None."""
    return "–" if value is None else f"{100 * value:z.0f}"


def chart_row(*charts: Html) -> Html:
    """Place charts side by side."""
    return tag("div", charts, class_="charts")


def location_label(location: JsonObject) -> str:
    """Return the label of a location of states (`layer_states.location_fields`)."""
    name = f"layer {location['layer']}" if location["layer"] else "embedding"
    return f"{name}, after its stage" if location.get("ended") else name


def layer_curve(locations: Iterable[JsonObject], value: str) -> tuple[tuple[int, float], ...]:
    """Return values by layer, without locations after a stage's end and without missing values.

    Values are rounded, so that differences in the last bits of a float are not visible.
    """
    return tuple(
        (location["layer"], round(float(location[value]), _DIGITS))
        for location in locations
        if not location.get("ended") and location[value] is not None
    )
