"""The page of an analysis: each kind's facts as sections with tables and charts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from mnmt_jax.analysis.attribution import OUTPUTS
from mnmt_jax.analysis.page_elements import (
    Facts,
    charts,
    direction_name,
    muted,
    percent,
    plain_table,
    three_digits,
)
from mnmt_jax.analysis.page_facts import (
    facts_line,
    left_out,
    model_names,
    page_title,
    warnings_of,
)
from mnmt_jax.analysis.state_pictures import STATE_SECTIONS
from mnmt_jax.evaluation.chart import bar_chart
from mnmt_jax.evaluation.heat_map import value_map
from mnmt_jax.evaluation.markup import Html, breakable, language_name, tag, text_in
from mnmt_jax.evaluation.page import fold, run_name, section
from mnmt_jax.evaluation.table import format_count, format_score

_OPEN_MAPS = 2  # sentences whose maps are unfolded
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


def draw(facts: Facts) -> list[Html]:
    """Returns the sections of an analysis, the heading first.

    Args:
        facts: of any kind.
    """
    sections: Mapping[str, Callable[[Facts], Iterator[Html]]] = {
        "attribution": _attribution,
        "attention": _attention,
        "ablation": _ablation,
        "scales": _scales,
        **STATE_SECTIONS,
    }
    header = tag(
        "header",
        tag("h1", breakable(page_title(facts))),
        tag("p", breakable(facts_line(facts)), class_="muted"),
        [tag("p", run_name(name, number)) for number, name in enumerate(model_names(facts))],
        [tag("p", f"{text}.", class_="warning") for text in warnings_of(facts)],
        [tag("p", text, class_="warning") for text in left_out(facts)],
    )
    return [header, *sections[facts["analysis"]](facts)]


# Attribution


def _attribution(facts: Facts) -> Iterator[Html]:
    yield section(
        "Means over target tokens",
        muted("; ".join(f"{name}: {text}" for name, text in _COMPONENTS.items())),
        muted(_SIGNED),
        tag("div", _mean_maps(facts, "signed"), class_="maps"),
        muted(_ABSOLUTE),
        tag("div", _mean_maps(facts, "absolute"), class_="maps"),
        muted(f"{facts['nodes']} Gauss-Legendre nodes; {_largest_error(facts)}"),
    )
    for direction in facts["directions"]:
        branch = "" if direction["branch"] else " (the target language has no branch)"
        maps = [_token_maps(sentence) for sentence in direction["sentences"]]
        yield section(f"{direction_name(direction)}{branch}", *maps)


def _largest_error(facts: Facts) -> str:
    layers = [layer for direction in facts["directions"] for layer in direction["layers"]]
    error = max((float(layer["largest_error"]) for layer in layers), default=0.0)
    return f"sums of integrated gradients differ from f(x) - f(0) by {error:.2g} at most."


def _mean_maps(facts: Facts, kind: str) -> list[Html]:
    directions = facts["directions"]
    values = [
        float(layer[kind][name])
        for direction in directions
        for layer in direction["layers"]
        for name in OUTPUTS
    ]
    largest = max(map(abs, values), default=0.0)
    maps = []
    for direction in directions:
        layers = direction["layers"]
        columns = [f"layer {layer['layer']}" for layer in layers]
        rows = [(name, [float(layer[kind][name]) for layer in layers]) for name in OUTPUTS]
        caption = f"{direction_name(direction)}, {kind}"
        maps.append(value_map(caption, columns, rows, largest=largest, write=three_digits))
    return maps


def _token_maps(sentence: Facts) -> Html:
    maps = []
    for layer in sentence["layers"]:
        signed = {name: np.asarray(layer["signed"][name]).tolist() for name in OUTPUTS}
        largest = max((abs(value) for row in signed.values() for value in row), default=0.0)
        rows = list(signed.items())
        caption = f"layer {layer['layer']}"
        maps.append(
            value_map(caption, sentence["tokens"], rows, largest=largest, write=three_digits)
        )
    return tag("div", tag("p", sentence["target"]), maps)


# Attention


def _attention(facts: Facts) -> Iterator[Html]:
    heads = "each head" if facts["by_head"] else f"mean of {facts['heads']} heads"
    yield section(
        "Attention weights",
        muted(
            f"Percent, {heads}; a row is a query, a column a key. What a query may not see is 0."
        ),
    )
    for direction in facts["directions"]:
        parts = []
        for number, sentence in enumerate(direction["sentences"]):
            summary = tag("summary", text_in(direction["source"], sentence["source"]))
            target = tag("p", text_in(direction["target"], sentence["target"]))
            maps = tag("div", [_head_maps(m, sentence) for m in sentence["maps"]], class_="maps")
            parts.append(fold(summary, target, maps, unfolded=number < _OPEN_MAPS))
        yield section(direction_name(direction), *parts)


def _head_maps(one: Facts, sentence: Facts) -> list[Html]:
    tokens = sentence["tokens"]
    columns = [token for role in one["keys"] for token in tokens[role]]
    title = (
        f"Layer {one['layer']}, {one['attention']}: {one['query']} to {' and '.join(one['keys'])}"
    )
    weights = np.asarray(one["weights"], np.float64)
    heads = weights if weights.ndim == 3 else weights[None]
    maps = []
    for number, head in enumerate(heads, start=1):
        caption = f"{title}, head {number}" if weights.ndim == 3 else title
        rows = list(zip(tokens[one["query"]], head.tolist(), strict=True))
        maps.append(value_map(caption, columns, rows, largest=1.0, write=percent))
    return maps


# Ablation


def _ablation(facts: Facts) -> Iterator[Html]:
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
            found = row.get(group, {})
            cells.append(format_count(found.get("directions")))
            cells += [format_score(found.get(metric)) for metric in ("bleu", "chrf")]
        rows.append(cells)
    yield section(
        "With and without language branches",
        muted("Means over directions, percent; rows numbered as in the paper's Table 9."),
        plain_table(header, rows),
    )
    yield section("Every direction", _ablated_directions(facts["directions"]))


def _ablated_directions(directions: Sequence[Facts]) -> Html:
    kinds = {True: "trained on", False: "zero-shot", None: "?"}
    header = ["direction", "", "references", "BLEU with", "without", "chrF++ with", "without"]
    rows = []
    for direction in directions:
        name, own = direction_name(direction), {direction["target"]: direction}
        for code, found in (own | direction["against"]).items():
            scores = [
                format_score(found[branches][metric])
                for metric in ("bleu", "chrf")
                for branches in ("on", "off")
            ]
            rows.append([name, kinds[direction["supervised"]], code, *scores])
    return plain_table(header, rows)


# Scales


def _scales(facts: Facts) -> Iterator[Html]:
    mean = facts["mean"]
    chart = bar_chart("Mean over layers", list(mean.items()), x_title="t by target language")
    rows = [
        (f"layer {layer['layer']}", [layer["scale"][code] for code in mean])
        for layer in facts["layers"]
    ]
    largest = max((abs(value) for _, values in rows for value in values), default=0.0)
    table = value_map("t", list(mean), rows, largest=largest, write=three_digits)
    told = "Languages in the vocabulary's order."
    if facts["without"]:
        told += f" Without a branch: {', '.join(map(language_name, facts['without']))}."
    yield section("Scales of the language branches", muted(told), charts(chart))
    yield section("By layer", table)
