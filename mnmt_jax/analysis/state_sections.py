"""HTML sections of analyses of states and of alignment, with charts and tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from mnmt_jax.analysis.page_elements import (
    JsonObject,
    chart_row,
    direction_label,
    format_percent,
    format_significant,
    layer_curve,
    location_label,
    muted_paragraph,
)
from mnmt_jax.analysis.scatter import PointGroup, scatter_chart, scatter_legend
from mnmt_jax.pages.heatmap import value_heatmap
from mnmt_jax.pages.html_elements import Html, breakable, tag
from mnmt_jax.pages.html_page import collapsible, section, text_table
from mnmt_jax.pages.svg_charts import Line, line_chart

_STATISTIC_TITLES = {
    "first": "T.1 S.",
    "second": "T.2 S.",
    "distance": "Dist.",
    "entropy": "Entropy",
    "diagonal": "own position",
}


def _by_role(locations: Sequence[JsonObject]) -> Iterator[tuple[str, list[JsonObject]]]:
    for role in dict.fromkeys(location["role"] for location in locations):
        yield role, [location for location in locations if location["role"] == role]


def _chart(title: str, lines: Sequence[Line], y_title: str, x_title: str = "layer") -> Html:
    """Draw curves with two or more points; a table next to the chart has single points."""
    shown = [line for line in lines if line.points]
    if all(len(line.points) < 2 for line in shown):
        return Html("")
    return (
        chart_row(line_chart(title, shown, x_title=x_title, y_title=y_title)) if shown else Html("")
    )


def _language_map(location: JsonObject, value: str, ordered: bool) -> Html:
    """Draw a heat map of values between languages."""
    names = ("from", "to") if ordered else None
    values = {}
    for pair in location["pairs"]:
        first, second = (pair[name] for name in names) if names else pair["languages"]
        values[first, second] = pair[value]
        if not ordered:
            values[second, first] = pair[value]
    codes = list(dict.fromkeys(code for language_pair in values for code in language_pair))
    rows = [(first, [values.get((first, second)) for second in codes]) for first in codes]
    magnitudes = [abs(number) for number in values.values() if number is not None]
    caption = f"{location['role']}, {location_label(location)}"
    return value_heatmap(
        caption, codes, rows, largest=max(magnitudes, default=0.0), write=format_significant
    )


def _language_maps(locations: Sequence[JsonObject], value: str, ordered: bool = False) -> Html:
    maps = [_language_map(location, value, ordered) for location in locations]
    return collapsible(tag("summary", "Every two languages"), *maps, unfolded=False)


# Probe


def _probe(facts: JsonObject) -> Iterator[Html]:
    subjects, probe = facts["subjects"], facts["probe"]
    names = [_subject_name(subject) for subject in subjects]
    lines = [
        Line(name, layer_curve(subject["places"], "accuracy"), index)
        for index, (name, subject) in enumerate(zip(names, subjects, strict=True))
    ]
    kind = "one hidden layer" if probe["hidden"] else "linear"
    header = ["", *itertools.chain.from_iterable((name, "held out") for name in names)]
    tested, learned = facts.get("tested_texts"), facts.get("learned_texts")
    overlap_note = (
        f" {learned} of the {tested} test texts are also in the training texts." if learned else ""
    )
    yield section(
        "Accuracy of position prediction",
        muted_paragraph(
            f"A classifier ({kind}, {probe['updates']} updates) predicts the position of each "
            f"source token from its state. Trained on: {facts['learned_from']}; tested on: "
            f"{facts['tested_on']}; held out: sentences of the training split that were not used "
            f"for training.{overlap_note}"
        ),
        _chart("Accuracy", lines, "share of tokens"),
        *_by_step(subjects),
        text_table(header, _accuracy_rows(subjects)),
    )
    yield section(
        "Classes of tokens",
        muted_paragraph(
            f"Macro: mean over types with {facts['least']} tokens or more; micro: over tokens. "
            "Classes overlap."
        ),
        *(
            collapsible(
                tag("summary", breakable(f"{name}, {location_label(location)}")),
                _class_table(location["classes"]),
                unfolded=location is subject["places"][-1],
            )
            for name, subject in zip(names, subjects, strict=True)
            for location in subject["places"]
        ),
    )
    if gains := facts.get("gains"):
        yield section(
            f"What {names[1]} predicts better than {names[0]}",
            muted_paragraph(
                "Percent of the types of each class, among all types and among those with a gain "
                "(TPDM paper, Table 4)."
            ),
            *(_gain_table(location) for location in gains),
        )


def _by_key(locations: Iterable[JsonObject]) -> dict[tuple[int, bool], JsonObject]:
    """Return the first location of each layer and end, sorted."""
    by_key: dict[tuple[int, bool], JsonObject] = {}
    for location in locations:
        by_key.setdefault((location["layer"], bool(location["ended"])), location)
    return dict(sorted(by_key.items()))


def _accuracy_rows(subjects: Sequence[JsonObject]) -> list[list[str]]:
    """Return table rows with the accuracy of all models at each location of any model."""
    by_subject = [_by_key(subject["places"]) for subject in subjects]
    return [
        [location_label(location)]
        + [
            format_significant(by_key.get(key, {}).get(value))
            for by_key in by_subject
            for value in ("accuracy", "held_out")
        ]
        for key, location in _by_key(
            location for subject in subjects for location in subject["places"]
        ).items()
    ]


def _subject_name(subject: JsonObject) -> str:
    return f"{subject['run']}, {subject['checkpoint']}"


def _by_step(subjects: Sequence[JsonObject]) -> Iterator[Html]:
    """Draw accuracy by step if all subjects are checkpoints of one run."""
    steps = [subject["checkpoint"].removeprefix("step ") for subject in subjects]
    one_run = len({subject["run"] for subject in subjects}) == 1
    if not one_run or len(set(steps)) < 2 or not all(step.isdigit() for step in steps):
        return
    by_subject = [_by_key(subject["places"]) for subject in subjects]
    lines = []
    for index, (key, first_location) in enumerate(
        _by_key(location for subject in subjects for location in subject["places"]).items()
    ):
        points = sorted(
            (int(step), float(location["accuracy"]))
            for step, by_location in zip(steps, by_subject, strict=True)
            if (location := by_location.get(key)) and location["accuracy"] is not None
        )
        lines.append(Line(location_label(first_location), tuple(points), index))
    yield _chart("Accuracy by step", lines, "share of tokens", "step")


def _class_table(classes: JsonObject) -> Html:
    header = ["class", "macro", "types", "micro", "tokens"]
    rows = [
        [
            name,
            format_significant(scores["macro"]),
            str(scores["types"]),
            format_significant(scores["micro"]),
        ]
        + [str(scores["tokens"])]
        for name, scores in classes.items()
    ]
    return text_table(header, rows)


def _gain_table(location: JsonObject) -> Html:
    rows = [
        [name, format_significant(shares["all"]), format_significant(shares["gained"])]
        for name, shares in location["classes"].items()
    ]
    title = f"{location_label(location)}: {location['gained']} of {location['types']} types gain"
    return tag("div", tag("h3", title), text_table(["class", "all types", "with a gain"], rows))


# Similarity, retrieval, SVCCA


def _similarity(facts: JsonObject) -> Iterator[Html]:
    if facts["roles"]:
        pairs = dict.fromkeys(tuple(pair["roles"]) for pair in facts["roles"])
        lines = [
            Line(
                " and ".join(roles),
                layer_curve(
                    [pair for pair in facts["roles"] if tuple(pair["roles"]) == roles], "cosine"
                ),
                index,
            )
            for index, roles in enumerate(pairs)
        ]
        rows = [
            [
                f"{' and '.join(pair['roles'])}, {location_label(pair)}",
                format_significant(pair["cosine"]),
            ]
            for pair in facts["roles"]
        ]
        last_layer = max(pair["layer"] for pair in facts["roles"])
        note = (
            ""
            if last_layer
            else " The roles meet in the embedding alone, and pass layers of their own."
        )
        yield section(
            "Roles of one translation",
            muted_paragraph(
                "Cosine of the mean states, mean over sentences (registers paper, Figure 6)." + note
            ),
            _chart("Roles", lines, "cosine"),
            text_table(["", "cosine"], rows),
        )
    yield from _parallel(facts["languages"], "Cosine of mean states", "cosine")


def _parallel(
    locations: Sequence[JsonObject], title: str, y_title: str, subject: str = ""
) -> Iterator[Html]:
    for role, role_locations in _by_role(locations):
        lines = [
            Line("the same sentence", layer_curve(role_locations, "parallel"), 0),
            Line("other sentences", layer_curve(role_locations, "others"), 1, dashed=True),
        ]
        rows = [
            [
                location_label(location),
                *(format_significant(location[key]) for key in ("parallel", "others")),
            ]
            for location in role_locations
        ]
        yield section(
            f"{subject}Languages, {role} states",
            muted_paragraph(
                f"{title} of two languages, translated into the same third; mean over languages."
            ),
            _chart(role, lines, y_title),
            text_table(["", "the same sentence", "others"], rows),
            _language_maps(role_locations, "parallel"),
        )


def _retrieval(facts: JsonObject) -> Iterator[Html]:
    locations = facts["places"]
    lines = [
        Line(role, layer_curve(role_locations, "accuracy"), index)
        for index, (role, role_locations) in enumerate(_by_role(locations))
    ]
    rows = [
        [
            f"{location['role']}, {location_label(location)}",
            format_significant(location["accuracy"]),
        ]
        for location in locations
    ]
    yield section(
        "Sentences found by their states",
        muted_paragraph(
            "Share of sentences whose nearest sentence in another language, by the cosine of mean "
            f"states, is its translation; chance level {format_significant(facts['chance'])}."
        ),
        _chart("Accuracy", lines, "share of sentences"),
        text_table(["", "accuracy"], rows),
        _language_maps(locations, "accuracy", ordered=True),
    )


def _svcca(facts: JsonObject) -> Iterator[Html]:
    for subject in facts["subjects"]:
        name = f"{_subject_name(subject)}: " if len(facts["subjects"]) > 1 else ""
        if subject["preference"]:
            title = f"{name}Preference of the source's states"
            yield section(title, *_preference(subject["preference"]))
        yield from _parallel(subject["languages"], "SVCCA", "mean correlation", name)
    if between := facts.get("between"):
        names = [_subject_name(subject) for subject in facts["subjects"]]
        yield section(
            f"{names[0]} (rows) and {names[1]} (columns)",
            muted_paragraph("SVCCA of the states of the same sentences, mean over directions."),
            *_between_maps(between),
        )


def _preference(locations: Sequence[JsonObject]) -> Iterator[Html]:
    yield muted_paragraph(
        "Above 0.5, states are nearer to those of the same sentence in the target language, below "
        "0.5 to those in the source language; mean over directions, dashed: minimum and maximum "
        "(TDO paper, Figure 4)."
    )
    for role, role_locations in _by_role(locations):
        values = [("mean", False), ("least", True), ("most", True)]
        lines = [
            Line(name, layer_curve(role_locations, name), 0, dashed) for name, dashed in values
        ]
        yield _chart(role, lines, "preference")
        shown = [location for location in role_locations if not location["ended"]]
        rows = [
            (
                direction_label(direction),
                [location["directions"][index]["preference"] for location in shown],
            )
            for index, direction in enumerate(role_locations[0]["directions"])
        ]
        columns = [location_label(location) for location in shown]
        table = value_heatmap(role, columns, rows, largest=1.0, write=format_significant)
        yield collapsible(tag("summary", "Every direction"), table, unfolded=False)


def _between_maps(between: Sequence[JsonObject]) -> Iterator[Html]:
    for role in dict.fromkeys(pair["first"]["role"] for pair in between):
        by_labels = {
            (location_label(pair["first"]), location_label(pair["second"])): pair
            for pair in between
            if pair["first"]["role"] == role
        }
        columns = list(dict.fromkeys(second for _, second in by_labels))
        for value, title in (("svcca", role), ("others", f"{role}, other sentences")):
            rows = [
                (first, [by_labels[first, second][value] for second in columns])
                for first in dict.fromkeys(first for first, _ in by_labels)
            ]
            yield value_heatmap(title, columns, rows, largest=1.0, write=format_significant)


# States


def _states(facts: JsonObject) -> Iterator[Html]:
    unit = "tokens" if facts["tokens"] else "means of sentences"
    perplexities = sorted({plane["perplexity"] for plane in facts["planes"]})
    perplexity = " to ".join(
        f"{value:.3g}" for value in dict.fromkeys([perplexities[0], perplexities[-1]])
    )
    note = f"t-SNE of {unit}, perplexity {perplexity}, seed {facts['seed']}."
    all_classes = [point_class for plane in facts["planes"] for point_class in plane["classes"]]
    colours = list(
        dict.fromkeys((point_class["source"], point_class["target"]) for point_class in all_classes)
    )
    shapes = list(dict.fromkeys(point_class["role"] for point_class in all_classes))

    def make_group(point_class: JsonObject) -> PointGroup:
        return PointGroup(
            f"{point_class['role']}, {direction_label(point_class)}",
            point_class["points"],
            colours.index((point_class["source"], point_class["target"])),
            shapes.index(point_class["role"]),
        )

    legend = {group.label: group for group in map(make_group, all_classes)}
    charts = [
        scatter_chart(location_label(plane), list(map(make_group, plane["classes"])))
        for plane in facts["planes"]
    ]
    yield section(
        "t-SNE of the states",
        muted_paragraph(note),
        scatter_legend(list(legend.values())),
        chart_row(*charts),
    )


# Alignment


def _alignment(facts: JsonObject) -> Iterator[Html]:
    rows = _mean_over_directions(facts["directions"])
    for query in dict.fromkeys(row["query"] for row in rows):
        query_rows = [row for row in rows if row["query"] == query]
        columns = list(dict.fromkeys(name for row in query_rows for name in row["mass"]))
        shares = [
            (f"layer {row['layer']}", [row["mass"].get(name) for name in columns])
            for row in query_rows
        ]
        table = value_heatmap(f"{query} to", columns, shares, largest=1.0, write=format_percent)
        yield section(
            f"What {query} tokens attend to",
            muted_paragraph("Percent of the weight, mean over heads, tokens and sentences."),
            table,
            *_choice_tables(query_rows),
        )


def _mean_over_directions(directions: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the mean of each layer over the sentences of all directions."""
    total = sum(direction["sentences"] for direction in directions)
    means: list[JsonObject] = []
    for layers in zip(*(direction["layers"] for direction in directions), strict=True):
        weights = [direction["sentences"] / total for direction in directions]

        def mean(
            values: Sequence[float | None], weights: Sequence[float] = weights
        ) -> float | None:
            if any(value is None for value in values):
                return None
            return sum(
                weight * value
                for weight, value in zip(weights, values, strict=True)
                if value is not None
            )

        first = layers[0]
        mass = {name: mean([layer["mass"][name] for layer in layers]) for name in first["mass"]}
        choices = {
            role: {
                name: mean([layer["choices"][role][name] for layer in layers])
                for name in statistics
            }
            for role, statistics in first["choices"].items()
        }
        means.append({**first, "mass": mass, "choices": choices})
    return means


def _choice_tables(rows: Sequence[JsonObject]) -> Iterator[Html]:
    for role in dict.fromkeys(role for row in rows for role in row["choices"]):
        role_rows = [row for row in rows if role in row["choices"]]
        table = [
            [
                f"layer {row['layer']}",
                *(format_significant(row["choices"][role][name]) for name in _STATISTIC_TITLES),
            ]
            for row in role_rows
        ]
        columns = [[row["choices"][role][name] for row in role_rows] for name in _STATISTIC_TITLES]
        table.append(["sum", *(format_significant(_known_sum(column)) for column in columns)])
        title = f"Which {role} token has the most weight (registers paper, Table 6)"
        yield tag("div", tag("h3", title), text_table(["", *_STATISTIC_TITLES.values()], table))


def _known_sum(values: Sequence[float | None]) -> float | None:
    """Return the sum of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


STATE_SECTIONS: Mapping[str, Callable[[JsonObject], Iterator[Html]]] = {
    "probe": _probe,
    "similarity": _similarity,
    "retrieval": _retrieval,
    "svcca": _svcca,
    "states": _states,
    "alignment": _alignment,
}
"""Renderers of the sections of each kind of analysis."""
