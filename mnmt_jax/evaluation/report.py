"""Self-contained HTML report of one or several evaluated runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from mnmt_jax.errors import UserError, pluralize
from mnmt_jax.evaluation.comparison import (
    DirectionGroup,
    common_groups,
    common_samples,
    comparison_notes,
    direction_groups,
    limit_notes,
    metric_notes,
    training_reference,
    with_common_directions,
)
from mnmt_jax.evaluation.language_normalization import normalized_section
from mnmt_jax.evaluation.metric_heatmaps import metric_heatmaps
from mnmt_jax.evaluation.metrics import is_exact
from mnmt_jax.evaluation.quality_flags import quality_section
from mnmt_jax.evaluation.result import (
    Metric,
    RunResult,
    Sample,
    TestSentence,
    languages_of,
    titled_metrics,
)
from mnmt_jax.evaluation.result_labels import decoding_label, model_label, step_label
from mnmt_jax.evaluation.result_tables import (
    average_rows,
    group_mean,
    leading_metrics,
    paper_table,
    training_rows,
)
from mnmt_jax.evaluation.seed_statistics import seed_notes
from mnmt_jax.evaluation.significance import SentenceSignificance
from mnmt_jax.evaluation.significance_tables import difference_section, seed_section
from mnmt_jax.files.atomic_write import write_text
from mnmt_jax.pages.html_elements import Html, breakable, join, language_name, tag, text_in
from mnmt_jax.pages.html_page import (
    collapsible,
    generator_mark,
    html_page,
    run_name,
    run_title,
    section,
)
from mnmt_jax.pages.markdown_tables import format_count, format_half_width, format_score
from mnmt_jax.pages.svg_charts import Line, line_chart

_UNFOLDED_DIRECTIONS = 4  # number of directions whose samples are unfolded
_LONG_TEXT = 160  # characters; samples with longer texts have two columns
_MAX_COLUMNS = 5  # maximal number of texts of a sample side by side; more are shown as rows
_UNFOLDED_LANGUAGES = 9  # number of languages from which other metrics' maps are folded
_GENERATOR = generator_mark("mnmt-jax")
_METHODS_TITLE = "How this was computed"


def write_report(
    path: str | Path,
    runs: Sequence[RunResult],
    metrics: Sequence[str] = (),
    *,
    significance: SentenceSignificance | None = None,
    by_seed: Mapping[str, Sequence[RunResult]] | None = None,
    compared: Sequence[int] | None = None,
) -> None:
    """Write the report of one run, or of several runs side by side.

    Args:
        path: path of the HTML file; its folder is created.
        runs: evaluations of one task. Their scores are comparable only on the same test sentences.
        metrics: keys of the metrics that lead the page, as in `leading_metrics`.
        significance: intervals and tests of the runs; None leaves them out.
        by_seed: the runs by system, one per seed, as `group_by_seed`; None without this section.
        compared: numbers of the runs whose difference to the first is tested; None for all.

    Raises:
        UserError: if there is no run.
    """
    if not runs:
        raise UserError("a report needs the result of at least one run")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    page = report_page(runs, metrics, significance=significance, by_seed=by_seed, compared=compared)
    write_text(path, page)


def is_report(text: str) -> bool:
    """Return whether a page is a report, with or without the generator mark."""
    return _GENERATOR in text or tag("h2", _METHODS_TITLE) in text


def report_page(
    runs: Sequence[RunResult],
    metrics: Sequence[str] = (),
    *,
    significance: SentenceSignificance | None = None,
    by_seed: Mapping[str, Sequence[RunResult]] | None = None,
    compared: Sequence[int] | None = None,
) -> str:
    """Return the report as HTML; the arguments are those of `write_report`."""
    leading = leading_metrics(runs, metrics)
    tasks = ", ".join(dict.fromkeys(run.task for run in runs))
    systems = by_seed or {}
    labels = list(systems) or [model_label(run) for run in runs]
    title = f"{run_title(labels, 'models')} on {tasks}"
    sections = [
        _header(title, runs),
        seed_section(systems, metrics, notes=seed_notes(systems)),
        _summary(runs, leading, significance, mark_best=not systems),
        difference_section(runs, leading, significance, compared),
        quality_section(runs),
        normalized_section(runs, leading),
        _maps(runs, leading),
        training_curves(runs),
        _samples(runs),
        _averages(with_common_directions(runs)),
        _paper_section(runs),
        _methods(runs),
    ]
    return html_page(title, sections, generator=_GENERATOR)


def _header(title: str, runs: Sequence[RunResult]) -> Html:
    languages = ", ".join(language_name(code) for code in languages_of(runs))
    directions = len({item.direction for run in runs for item in run.directions})
    sentences = {sum(item.sentences for item in run.directions) for run in runs}
    counts = " or ".join(f"{count:,}" for count in sorted(sentences))
    facts = f"{pluralize(directions, 'direction')} between {languages}; {counts} translations"
    facts += " per model." if len(runs) > 1 else "."
    texts = dict.fromkeys(run.note for run in runs if run.note)
    notes = [tag("p", text, class_="warning") for text in texts]
    return tag("header", tag("h1", breakable(title)), tag("p", facts, class_="muted"), notes)


# Summary


def _summary(
    runs: Sequence[RunResult],
    metrics: Sequence[Metric],
    significance: SentenceSignificance | None,
    *,
    mark_best: bool,
) -> Html:
    groups = direction_groups(runs)
    head = [tag("th", "model", scope="col")]
    head += [tag("th", metric.title, scope="col") for metric in metrics]
    table = tag(
        "table",
        tag("thead", tag("tr", head)),
        [_group_rows(runs, group, metrics, significance, mark_best) for group in groups],
        class_="summary",
    )
    text = "Unweighted, raw means over directions, in percent"
    if len(runs) > 1 and all(group.comparable for group in groups):
        text += ", over the directions and sentences that all models have"
        ties = (
            ", and those whose difference to it has a 95 % interval with 0" if significance else ""
        )
        text += f". Bold: the best{ties}" if mark_best else ""
    if significance:
        text += "; ± is half the width of the 95 % interval over sentences"
    warnings = [*limit_notes(runs), *comparison_notes(runs)]
    comparison = [tag("p", note, class_="warning") for note in warnings]
    notes = [*metric_notes(groups, metrics), *(significance.notes if significance else [])]
    left_out = [tag("p", note, class_="muted") for note in notes]
    return section(
        "Summary",
        tag("p", f"{text}.", class_="muted"),
        [*comparison, *left_out],
        tag("div", table, class_="scroll"),
        _facts(runs),
    )


def _group_rows(
    runs: Sequence[RunResult],
    group: DirectionGroup,
    metrics: Sequence[Metric],
    significance: SentenceSignificance | None,
    mark_best: bool,
) -> Html:
    """Return the table body of one group of directions: a heading and one row per run."""
    counts = [_counts(group, number) for number in range(len(runs))]
    same_counts = len(set(counts)) == 1
    title = f"{group.title}, {counts[0]}" if same_counts else group.title
    heading = tag("th", title, colspan=1 + len(metrics), scope="rowgroup", class_="group")
    best = [_best_runs(group, metric, significance) if mark_best else [] for metric in metrics]
    rows = [tag("tr", heading)]
    for number, run in enumerate(runs):
        remarks = ([group.statuses[number]] if group.mixed else []) + (
            [] if same_counts else [counts[number]]
        )
        remark = tag("span", ", ".join(remarks), class_="muted") if remarks else ""
        cells = [tag("th", run_name(model_label(run), number), remark, scope="row")]
        for metric, best_runs in zip(metrics, best, strict=True):
            mean = group.mean(number, metric.key).mean
            is_best = number in best_runs
            interval = significance.interval(group, number, metric.key) if significance else None
            width = tag("span", format_half_width(interval), class_="interval") if interval else ""
            cells.append(tag("td", format_score(mean), width, class_="best" if is_best else ""))
        rows.append(tag("tr", cells))
    return tag("tbody", rows)


def _best_runs(
    group: DirectionGroup, metric: Metric, significance: SentenceSignificance | None
) -> list[int]:
    """Return the numbers of the runs with the best mean, and of those not shown to be worse."""
    means = [group.mean(number, metric.key).mean for number in range(len(group.items))]
    best_mean = group.best(metric)
    if best_mean is None:
        return []
    best = means.index(best_mean)
    return [
        number
        for number, mean in enumerate(means)
        if mean == best_mean
        or (significance is not None and significance.is_tie(group, metric.key, (number, best)))
    ]


def _counts(group: DirectionGroup, number: int) -> str:
    directions = pluralize(group.directions(number), "direction")
    return f"{directions}, {group.sentences(number):,} sentences"


def _facts(runs: Sequence[RunResult]) -> list[Html]:
    """Return a table of training and decoding facts, one row per run; none without facts."""
    if all(run.step is None and not run.decoding for run in runs):
        return []
    titles = ("model", "steps", "training seconds", "parameters")
    head = tag(
        "tr",
        [tag("th", text, scope="col") for text in titles],
        tag("th", "decoding", scope="col", class_="words"),
    )
    rows = []
    for number, run in enumerate(runs):
        cells = [tag("th", run_name(model_label(run), number), scope="row")]
        facts = [step_label(run), *(format_count(fact) for fact in (run.seconds, run.parameters))]
        cells += [tag("td", text) for text in facts]
        cells.append(tag("td", breakable(decoding_label(run)), class_="words"))
        rows.append(tag("tr", cells))
    table = tag("table", tag("thead", head), tag("tbody", rows), class_="summary")
    return [tag("h3", "Training and decoding"), tag("div", table, class_="scroll")]


# Heat maps and averages


def _maps(runs: Sequence[RunResult], leading: Sequence[Metric]) -> list[Html]:
    """Return the section with a map of each metric; none for one direction, as in the summary."""
    languages = languages_of(runs)
    if len({item.direction for run in runs for item in run.directions}) < 2:
        return []
    maps = []
    for metric in titled_metrics(runs):
        if all(value is None for run in runs for value in run.values(metric.key).values()):
            continue
        explanation = tag("p", metric.explanation, _reference_error(metric, runs), class_="muted")
        small = len(languages) < _UNFOLDED_LANGUAGES
        unfolded = metric in (leading[0], leading[-1]) or small
        body = [explanation, metric_heatmaps(runs, metric, languages)]
        maps.append(collapsible(tag("summary", metric.title), *body, unfolded=unfolded))
    mixed = any({item.supervised for item in run.directions} >= {True, False} for run in runs)
    differ = len({frozenset(item.direction for item in run.directions) for run in runs}) > 1
    remarks = {
        "Means of rows and columns are over directions trained on and others together.": mixed,
        "Models were evaluated in different directions: means are over those of each.": differ,
    }
    text = " ".join(remark for remark, applies in remarks.items() if applies)
    return [section("Every direction", tag("p", text, class_="muted") if text else "", maps)]


def _reference_error(metric: Metric, runs: Sequence[RunResult]) -> str:
    """Return a sentence on the language detector's error rate on the references, or ""."""
    if metric.key != "off_target_lid":
        return ""
    error = group_mean(runs[0], "off_target_lid_reference", "all").mean
    return "" if error is None else f" On the references, its error rate is {error:.1f} %."


def _averages(runs: Sequence[RunResult]) -> Html:
    tables = []
    common = common_groups(runs)
    for number, run in enumerate(runs):
        metrics = [
            metric
            for metric in titled_metrics([run])
            if any(value is not None for value in run.values(metric.key).values())
        ]
        columns = [
            average_rows(
                run.averages[metric.key],
                [row for row in training_rows(run, metric) if row[0] in common],
            )
            for metric in metrics
        ]
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
        caption = tag("caption", run_name(run.name, number))
        table = tag("table", caption, head, tag("tbody", rows), class_="averages")
        tables.append(tag("div", table, class_="scroll map"))
    return section("Averages by group", tag("div", tables, class_="maps"))


def _paper_section(runs: Sequence[RunResult]) -> list[Html]:
    """Return the section with the averages of published procedures."""
    tables = []
    procedures: dict[str, None] = {}
    for number, run in enumerate(runs):
        if not run.paper:
            continue
        procedures[f"{run.paper['procedure']}, {run.paper['label']}"] = None
        header, rows = paper_table(run)
        head = tag("thead", tag("tr", [tag("th", text, scope="col") for text in header]))
        body = [
            tag("tr", tag("th", row[0], scope="row"), [tag("td", cell) for cell in row[1:]])
            for row in rows
        ]
        caption = tag(
            "caption", run_name(run.name, number), f" by the procedure of {run.paper['procedure']}"
        )
        table = tag("table", caption, head, tag("tbody", body), class_="averages")
        tables.append(tag("div", table, class_="scroll map"))
    if not tables:
        return []
    notes = [tag("p", f"{text}.", class_="muted") for text in procedures]
    warning = tag("p", "Not comparable with the numbers above.", class_="muted")
    return [section("As published", notes, warning, tag("div", tables, class_="maps"))]


# Curves


def training_curves(runs: Sequence[RunResult]) -> list[Html]:
    """Return the section with the curves of training and validation losses; none without curves.

    Args:
        runs: evaluations of runs whose names are the labels.
    """
    training = [
        Line(run.name, run.curves["train"], number)
        for number, run in enumerate(runs)
        if run.curves.get("train")
    ]
    validation = _validation_lines(runs, {"supervised": "supervised", "zero_shot": "zero-shot"})
    english = _validation_lines(runs, {"to_english": "→ en", "from_english": "en →"})
    axes = {"x_title": "updates", "y_title": "nats per target token"}
    charts = [
        line_chart(title, lines, **axes)
        for title, lines in (
            ("Training loss", training),
            ("Validation loss", validation),
            ("Validation loss to and from English", english),
        )
        if lines
    ]
    if not charts:
        return []
    explanation = (
        "Negative log-likelihood of the reference; for validation, the mean over directions. The "
        "legend shows the last value. The run's metrics.jsonl has mean perplexities of the same "
        "groups."
    )
    return [
        section(
            "Training", tag("p", explanation, class_="muted"), tag("div", charts, class_="charts")
        )
    ]


def _validation_lines(runs: Sequence[RunResult], groups: Mapping[str, str]) -> list[Line]:
    """Return one line per run and group of directions; those of the second group are dashed.

    Args:
        runs: the runs.
        groups: title of each curve by its name.
    """
    dashed_name = list(groups)[1]
    return [
        Line(f"{run.name}, {title}", run.curves[name], number, dashed=name == dashed_name)
        for number, run in enumerate(runs)
        for name, title in groups.items()
        if run.curves.get(name)
    ]


# Samples


def _samples(runs: Sequence[RunResult]) -> list[Html]:
    by_direction: dict[tuple[str, str], list[Sample]] = {}
    for sample in runs[0].samples:
        by_direction.setdefault(sample.direction, []).append(sample)
    reference = training_reference(runs)
    supervised = reference.supervised if reference else None
    common = {direction for direction, *_ in common_samples(runs)}
    ordered = sorted(
        by_direction,
        key=lambda pair: (pair not in common, supervised is not None and pair in supervised),
    )
    samples_by_run = [{sample.sentence: sample for sample in run.samples} for run in runs]
    blocks = []
    for position, pair in enumerate(ordered):
        names = f"{language_name(pair[0])} → {language_name(pair[1])}"
        kind = "" if supervised is None else f"{'' if pair in supervised else 'not '}trained on"
        summary = tag("summary", names, tag("span", f"  {kind}", class_="muted"))
        cards = [_sample_card(sample, runs, samples_by_run) for sample in by_direction[pair]]
        blocks.append(collapsible(summary, *cards, unfolded=position < _UNFOLDED_DIRECTIONS))
    if not blocks:
        return []
    explanation = "Chosen by position in the test set, not by quality."
    return [section("Sample translations", tag("p", explanation, class_="muted"), blocks)]


def _sample_card(
    sample: Sample,
    runs: Sequence[RunResult],
    samples_by_run: Sequence[Mapping[TestSentence, Sample]],
) -> Html:
    cells = [
        _cell(tag("span", "source", class_="key"), text_in(sample.source, sample.source_text)),
        _cell(tag("span", "reference", class_="key"), text_in(sample.target, sample.reference)),
    ]
    for number, run in enumerate(runs):
        if run_sample := samples_by_run[number].get(sample.sentence):
            label = run_name(run.name, number, extra="key")
            hypothesis = text_in(run_sample.detected or run_sample.target, run_sample.hypothesis)
            cells.append(_cell(label, hypothesis, _status_mark(run_sample)))
    is_long = max(len(sample.source_text), len(sample.reference)) > _LONG_TEXT
    if len(cells) > _MAX_COLUMNS:
        return tag("div", cells, class_="sample rows")
    columns = 2 if is_long else len(cells)
    return tag("div", cells, class_="sample", style=f"--columns:{columns}")


def _cell(*children: Html) -> Html:
    return tag("div", *children)


def _status_mark(sample: Sample) -> Html:
    """Return the remark on a hypothesis: exact match or detected language."""
    if is_exact(sample.hypothesis, sample.reference):
        return tag("span", "✓ exact", class_="mark exact")
    if not sample.detected:
        return tag("span", "no language detected", class_="mark")
    name = language_name(sample.detected)
    if sample.detected != sample.target:
        return tag("span", f"✗ off-target: {name}", class_="mark off")
    return tag("span", f"detected: {name}", class_="mark")


# Methods


def _methods(runs: Sequence[RunResult]) -> Html:
    blocks: list[Html] = []
    for number, run in enumerate(runs):
        rows = [tag("dt", "mnmt-jax"), tag("dd", run.version)] if run.version else []
        for metric, signature in run.signatures.items():
            items = signature.items() if isinstance(signature, Mapping) else [("", signature)]
            for subset, text in items:
                rows += [
                    tag("dt", f"{metric} {subset}".strip()),
                    tag("dd", tag("code", str(text))),
                ]
        for key, value in run.decoding.items():
            rows += [tag("dt", key), tag("dd", str(value))]
        blocks.append(tag("h3", run_name(run.name, number)))
        blocks.append(tag("dl", rows))
        if run.notes:
            blocks.append(tag("ul", [tag("li", note) for note in run.notes]))
        if run.config:
            settings = run.settings.items()
            text = "\n".join(f"{key} = {json.dumps(v, ensure_ascii=False)}" for key, v in settings)
            listing = tag("pre", text)
            blocks.append(collapsible(tag("summary", "Configuration"), listing, unfolded=False))
    return section(_METHODS_TITLE, join(blocks))
