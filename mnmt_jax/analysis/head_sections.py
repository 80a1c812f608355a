"""HTML sections of an analysis of translation heads, with charts and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mnmt_jax.analysis.page_elements import (
    JsonObject,
    chart_row,
    format_percent,
    layer_curve,
    muted_paragraph,
)
from mnmt_jax.evaluation.heatmap import value_heatmap
from mnmt_jax.evaluation.html_elements import Html, tag
from mnmt_jax.evaluation.html_page import section, text_table
from mnmt_jax.evaluation.markdown_tables import format_score
from mnmt_jax.evaluation.svg_charts import Line, line_chart

_ROLES = ("source", "register", "target", "trigger")  # in the order of colours


def heads_sections(facts: JsonObject) -> Iterator[Html]:
    """Render the shares of states and heads, and the effects of ablation and steering."""
    effects: Mapping[str, JsonObject] = facts["effects"]
    yield section(
        "States that carry the language and the meaning",
        muted_paragraph(
            "The model reads the tag of another target language (language) or another source of "
            "as many tokens (meaning). The share of a role's states after a layer is the part of "
            "this effect that the states of the original input undo. Layer 0 is the embedding."
        ),
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
        muted_paragraph("Percent of the effect that one head carries, in all roles."),
        tag(
            "div",
            [_head_map(name, effect, largest) for name, effect in effects.items()],
            class_="maps",
        ),
    )
    yield section(
        f"Mean ablation, heads: {facts['top']}",
        text_table(
            ["heads", "chrF++", "off-target, percent"],
            [
                [row["heads"], format_score(row["chrf"]), format_score(row["off_target"])]
                for row in facts["ablation"]
            ],
        ),
    )
    yield section(
        f"Steering, heads: {facts['top']}, strength {facts['strength']}",
        muted_paragraph("Translations in the target language and in the other one, percent."),
        text_table(
            ["heads", "target language", "other language"],
            [
                [row["heads"], format_score(row["target"]), format_score(row["other"])]
                for row in facts["steering"]
            ],
        ),
    )


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
            [f"{role} after all layers, percent"]
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
