"""HTML sections of an analysis of translation heads, with charts and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mnmt_jax.analysis.page_elements import (
    JsonObject,
    chart_row,
    format_percent,
    layer_curve,
    muted_paragraph,
)
from mnmt_jax.errors import pluralize
from mnmt_jax.pages.heatmap import value_heatmap
from mnmt_jax.pages.html_elements import Html, tag
from mnmt_jax.pages.html_page import section, text_table
from mnmt_jax.pages.markdown_tables import format_score
from mnmt_jax.pages.svg_charts import Line, line_chart

_ROLES = ("source", "register", "target", "trigger")  # in the order of colours


def heads_sections(facts: JsonObject) -> Iterator[Html]:
    """Render the shares of states and heads, and the effects of ablation and steering."""
    effects: Mapping[str, JsonObject] = facts["effects"]
    yield section(
        "States that carry the language and the meaning",
        muted_paragraph(
            "The model reads the tag of another target language (language) or another source of "
            "as many tokens (meaning). The effect is the fall in the log-probability of the "
            "target's first token. The share of a role's states after a layer is the part of it "
            "that these states of the original input undo: the mean rise over sentences, divided "
            "by the mean effect. Layer 0 is the embedding. The last layer is left out, because no "
            "layer reads its states: the target's would have 100 %, all others nothing."
        ),
        *(muted_paragraph(text) for text in _unpaired(facts)),
        chart_row(*(_state_chart(name, effect) for name, effect in effects.items())),
        text_table(["", *effects], _total_rows(effects)),
    )
    largest = max(
        abs(share)
        for effect in effects.values()
        for row in effect["heads"]
        for share in row["shares"]
    )
    yield section(
        "Heads for language and for meaning",
        muted_paragraph(
            "Percent of the effect that one head carries, in all roles. Shares overlap, as one "
            "head reads what another wrote, and need not add up to 100 %."
        ),
        tag(
            "div",
            [_head_map(name, effect, largest) for name, effect in effects.items()],
            class_="maps",
        ),
    )
    yield section(
        f"Mean ablation, heads: {facts['top']}",
        muted_paragraph(
            "The heads with the largest shares, as layer.head (cross: cross-attention). Random "
            "ones are other heads: the mean over the draws, and its range."
        ),
        *_left_out(
            facts.get("undetected"),
            "Without off-target ratio, because the detector has no reliable label for the target "
            "language",
        ),
        text_table(
            ["heads", "chosen", "chrF++", "off-target, percent"],
            [
                [row["heads"], _chosen(row), _score(row, "chrf"), _score(row, "off_target")]
                for row in facts["ablation"]
            ],
        ),
    )
    yield section(
        f"Steering, heads: {facts['top']}, strength {facts['strength']}",
        muted_paragraph(
            "Translations in the target language and in the other one, to which the same heads are "
            "steered, percent. The other language is the next target language that is not the "
            "source's, in the order of the directions."
        ),
        *_left_out(
            facts.get("unsteered"),
            "Not steered, because there is no such language that the detector tells from the "
            "target's",
        ),
        text_table(
            ["heads", "target language", "other language"],
            [
                [row["heads"], _score(row, "target"), _score(row, "other")]
                for row in facts["steering"]
            ],
        ),
    )


def _unpaired(facts: JsonObject) -> Iterator[str]:
    """Yield a remark if sentences are missing in the measurement of the meaning."""
    total = sum(facts["read_sentences"].values())
    meaning = facts["effects"].get("meaning")
    if not meaning:
        yield (
            "The meaning is not measured: no two sources of a direction have the same number of "
            "tokens. Raise --limit."
        )
    elif missing := total - meaning["sentences"]:
        yield (
            f"{missing:,} of {pluralize(total, 'sentence')} have no partner for the meaning: no "
            "other source of as many tokens in their direction."
        )


def _left_out(directions: Sequence[str] | None, reason: str) -> Iterator[Html]:
    """Yield a paragraph that lists directions, if there are any."""
    if directions:
        yield muted_paragraph(f"{reason}: {', '.join(directions)}.")


def _chosen(row: JsonObject) -> str:
    """Return the heads of each selection, e.g. `1.3, 4.1 cross`."""
    return "; ".join(", ".join(map(_head_name, heads)) for heads in row["chosen"])


def _head_name(head: Sequence[Any]) -> str:
    layer, attention, number = head
    return f"{layer}.{number}" + (" cross" if attention == "memory_attention" else "")


def _score(row: JsonObject, measure: str) -> str:
    """Format a mean, with the range of several draws."""
    text = format_score(row[measure])
    if "draws" not in row or row[measure] is None:
        return text
    values = [draw[measure] for draw in row["draws"]]
    return f"{text} ({format_score(min(values))} to {format_score(max(values))})"


def _state_chart(name: str, effect: JsonObject) -> Html:
    lines = [
        Line(role, layer_curve(states, "share"), index)
        for index, role in enumerate(_ROLES)
        if (states := [state for state in effect["states"] if state["role"] == role])
    ]
    return line_chart(name.capitalize(), lines, x_title="layer", y_title="share of the effect")


def _total_rows(effects: Mapping[str, JsonObject]) -> list[list[str]]:
    """Return table rows with the effect, and the shares of roles and of all heads, in percent."""
    columns = effects.values()
    roles = dict.fromkeys(role for effect in columns for role in effect["roles"])
    return [
        ["sentences", *(str(effect["sentences"]) for effect in columns)],
        ["effect, nats", *(f"{effect['gap']:.2f}" for effect in columns)],
        *(
            [f"{role}, all layers together, percent"]
            + [format_percent(effect["roles"][role]) for effect in columns]
            for role in roles
        ),
        ["all heads, percent", *(format_percent(effect["all_heads"]) for effect in columns)],
    ]


def _head_map(name: str, effect: JsonObject, largest: float) -> Html:
    rows = [
        (f"layer {row['layer']}, {row['attention'].replace('_', ' ')}", row["shares"])
        for row in effect["heads"]
    ]
    columns = [f"head {number}" for number in range(1, len(rows[0][1]) + 1)]
    return value_heatmap(name.capitalize(), columns, rows, largest=largest, write=format_percent)
