"""The report: one HTML file, without anything from elsewhere, on one or several runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.chart import Line, line_chart
from mnmt_jax.evaluation.heat_map import heat_maps
from mnmt_jax.evaluation.markup import Html, join, language_name, tag, text_in
from mnmt_jax.evaluation.metrics import is_exact
from mnmt_jax.evaluation.page import fold, generator_mark, html_page, section
from mnmt_jax.evaluation.result import METRICS, Metric, RunResult, Sample, languages_of
from mnmt_jax.evaluation.table import (
    average_rows,
    format_count,
    format_score,
    group_mean,
    leading_metrics,
    model_label,
    paper_table,
    summary_groups,
)
from mnmt_jax.files.partial import write_text

_OPEN_DIRECTIONS = 4  # directions whose samples are unfolded
_LONG_TEXT = 160  # characters from which a sample takes two columns, not one per text
_OPEN_LANGUAGES = 9  # from here on only the leading metrics' maps are unfolded
_GENERATOR = generator_mark("mnmt-jax")
_METHODS = "How this was computed"


def write_report(path: str | Path, runs: Sequence[RunResult]) -> None:
    """Writes the report of one run, or of several beside each other.

    Args:
        path: of the HTML file; its folder is made.
        runs: evaluations of one task; what is compared is comparable only if they had the same
            test sentences.

    Raises:
        UserError: if there is no run.
    """
    if not runs:
        raise UserError("a report needs the result of at least one run")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, report_page(runs))


def is_report(text: str) -> bool:
    """Returns whether `write_report` wrote a page, of this version or of one without its mark."""
    return _GENERATOR in text or tag("h2", _METHODS) in text


def report_page(runs: Sequence[RunResult]) -> str:
    """Returns the report as HTML."""
    tasks = ", ".join(dict.fromkeys(run.task for run in runs))
    title = f"{' and '.join(model_label(run) for run in runs)} on {tasks}"
    sections = [
        _header(title, runs),
        _summary(runs),
        _maps(runs),
        _curves(runs),
        _samples(runs),
        _averages(runs),
        _paper(runs),
        _methods(runs),
    ]
    return html_page(title, sections, generator=_GENERATOR)


def _header(title: str, runs: Sequence[RunResult]) -> Html:
    first = runs[0]
    languages = ", ".join(language_name(code) for code in languages_of(runs))
    directions = len({item.direction for run in runs for item in run.directions})
    sentences = sum(item.sentences for item in first.directions)
    facts = f"{directions} directions between {languages}; {sentences:,} translations per model."
    return tag("header", tag("h1", title), tag("p", facts, class_="muted"))


# Summary


def _summary(runs: Sequence[RunResult]) -> Html:
    metrics, groups = leading_metrics(runs), summary_groups(runs)
    top = [tag("th", "")]
    below = [tag("th", "model", scope="col")]
    for field, title in groups:
        counts = {group_mean(run, "chrf", field).directions for run in runs}
        text = f"{title}, {'/'.join(map(str, sorted(counts)))} directions"
        top.append(tag("th", text, colspan=len(metrics), scope="colgroup", class_="group"))
        below += [
            tag("th", metric.title, scope="col", class_="first" if place == 0 else "")
            for place, metric in enumerate(metrics)
        ]
    top.append(tag("th", "training", colspan=3, scope="colgroup", class_="group"))
    below += [
        tag("th", text, scope="col", class_="first" if place == 0 else "")
        for place, text in enumerate(("steps", "seconds", "parameters"))
    ]
    rows = [_summary_row(runs, number, metrics, groups) for number in range(len(runs))]
    table = tag(
        "table",
        tag("thead", tag("tr", top), tag("tr", below)),
        tag("tbody", rows),
        class_="summary",
    )
    told = "Unweighted means over directions, in percent."
    told += " Bold is best." if len(runs) > 1 else ""
    return section("Summary", tag("p", told, class_="muted"), tag("div", table, class_="scroll"))


def _summary_row(
    runs: Sequence[RunResult],
    number: int,
    metrics: Sequence[Metric],
    groups: Sequence[tuple[str, str]],
) -> Html:
    run = runs[number]
    cells = [tag("th", model_label(run), scope="row", class_=f"name run-{number % 5}")]
    for field, _ in groups:
        for place, metric in enumerate(metrics):
            means = [group_mean(other, metric.key, field).mean for other in runs]
            present = [value for value in means if value is not None]
            choose = max if metric.higher_is_better else min
            best = len(runs) > 1 and bool(present) and means[number] == choose(present)
            classes = " ".join((["first"] if place == 0 else []) + (["best"] if best else []))
            cells.append(tag("td", format_score(means[number]), class_=classes))
    cells.append(tag("td", format_count(run.step), class_="first"))
    cells += [tag("td", format_count(fact)) for fact in (run.seconds, run.parameters)]
    return tag("tr", cells)


# Heat maps and averages


def _maps(runs: Sequence[RunResult]) -> Html:
    languages = languages_of(runs)
    leading = leading_metrics(runs)
    parts = []
    for metric in METRICS:
        if all(value is None for run in runs for value in run.values(metric.key).values()):
            continue
        explanation = tag("p", metric.explanation, _floor(metric, runs), class_="muted")
        small = len(languages) < _OPEN_LANGUAGES
        unfolded = metric in (leading[0], leading[-1]) or small
        body = [explanation, heat_maps(runs, metric, languages)]
        parts.append(fold(tag("summary", metric.title), *body, unfolded=unfolded))
    return section("Every direction", parts)


def _floor(metric: Metric, runs: Sequence[RunResult]) -> str:
    """Tells how often lid.176 errs on the references."""
    if metric.key != "off_target_lid":
        return ""
    floor = group_mean(runs[0], "off_target_lid_reference", "all").mean
    return "" if floor is None else f" On the references themselves it says {floor:.1f} %."


def _averages(runs: Sequence[RunResult]) -> Html:
    tables = []
    for number, run in enumerate(runs):
        metrics = [
            metric
            for metric in METRICS
            if any(value is not None for value in run.values(metric.key).values())
        ]
        columns = [average_rows(run.averages[metric.key]) for metric in metrics]
        rows = []
        for cells in zip(*columns, strict=True):
            count = max(average.directions for _, average in cells)
            if count:
                rows.append(
                    tag(
                        "tr",
                        tag("th", cells[0][0], scope="row"),
                        tag("td", str(count)),
                        [tag("td", format_score(average.mean)) for _, average in cells],
                    )
                )
        titles = ["group", "directions", *(metric.title for metric in metrics)]
        head = tag("thead", tag("tr", [tag("th", text, scope="col") for text in titles]))
        caption = tag("caption", tag("span", run.name, class_=f"name run-{number % 5}"))
        table = tag("table", caption, head, tag("tbody", rows), class_="averages")
        tables.append(tag("div", table, class_="scroll map"))
    return section("Averages by group", tag("div", tables, class_="maps"))


def _paper(runs: Sequence[RunResult]) -> list[Html]:
    """Shows the averages of a published procedure, apart from the others."""
    tables = []
    label = ""
    for number, run in enumerate(runs):
        if not run.paper:
            continue
        label = str(run.paper["label"])
        header, rows = paper_table(run)
        head = tag("thead", tag("tr", [tag("th", text, scope="col") for text in header]))
        body = [
            tag("tr", tag("th", row[0], scope="row"), [tag("td", cell) for cell in row[1:]])
            for row in rows
        ]
        name = tag("span", run.name, class_=f"name run-{number % 5}")
        caption = tag("caption", name, f" by the procedure of {run.paper['procedure']}")
        table = tag("table", caption, head, tag("tbody", body), class_="averages")
        tables.append(tag("div", table, class_="scroll map"))
    if not tables:
        return []
    told = tag("p", f"{label}. Not comparable with the numbers above.", class_="muted")
    return [section("As published", told, tag("div", tables, class_="maps"))]


# Curves


def _curves(runs: Sequence[RunResult]) -> list[Html]:
    training = [
        Line(run.name, run.curves["train"], number)
        for number, run in enumerate(runs)
        if run.curves.get("train")
    ]
    validation = [
        Line(f"{run.name}, {title}", run.curves[name], number, dashed=name == "zero_shot")
        for number, run in enumerate(runs)
        for name, title in (("supervised", "supervised"), ("zero_shot", "zero-shot"))
        if run.curves.get(name)
    ]
    axes = {"x_title": "updates", "y_title": "nats per target token"}
    charts = [
        line_chart(title, lines, **axes)
        for title, lines in (("Training loss", training), ("Validation loss", validation))
        if lines
    ]
    if not charts:
        return []
    told = "Negative log-likelihood of the reference; the legend gives the last value."
    return [
        section("Training", tag("p", told, class_="muted"), tag("div", charts, class_="charts"))
    ]


# Samples


def _samples(runs: Sequence[RunResult]) -> list[Html]:
    by_direction: dict[tuple[str, str], list[Sample]] = {}
    for sample in runs[0].samples:
        by_direction.setdefault(sample.direction, []).append(sample)
    supervised = runs[0].supervised
    ordered = sorted(by_direction, key=lambda pair: supervised is not None and pair in supervised)
    others = [{(sample.direction, sample.index): sample for sample in run.samples} for run in runs]
    parts = []
    for place, pair in enumerate(ordered):
        names = f"{language_name(pair[0])} → {language_name(pair[1])}"
        kind = "" if supervised is None else "trained on" if pair in supervised else "zero-shot"
        summary = tag("summary", names, tag("span", f"  {kind}", class_="muted"))
        cards = [_card(sample, runs, others) for sample in by_direction[pair]]
        parts.append(fold(summary, *cards, unfolded=place < _OPEN_DIRECTIONS))
    if not parts:
        return []
    told = "Taken by their place in the test set, not by quality."
    return [section("Sample translations", tag("p", told, class_="muted"), parts)]


def _card(
    sample: Sample,
    runs: Sequence[RunResult],
    others: Sequence[Mapping[tuple[tuple[str, str], int], Sample]],
) -> Html:
    cells = [
        _cell(tag("span", "source", class_="key"), text_in(sample.source, sample.source_text)),
        _cell(tag("span", "reference", class_="key"), text_in(sample.target, sample.reference)),
    ]
    for number, run in enumerate(runs):
        found = others[number].get((sample.direction, sample.index))
        if found is not None and found.reference == sample.reference:
            label = tag("span", run.name, class_=f"key name run-{number % 5}")
            hypothesis = text_in(found.detected or found.target, found.hypothesis)
            cells.append(_cell(label, hypothesis, _mark(found)))
    long = max(len(sample.source_text), len(sample.reference)) > _LONG_TEXT
    columns = 2 if long else len(cells)
    return tag("div", cells, class_="sample", style=f"--columns:{columns}")


def _cell(*children: Html) -> Html:
    return tag("div", *children)


def _mark(sample: Sample) -> Html:
    """Says beside a hypothesis whether it is exact, and which language it is in."""
    if is_exact(sample.hypothesis, sample.reference):
        return tag("span", "✓ exact", class_="mark exact")
    if not sample.detected:
        return tag("span", "no language detected", class_="mark")
    name = language_name(sample.detected)
    if sample.detected != sample.target:
        return tag("span", f"✗ off-target: {name}", class_="mark off")
    return tag("span", f"detected: {name}", class_="mark")


# How it was computed


def _methods(runs: Sequence[RunResult]) -> Html:
    parts: list[Html] = []
    for number, run in enumerate(runs):
        rows = []
        for metric, signature in run.signatures.items():
            items = signature.items() if isinstance(signature, Mapping) else [("", signature)]
            for part, text in items:
                rows += [
                    tag("dt", f"{metric} {part}".strip()),
                    tag("dd", tag("code", str(text))),
                ]
        for key, value in run.decoding.items():
            rows += [tag("dt", key), tag("dd", str(value))]
        parts.append(tag("h3", tag("span", run.name, class_=f"name run-{number % 5}")))
        parts.append(tag("dl", rows))
        if run.notes:
            parts.append(tag("ul", [tag("li", note) for note in run.notes]))
        if run.config:
            listing = tag("pre", _config_text(run.config))
            parts.append(fold(tag("summary", "Configuration"), listing, unfolded=False))
    return section(_METHODS, join(parts))


def _config_text(config: Mapping[str, Any]) -> str:
    return "\n".join(
        f"{section}.{field} = {json.dumps(value, ensure_ascii=False)}"
        for section, fields in config.items()
        for field, value in (fields.items() if isinstance(fields, Mapping) else [("", fields)])
    )
