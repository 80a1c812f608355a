"""What the pages of all analyses are put together from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mnmt_jax.evaluation.html_elements import Html, breakable, language_name, tag

JsonObject = Mapping[str, Any]

_DIGITS = 6


def muted_paragraph(text: str) -> Html:
    """Writes a remark."""
    return tag("p", text, class_="muted")


def direction_label(direction: JsonObject) -> str:
    """Returns the names of the languages of a direction."""
    return f"{language_name(direction['source'])} → {language_name(direction['target'])}"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """Writes a table of texts, the first of each row as its head."""
    head = tag("thead", tag("tr", [tag("th", breakable(text), scope="col") for text in header]))
    body = [
        tag("tr", tag("th", breakable(first), scope="row"), [tag("td", text) for text in rest])
        for first, *rest in rows
    ]
    return tag("div", tag("table", head, tag("tbody", body), class_="averages"), class_="scroll")


def format_significant(value: float | None) -> str:
    """Writes a number; a dash if there is none."""
    return "–" if value is None else f"{value:.3g}"


def format_percent(value: float | None) -> str:
    """Writes a share as a whole percentage."""
    return "–" if value is None else f"{100 * value:.0f}"


def chart_row(*found: Html) -> Html:
    """Sets charts beside each other."""
    return tag("div", found, class_="charts")


def location_label(place: JsonObject) -> str:
    """Returns how a place of states is called (`compute_layer_states.place_facts`)."""
    name = f"layer {place['layer']}" if place["layer"] else "embedding"
    return f"{name}, after its stage" if place.get("ended") else name


def layer_curve(places: Iterable[JsonObject], value: str) -> tuple[tuple[int, float], ...]:
    """Returns values by layer, those after a stage's end and unknown ones left out.

    Rounded: what differs by the last bits of a float alone is drawn level.
    """
    return tuple(
        (place["layer"], round(float(place[value]), _DIGITS))
        for place in places
        if not place.get("ended") and place[value] is not None
    )
