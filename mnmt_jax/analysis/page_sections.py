"""HTML sections of an analysis page, with tables and charts for each kind of analysis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from mnmt_jax.analysis.attention_links import link_chart
from mnmt_jax.analysis.attribution import COMPONENT_OUTPUTS
from mnmt_jax.analysis.head_sections import heads_sections
from mnmt_jax.analysis.page_elements import (
    JsonObject,
    chart_row,
    direction_label,
    format_percent,
    format_significant,
    muted_paragraph,
)
from mnmt_jax.analysis.page_header import (
    comparison_gaps,
    model_labels,
    page_title,
    result_warnings,
    summary_line,
)
from mnmt_jax.analysis.state_sections import STATE_SECTIONS
from mnmt_jax.pages.heatmap import value_heatmap
from mnmt_jax.pages.html_elements import Html, breakable, language_name, tag, text_in
from mnmt_jax.pages.html_page import collapsible, run_name, section, text_table
from mnmt_jax.pages.markdown_tables import format_count, format_score
from mnmt_jax.pages.svg_charts import bar_chart

_OPEN_MAPS = 2  # number of sentences whose maps are unfolded
_COMPONENTS = {
    "ffn1": "shared feed-forward, first map",
    "ffn2": "shared feed-forward, second map",
    "lsl1": "branch of the target language, first map",
    "lsl2": "branch of the target language, second map",
}
_SIGNED = (
    "Conductance of f(x) = sum over dimensions of FFN(x) + t LSL(x), from zero to what the block "
    "sees, summed over the units of each output. The two outputs of a component have the same sum: "
    "all that it contributes passes both."
)
_ABSOLUTE = "The same with the absolute value of each unit: how much moves, whatever its sign."
_ROW_TITLES = {
    ("on", "own"): "with branches",
    ("off", "own"): "without branches",
    ("off", "supervised target"): "without, by the supervised target's references",
    ("on", "supervised target"): "with, by the supervised target's references",
}


def render_sections(facts: JsonObject) -> list[Html]:
    """Render the sections of an analysis, the header first.

    Args:
        facts: results of an analysis of any kind.
    """
    sections: Mapping[str, Callable[[JsonObject], Iterator[Html]]] = {
        "attribution": _attribution,
        "attention": _attention,
        "ablation": _ablation,
        "scales": _scales,
        "heads": heads_sections,
        **STATE_SECTIONS,
    }
    header = tag(
        "header",
        tag("h1", breakable(page_title(facts))),
        tag("p", breakable(summary_line(facts)), class_="muted"),
        [tag("p", run_name(name, number)) for number, name in enumerate(model_labels(facts))],
        [tag("p", facts["note"], class_="warning")] if "note" in facts else [],
        [tag("p", f"{text}.", class_="warning") for text in result_warnings(facts)],
        [tag("p", text, class_="warning") for text in comparison_gaps(facts)],
    )
    return [header, *sections[facts["analysis"]](facts)]


# Attribution


def _attribution(facts: JsonObject) -> Iterator[Html]:
    yield section(
        "Means over target tokens",
        muted_paragraph("; ".join(f"{name}: {text}" for name, text in _COMPONENTS.items())),
        muted_paragraph(_SIGNED),
        tag("div", _mean_maps(facts, "signed"), class_="maps"),
        muted_paragraph(_ABSOLUTE),
        tag("div", _mean_maps(facts, "absolute"), class_="maps"),
        muted_paragraph(f"{facts['nodes']} Gauss-Legendre nodes; {_largest_error(facts)}"),
    )
    for direction in facts["directions"]:
        branch = "" if direction["branch"] else " (the target language has no branch)"
        maps = [_token_maps(sentence) for sentence in direction["sentences"]]
        yield section(f"{direction_label(direction)}{branch}", *maps)


def _largest_error(facts: JsonObject) -> str:
    layers = [layer for direction in facts["directions"] for layer in direction["layers"]]
    error = max((float(layer["largest_error"]) for layer in layers), default=0.0)
    return f"sums of integrated gradients differ from f(x) - f(0) by {error:.2g} at most."


def _mean_maps(facts: JsonObject, kind: str) -> list[Html]:
    directions = facts["directions"]
    values = [
        float(layer[kind][name])
        for direction in directions
        for layer in direction["layers"]
        for name in COMPONENT_OUTPUTS
    ]
    largest = max(map(abs, values), default=0.0)
    maps = []
    for direction in directions:
        layers = direction["layers"]
        columns = [f"layer {layer['layer']}" for layer in layers]
        rows = [
            (name, [float(layer[kind][name]) for layer in layers]) for name in COMPONENT_OUTPUTS
        ]
        caption = f"{direction_label(direction)}, {kind}"
        maps.append(
            value_heatmap(caption, columns, rows, largest=largest, write=format_significant)
        )
    return maps


def _token_maps(sentence: JsonObject) -> Html:
    maps = []
    for layer in sentence["layers"]:
        signed = {name: np.asarray(layer["signed"][name]).tolist() for name in COMPONENT_OUTPUTS}
        largest = max((abs(value) for row in signed.values() for value in row), default=0.0)
        rows = list(signed.items())
        caption = f"layer {layer['layer']}"
        maps.append(
            value_heatmap(
                caption, sentence["tokens"], rows, largest=largest, write=format_significant
            )
        )
    return tag("div", tag("p", sentence["target"]), maps)


# Attention


def _attention(facts: JsonObject) -> Iterator[Html]:
    heads = "each head" if facts["by_head"] else f"mean of {facts['heads']} heads"
    top = facts.get("settings", {}).get("top")
    legend = (
        f"The {top} largest weights of each query, {heads}: queries are on the left, keys on the "
        "right."
        if top
        else f"Percent, {heads}; a row is a query, a column a key. What a query may not see is 0."
    )
    yield section("Attention weights", muted_paragraph(legend))
    for direction in facts["directions"]:
        sentence_sections = []
        for number, sentence in enumerate(direction["sentences"]):
            summary = tag("summary", text_in(direction["source"], sentence["source"]))
            target = tag("p", text_in(direction["target"], sentence["target"]))
            maps = tag(
                "div",
                [_head_maps(attention, sentence, top) for attention in sentence["maps"]],
                class_="charts" if top else "maps",
            )
            sentence_sections.append(
                collapsible(summary, target, maps, unfolded=number < _OPEN_MAPS)
            )
        yield section(direction_label(direction), *sentence_sections)


def _head_maps(attention: JsonObject, sentence: JsonObject, top: int | None) -> list[Html]:
    tokens = sentence["tokens"]
    columns = [token for role in attention["keys"] for token in tokens[role]]
    title = (
        f"Layer {attention['layer']}, {attention['attention']}: "
        f"{attention['query']} to {' and '.join(attention['keys'])}"
    )
    weights = np.asarray(attention["weights"], np.float64)
    heads = weights if weights.ndim == 3 else weights[None]
    maps = []
    for number, head in enumerate(heads, start=1):
        caption = f"{title}, head {number}" if weights.ndim == 3 else title
        queries = tokens[attention["query"]]
        if top:
            maps.append(link_chart(caption, queries, columns, head, top))
            continue
        rows = list(zip(queries, head.tolist(), strict=True))
        maps.append(value_heatmap(caption, columns, rows, largest=1.0, write=format_percent))
    return maps


# Ablation


def _ablation(facts: JsonObject) -> Iterator[Html]:
    groups = ("supervised", "zero_shot", "all")
    names = {"supervised": "supervised", "zero_shot": "zero-shot", "all": "all"}
    shown = [
        group
        for group in groups
        if any(row.get(group, {}).get("directions") for row in facts["rows"])
    ]
    header = ["row", "model"]
    for group in shown:
        header += [
            f"directions, {names[group]}",
            f"BLEU, {names[group]}",
            f"chrF++, {names[group]}",
        ]
    rows = []
    for row in facts["rows"]:
        title = _ROW_TITLES[row["branches"], row["references"]]
        cells = [f"({row['row']})" if row["row"] else "", title]
        for group in shown:
            scores = row.get(group, {})
            cells.append(format_count(scores.get("directions")))
            cells += [format_score(scores.get(metric)) for metric in ("bleu", "chrf")]
        rows.append(cells)
    yield section(
        "With and without language branches",
        muted_paragraph("Means over directions, percent; rows numbered as in the paper's Table 9."),
        text_table(header, rows),
    )
    yield section("Every direction", _ablated_directions(facts["directions"]))


def _ablated_directions(directions: Sequence[JsonObject]) -> Html:
    kinds = {True: "trained on", False: "zero-shot", None: "?"}
    header = ["direction", "", "references", "BLEU with", "without", "chrF++ with", "without"]
    rows = []
    for direction in directions:
        name, by_target = direction_label(direction), {direction["target"]: direction}
        for code, results in (by_target | direction["against"]).items():
            scores = [
                format_score(results[branches][metric])
                for metric in ("bleu", "chrf")
                for branches in ("on", "off")
            ]
            rows.append([name, kinds[direction["supervised"]], code, *scores])
    return text_table(header, rows)


# Scales


def _scales(facts: JsonObject) -> Iterator[Html]:
    mean = facts["mean"]
    chart = bar_chart("Mean over layers", list(mean.items()), x_title="t by target language")
    rows = [
        (f"layer {layer['layer']}", [layer["scale"][code] for code in mean])
        for layer in facts["layers"]
    ]
    largest = max((abs(value) for _, values in rows for value in values), default=0.0)
    table = value_heatmap("t", list(mean), rows, largest=largest, write=format_significant)
    note = "Languages in the vocabulary's order."
    if facts["without"]:
        note += f" Without a branch: {', '.join(map(language_name, facts['without']))}."
    yield section("Scales of the language branches", muted_paragraph(note), chart_row(chart))
    yield section("By layer", table)
