"""The sections of pages about states and alignment: each kind's facts as charts and tables."""

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
    text_table,
)
from mnmt_jax.analysis.scatter import PointGroup, scatter_chart, scatter_legend
from mnmt_jax.evaluation.heatmap import value_heatmap
from mnmt_jax.evaluation.html_elements import Html, breakable, tag
from mnmt_jax.evaluation.html_page import collapsible, section
from mnmt_jax.evaluation.svg_charts import Line, line_chart

_CHOICES = {
    "first": "T.1 S.",
    "second": "T.2 S.",
    "distance": "Dist.",
    "entropy": "Entropy",
    "diagonal": "own position",
}


def _by_role(places: Sequence[JsonObject]) -> Iterator[tuple[str, list[JsonObject]]]:
    for role in dict.fromkeys(place["role"] for place in places):
        yield role, [place for place in places if place["role"] == role]


def _chart(title: str, lines: Sequence[Line], y_title: str, x_title: str = "layer") -> Html:
    """Draw curves; one point by layer is no curve, and a table beside has it."""
    shown = [line for line in lines if line.points]
    if all(len(line.points) < 2 for line in shown):
        return Html("")
    return (
        chart_row(line_chart(title, shown, x_title=x_title, y_title=y_title)) if shown else Html("")
    )


def _language_map(place: JsonObject, value: str, ordered: bool) -> Html:
    """Draws a value of pairs of languages."""
    names = ("from", "to") if ordered else None
    values = {}
    for each in place["pairs"]:
        one, other = (each[n] for n in names) if names else each["languages"]
        values[one, other] = each[value]
        if not ordered:
            values[other, one] = each[value]
    codes = list(dict.fromkeys(code for pair in values for code in pair))
    rows = [(one, [values.get((one, other)) for other in codes]) for one in codes]
    known = [abs(found) for found in values.values() if found is not None]
    caption = f"{place['role']}, {location_label(place)}"
    return value_heatmap(
        caption, codes, rows, largest=max(known, default=0.0), write=format_significant
    )


def _language_maps(places: Sequence[JsonObject], value: str, ordered: bool = False) -> Html:
    maps = [_language_map(place, value, ordered) for place in places]
    return collapsible(tag("summary", "Every two languages"), *maps, unfolded=False)


# Probe


def _probe(facts: JsonObject) -> Iterator[Html]:
    subjects, probe = facts["subjects"], facts["probe"]
    names = [_subject_name(subject) for subject in subjects]
    lines = [
        Line(name, layer_curve(subject["places"], "accuracy"), run)
        for run, (name, subject) in enumerate(zip(names, subjects, strict=True))
    ]
    kind = "one hidden layer" if probe["hidden"] else "linear"
    header = ["", *itertools.chain.from_iterable((name, "held out") for name in names)]
    tested, learned = facts.get("tested_texts"), facts.get("learned_texts")
    common = f" {learned} of the {tested} texts told are also learned from." if learned else ""
    yield section(
        "Positions told rightly",
        muted_paragraph(
            f"A classifier ({kind}, {probe['updates']} updates) tells the position of each source "
            f"token from its state. Learned from: {facts['learned_from']}; told: "
            f"{facts['tested_on']}; held out: the sentences of the first that were not learned."
            f"{common}"
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
                tag("summary", breakable(f"{name}, {location_label(place)}")),
                _class_table(place["classes"]),
                unfolded=place is subject["places"][-1],
            )
            for name, subject in zip(names, subjects, strict=True)
            for place in subject["places"]
        ),
    )
    if gains := facts.get("gains"):
        yield section(
            f"What {names[1]} tells better than {names[0]}",
            muted_paragraph(
                "Percent of the types of each class, among all types and among those with a gain "
                "(TPDM paper, Table 4)."
            ),
            *(_gain_table(place) for place in gains),
        )


def _by_key(places: Iterable[JsonObject]) -> dict[tuple[int, bool], JsonObject]:
    """Returns the first of the places of each layer and end, in their order."""
    found: dict[tuple[int, bool], JsonObject] = {}
    for place in places:
        found.setdefault((place["layer"], bool(place["ended"])), place)
    return dict(sorted(found.items()))


def _accuracy_rows(subjects: Sequence[JsonObject]) -> list[list[str]]:
    """Writes what all models tell at each place that one of them has."""
    every = [_by_key(subject["places"]) for subject in subjects]
    return [
        [location_label(place)]
        + [
            format_significant(found.get(key, {}).get(value))
            for found in every
            for value in ("accuracy", "held_out")
        ]
        for key, place in _by_key(p for s in subjects for p in s["places"]).items()
    ]


def _subject_name(subject: JsonObject) -> str:
    return f"{subject['run']}, {subject['checkpoint']}"


def _by_step(subjects: Sequence[JsonObject]) -> Iterator[Html]:
    """Draws accuracy by step where all are checkpoints of one run."""
    steps = [subject["checkpoint"].removeprefix("step ") for subject in subjects]
    one_run = len({subject["run"] for subject in subjects}) == 1
    if not one_run or len(set(steps)) < 2 or not all(step.isdigit() for step in steps):
        return
    every = [_by_key(subject["places"]) for subject in subjects]
    lines = []
    for run, (key, place) in enumerate(_by_key(p for s in subjects for p in s["places"]).items()):
        points = sorted(
            (int(step), float(found["accuracy"]))
            for step, by_place in zip(steps, every, strict=True)
            if (found := by_place.get(key)) and found["accuracy"] is not None
        )
        lines.append(Line(location_label(place), tuple(points), run))
    yield _chart("Accuracy by step", lines, "share of tokens", "step")


def _class_table(classes: JsonObject) -> Html:
    header = ["class", "macro", "types", "micro", "tokens"]
    rows = [
        [
            name,
            format_significant(one["macro"]),
            str(one["types"]),
            format_significant(one["micro"]),
        ]
        + [str(one["tokens"])]
        for name, one in classes.items()
    ]
    return text_table(header, rows)


def _gain_table(place: JsonObject) -> Html:
    rows = [
        [name, format_significant(one["all"]), format_significant(one["gained"])]
        for name, one in place["classes"].items()
    ]
    told = f"{location_label(place)}: {place['gained']} of {place['types']} types gain"
    return tag("div", tag("h3", told), text_table(["class", "all types", "with a gain"], rows))


# Similarity, retrieval, SVCCA


def _similarity(facts: JsonObject) -> Iterator[Html]:
    if facts["roles"]:
        pairs = dict.fromkeys(tuple(each["roles"]) for each in facts["roles"])
        lines = [
            Line(
                " and ".join(roles),
                layer_curve(
                    [one for one in facts["roles"] if tuple(one["roles"]) == roles], "cosine"
                ),
                run,
            )
            for run, roles in enumerate(pairs)
        ]
        rows = [
            [
                f"{' and '.join(one['roles'])}, {location_label(one)}",
                format_significant(one["cosine"]),
            ]
            for one in facts["roles"]
        ]
        last = max(one["layer"] for one in facts["roles"])
        met = (
            "" if last else " The roles meet in the embedding alone, and pass layers of their own."
        )
        yield section(
            "Roles of one translation",
            muted_paragraph(
                "Cosine of the mean states, mean over sentences (registers paper, Figure 6)." + met
            ),
            _chart("Roles", lines, "cosine"),
            text_table(["", "cosine"], rows),
        )
    yield from _parallel(facts["languages"], "Cosine of mean states", "cosine")


def _parallel(
    places: Sequence[JsonObject], title: str, y_title: str, subject: str = ""
) -> Iterator[Html]:
    for role, own in _by_role(places):
        lines = [
            Line("the same sentence", layer_curve(own, "parallel"), 0),
            Line("other sentences", layer_curve(own, "others"), 1, dashed=True),
        ]
        rows = [
            [location_label(p), *(format_significant(p[k]) for k in ("parallel", "others"))]
            for p in own
        ]
        yield section(
            f"{subject}Languages, {role} states",
            muted_paragraph(
                f"{title} of two languages, translated into the same third; mean over languages."
            ),
            _chart(role, lines, y_title),
            text_table(["", "the same sentence", "others"], rows),
            _language_maps(own, "parallel"),
        )


def _retrieval(facts: JsonObject) -> Iterator[Html]:
    places = facts["places"]
    lines = [
        Line(role, layer_curve(own, "accuracy"), run)
        for run, (role, own) in enumerate(_by_role(places))
    ]
    rows = [
        [f"{p['role']}, {location_label(p)}", format_significant(p["accuracy"])] for p in places
    ]
    yield section(
        "Sentences found by their states",
        muted_paragraph(
            "Share of sentences whose nearest sentence in another language, by the cosine of mean "
            f"states, is the same one; guessing finds {format_significant(facts['chance'])}."
        ),
        _chart("Accuracy", lines, "share of sentences"),
        text_table(["", "accuracy"], rows),
        _language_maps(places, "accuracy", ordered=True),
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


def _preference(places: Sequence[JsonObject]) -> Iterator[Html]:
    yield muted_paragraph(
        "Above 0.5 nearer to what the target language's own sentence gives, below to the source "
        "language's; mean over directions, dashed the least and the most (TDO paper, Figure 4)."
    )
    for role, own in _by_role(places):
        values = [("mean", False), ("least", True), ("most", True)]
        lines = [Line(name, layer_curve(own, name), 0, dashed) for name, dashed in values]
        yield _chart(role, lines, "preference")
        shown = [place for place in own if not place["ended"]]
        rows = [
            (direction_label(each), [place["directions"][n]["preference"] for place in shown])
            for n, each in enumerate(own[0]["directions"])
        ]
        columns = [location_label(place) for place in shown]
        table = value_heatmap(role, columns, rows, largest=1.0, write=format_significant)
        yield collapsible(tag("summary", "Every direction"), table, unfolded=False)


def _between_maps(between: Sequence[JsonObject]) -> Iterator[Html]:
    for role in dict.fromkeys(each["first"]["role"] for each in between):
        own = {
            (location_label(each["first"]), location_label(each["second"])): each
            for each in between
            if each["first"]["role"] == role
        }
        columns = list(dict.fromkeys(second for _, second in own))
        for value, title in (("svcca", role), ("others", f"{role}, other sentences")):
            rows = [
                (first, [own[first, second][value] for second in columns])
                for first in dict.fromkeys(first for first, _ in own)
            ]
            yield value_heatmap(title, columns, rows, largest=1.0, write=format_significant)


# States


def _states(facts: JsonObject) -> Iterator[Html]:
    what = "tokens" if facts["tokens"] else "means of sentences"
    used = sorted({plane["perplexity"] for plane in facts["planes"]})
    perplexity = " to ".join(f"{each:.3g}" for each in dict.fromkeys([used[0], used[-1]]))
    told = f"t-SNE of {what}, perplexity {perplexity}, seed {facts['seed']}."
    every = [each for plane in facts["planes"] for each in plane["classes"]]
    colours = list(dict.fromkeys((each["source"], each["target"]) for each in every))
    shapes = list(dict.fromkeys(each["role"] for each in every))

    def group(each: JsonObject) -> PointGroup:
        return PointGroup(
            f"{each['role']}, {direction_label(each)}",
            each["points"],
            colours.index((each["source"], each["target"])),
            shapes.index(each["role"]),
        )

    legend = {one.label: one for one in map(group, every)}
    drawn = [
        scatter_chart(location_label(plane), list(map(group, plane["classes"])))
        for plane in facts["planes"]
    ]
    yield section(
        "States on a plane",
        muted_paragraph(told),
        scatter_legend(list(legend.values())),
        chart_row(*drawn),
    )


# Alignment


def _alignment(facts: JsonObject) -> Iterator[Html]:
    rows = _mean_layers(facts["directions"])
    for query in dict.fromkeys(row["query"] for row in rows):
        own = [row for row in rows if row["query"] == query]
        columns = list(dict.fromkeys(name for row in own for name in row["mass"]))
        shares = [
            (f"layer {row['layer']}", [row["mass"].get(name) for name in columns]) for row in own
        ]
        table = value_heatmap(f"{query} to", columns, shares, largest=1.0, write=format_percent)
        yield section(
            f"What {query} tokens attend to",
            muted_paragraph("Percent of the weight, mean over heads, tokens and sentences."),
            table,
            *_choice_tables(own),
        )


def _mean_layers(directions: Sequence[JsonObject]) -> list[JsonObject]:
    """Returns the layers' means over the sentences of all directions."""
    total = sum(each["sentences"] for each in directions)
    found: list[JsonObject] = []
    for layers in zip(*(each["layers"] for each in directions), strict=True):
        weights = [each["sentences"] / total for each in directions]

        def mean(
            values: Sequence[float | None], weights: Sequence[float] = weights
        ) -> float | None:
            if any(value is None for value in values):
                return None
            return sum(w * v for w, v in zip(weights, values, strict=True) if v is not None)

        first = layers[0]
        mass = {name: mean([layer["mass"][name] for layer in layers]) for name in first["mass"]}
        choices = {
            role: {name: mean([layer["choices"][role][name] for layer in layers]) for name in one}
            for role, one in first["choices"].items()
        }
        found.append({**first, "mass": mass, "choices": choices})
    return found


def _choice_tables(rows: Sequence[JsonObject]) -> Iterator[Html]:
    for role in dict.fromkeys(role for row in rows for role in row["choices"]):
        own = [row for row in rows if role in row["choices"]]
        table = [
            [
                f"layer {row['layer']}",
                *(format_significant(row["choices"][role][n]) for n in _CHOICES),
            ]
            for row in own
        ]
        sums = [[row["choices"][role][name] for row in own] for name in _CHOICES]
        table.append(["sum", *(format_significant(_known_sum(each)) for each in sums)])
        title = f"Which {role} token has the most weight (registers paper, Table 6)"
        yield tag("div", tag("h3", title), text_table(["", *_CHOICES.values()], table))


def _known_sum(values: Sequence[float | None]) -> float | None:
    """Returns the sum of the values there are; None if there are none."""
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
"""How the facts of each kind are drawn."""
