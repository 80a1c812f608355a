"""Results as Markdown: one table to compare runs, one page per evaluation, sample translations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from mnmt_jax.config.sections import Decode
from mnmt_jax.evaluation.averages import Average, Averages
from mnmt_jax.evaluation.comparison import comparison_notes, direction_groups, metric_notes
from mnmt_jax.evaluation.metrics import is_exact
from mnmt_jax.evaluation.result import METRICS, Metric, RunResult, Sample, titled_metrics

_LEADING = METRICS[:3]
# Of decoding, what a label leaves out: named otherwise, or without effect on translations.
_UNNAMED = ("method", "beam_size", "checkpoint", "batch", "buckets", "max_length", "seed")
_METHODS = "## Computed as"
_PAPER_TITLES = {metric.key: metric.title for metric in METRICS} | {"off_target": "Off-target"}


def format_score(value: float | None) -> str:
    """Write a percentage with one decimal; a value that was left out is a dash."""
    return "–" if value is None else f"{value:.1f}"


def format_count(value: float | None) -> str:
    """Write a whole number with thousands separators; an unknown one is a dash."""
    return "–" if value is None else f"{value:,.0f}"


def leading_metrics(results: Sequence[RunResult]) -> tuple[Metric, ...]:
    """List the metrics of a summary: quality, and the one off-target ratio that all runs have."""
    nearest = all(result.off_target.key == "off_target_nearest" for result in results)
    return (*_LEADING, METRICS[3] if nearest else titled_metrics(results)[4])


def group_mean(result: RunResult, key: str, field: str) -> Average:
    """Return the average of a metric over one of the groups of `Averages` that are one number."""
    average: Average | None = getattr(result.averages[key], field)
    return average or Average(None, 0)


def comparison_table(results: Sequence[RunResult]) -> str:
    """Write a Markdown table with one row per run and group of directions.

    Args:
        results: evaluations of one task.

    Returns:
        Lines without a final line break; scores are means over directions, in percent, of several
        evaluations over the directions and sentences that all have. Notes follow the table.
    """
    metrics, groups = leading_metrics(results), direction_groups(results)
    header = ["model", "steps", "seconds", "decoding", "directions", "sentences"]
    header += [metric.title for metric in metrics]
    rows = []
    for group in groups:
        for number, result in enumerate(results):
            directions = f"{group.statuses[number]} ({group.directions(number)})"
            facts = [format_count(result.step), format_count(result.seconds)]
            facts += [decoding_label(result), directions, format_count(group.sentences(number))]
            scores = [format_score(group.mean(number, metric.key).mean) for metric in metrics]
            rows.append([model_label(result), *facts, *scores])
    notes = [*comparison_notes(results), *metric_notes(groups, metrics)]
    return "\n\n".join([markdown_table(header, rows), *notes])


def model_label(result: RunResult) -> str:
    """Name a run and, where its name does not, its layout."""
    return result.name if result.layout in result.name else f"{result.name} ({result.layout})"


def decoding_label(result: RunResult) -> str:
    """Describe how an evaluation decoded, e.g. `beam 5, pivot=en, weights=int8`.

    The search comes first, then the settings that are not as `Decode` has them by default. Sizes
    of batches and the checkpoint are left out.
    """
    decoding, usual = result.decoding, Decode()
    if not decoding:
        return "–"
    method, beam = decoding.get("method", "search"), decoding.get("beam_size")
    search = method if method == "greedy" or beam is None else f"{method} {beam}"
    settings = [
        f"{key}={_setting(value)}"
        for key, value in decoding.items()
        if key not in _UNNAMED and _setting(value) != _setting(getattr(usual, key, None))
    ]
    return ", ".join([search, *settings])


def disambiguate_names(results: Sequence[RunResult]) -> list[RunResult]:
    """Add the settings of decoding to names of runs that are alike.

    A setting is added where flags changed the run's own value. Results of earlier versions do not
    record that; of theirs a setting is added where it is not the default of `Decode`.

    Args:
        results: e.g. evaluations of one run with and without contrast or pivot.
    """
    named = []
    for result in results:
        alike = [other for other in results if model_label(other) == model_label(result)]
        others = [_settings(other) for other in alike]
        settings = [
            f"{key}={_setting(value)}"
            for key, value in _settings(result).items()
            if key != "method"  # which follows from the others
            and any(other.get(key) != value for other in others)
            and _is_named(result, key, value)
        ]
        named.append(dataclasses.replace(result, name=", ".join([result.name, *settings])))
    return named


def _settings(result: RunResult) -> dict[str, object]:
    return {**result.decoding, **(result.decoding_overrides or {})}


def _is_named(result: RunResult, key: str, value: object) -> bool:
    """Return whether a setting of decoding tells an evaluation from others of its run."""
    if result.decoding_overrides is None or key == "checkpoint":
        return _setting(value) != _setting(getattr(Decode(), key, None))
    return key in result.decoding_overrides


def _setting(value: object) -> str:
    """Write a setting of decoding as it stands in a name."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def result_page(result: RunResult) -> str:
    """Write `table.md`: summary, averages by group, every direction, how it was computed."""
    lines = [f"# {model_label(result)} on {result.task}", "", comparison_table([result]), ""]
    lines += ["## Averages", "", _averages_table(result), ""]
    lines += _paper_lines(result)
    lines += ["## Directions", "", _directions_table(result), ""]
    lines += [_METHODS, ""]
    for metric, signature in result.signatures.items():
        parts = signature.items() if isinstance(signature, dict) else [("", signature)]
        lines += [f"- {metric} {part}: `{text}`".replace(" :", ":") for part, text in parts]
    lines += [f"- {key}: {value}" for key, value in result.decoding.items()]
    lines += [f"- {note}" for note in result.notes]
    return "\n".join(lines) + "\n"


def is_result_page(text: str) -> bool:
    """Return whether `result_page` wrote a text, of any version."""
    return text.startswith("# ") and _METHODS in text.splitlines()


def sample_lines(results: Sequence[RunResult], count: int = 5) -> str:
    """Show zero-shot translations of the same sentences by each run, for a terminal.

    Args:
        results: evaluations of one task.
        count: sentences to show; they are taken from as many directions as there are.
    """
    first = results[0].supervised or frozenset()
    chosen = _spread([item for item in results[0].samples if item.direction not in first], count)
    width = max([len(result.name) for result in results] + [len("reference")])
    blocks = []
    for sample in chosen:
        lines = [
            f"{sample.source} → {sample.target}",
            f"  {'source':{width}}  {sample.source_text}",
            f"  {'reference':{width}}  {sample.reference}",
        ]
        for result in results:
            for other in result.samples:
                if (other.direction, other.index) == (sample.direction, sample.index):
                    lines.append(
                        f"  {result.name:{width}}  {other.hypothesis}  [{sample_status(other)}]"
                    )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def sample_status(sample: Sample) -> str:
    """Say in a word or two how a translation did: exact, off-target, or neither."""
    if is_exact(sample.hypothesis, sample.reference):
        return "exact"
    if sample.detected not in ("", sample.target):
        return f"off-target: {sample.detected}"
    return "differs" if sample.hypothesis.strip() else "empty"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table, columns padded; all but the first are right-aligned."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        first, *rest = (
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "| " + " | ".join([first, *rest]) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(cells[0]), "| " + " | ".join(rule) + " |", *map(line, cells[1:])])


def average_rows(averages: Averages) -> list[tuple[str, Average]]:
    """List the groups that are one number each, with their titles."""
    rows = [
        ("all", averages.all),
        ("supervised", averages.supervised),
        ("zero-shot", averages.zero_shot),
        ("en →", averages.from_english),
        ("→ en", averages.to_english),
    ]
    rows += [(f"{family} →", average) for family, average in averages.from_family.items()]
    rows += [(f"→ {family}", average) for family, average in averages.to_family.items()]
    repeats = ("English →", "→ English")
    return [(name, item) for name, item in rows if item is not None and name not in repeats]


def _averages_table(result: RunResult) -> str:
    columns = [average_rows(result.averages[metric.key]) for metric in result.metrics]
    rows = []
    for cells in zip(*columns, strict=True):
        count = max(average.directions for _, average in cells)
        if count:
            rows.append([cells[0][0], str(count), *(format_score(item.mean) for _, item in cells)])
    titles = [item.title for item in result.metrics]
    return markdown_table(["group", "directions", *titles], rows)


def paper_table(result: RunResult) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the averages by a published procedure, two decimals as there."""
    averages = result.paper["averages"]
    labels = dict.fromkeys(label for table in averages.values() for label in table)
    rows = []
    for label in labels:
        cells = [averages[metric].get(label, {"mean": None}) for metric in averages]
        means = [_two_decimals(cell["mean"]) for cell in cells]
        if any(cell["mean"] is not None for cell in cells):
            rows.append([label, *means])
    return ["group", *(_PAPER_TITLES.get(metric, metric) for metric in averages)], rows


def _two_decimals(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _paper_lines(result: RunResult) -> list[str]:
    if not result.paper:
        return []
    header, rows = paper_table(result)
    title = f"## Averages by the procedure of {result.paper['procedure']}"
    return [title, "", f"{_capital(result.paper['label'])}.", "", markdown_table(header, rows), ""]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _directions_table(result: RunResult) -> str:
    names = {True: "yes", False: "no", None: "?"}
    metrics = result.metrics
    header = ["direction", "trained on", "sentences", *(metric.title for metric in metrics)]
    rows = [
        [
            f"{item.source} → {item.target}",
            names[item.supervised],
            str(item.sentences),
            *(format_score(getattr(item, metric.key)) for metric in metrics),
        ]
        for item in result.directions
    ]
    return markdown_table(header, rows)


def _spread(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Take samples evenly over directions: the first of each, then the second of each."""
    by_direction: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        by_direction.setdefault(sample.direction, []).append(sample)
    groups = list(by_direction.values())
    rounds = max((len(group) for group in groups), default=0)
    order = [group[turn] for turn in range(rounds) for group in groups if turn < len(group)]
    if len(groups) > count:  # not five times the same source
        order = [groups[index * len(groups) // count][0] for index in range(count)]
    return order[:count]
