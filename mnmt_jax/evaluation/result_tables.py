"""Markdown output: comparison tables of runs, result pages, and sample translations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from mnmt_jax.errors import UserError, suggest
from mnmt_jax.evaluation.averages import Average, Averages
from mnmt_jax.evaluation.comparison import (
    common_samples,
    comparison_notes,
    direction_groups,
    limit_notes,
    metric_notes,
    training_reference,
)
from mnmt_jax.evaluation.metrics import is_exact
from mnmt_jax.evaluation.result import (
    BLEU,
    CHRF,
    EXACT_MATCH,
    LID,
    METRICS,
    NEAREST,
    OPTIONAL_METRICS,
    Metric,
    RunResult,
    Sample,
    titled_metrics,
)
from mnmt_jax.evaluation.result_labels import (
    decoding_label,
    model_label,
    step_label,
)
from mnmt_jax.pages.markdown_tables import (
    format_count,
    format_half_width,
    format_score,
    markdown_table,
)

if TYPE_CHECKING:
    from mnmt_jax.evaluation.significance import SentenceSignificance

_QUALITY_METRICS = (BLEU, CHRF, EXACT_MATCH)
_METHODS_HEADING = "## Computed as"
_PAPER_TITLES = {metric.key: metric.title for metric in METRICS} | {"off_target": "Off-target"}


def leading_metrics(results: Sequence[RunResult], names: Sequence[str] = ()) -> tuple[Metric, ...]:
    """Return the metrics of a summary.

    Args:
        results: evaluations.
        names: keys of metrics, in their order; () for the optional metrics that all evaluations
            have (neural ones, spBLEU), BLEU, chrF++, exact matches, and the off-target ratio.

    Raises:
        UserError: if a name is unknown, or no evaluation has the metric.
    """
    if names:
        titled = titled_metrics(results)
        return tuple(_metric(name, titled, results) for name in names)
    optional = [
        metric for metric in OPTIONAL_METRICS if all(_has(result, metric) for result in results)
    ]
    nearest = all(result.off_target == NEAREST for result in results)
    off_target = titled_metrics(results, [NEAREST if nearest else LID])
    return (*optional, *_QUALITY_METRICS, *off_target)


def _metric(name: str, metrics: Sequence[Metric], results: Sequence[RunResult]) -> Metric:
    by_key = {metric.key: metric for metric in metrics}
    if name not in by_key:
        raise UserError(
            f"--metrics: unknown '{name}'; {suggest(name, by_key)}choose from {', '.join(by_key)}"
        )
    if not any(_has(result, by_key[name]) for result in results):
        raise UserError(f"--metrics: no evaluation has {by_key[name].title} ('{name}')")
    return by_key[name]


def _has(result: RunResult, metric: Metric) -> bool:
    return any(value is not None for value in result.values(metric.key).values())


def title_with_arrow(metric: Metric) -> str:
    """Return the title of a metric with an arrow to better scores."""
    return f"{metric.title} {'↑' if metric.higher_is_better else '↓'}"


def group_mean(result: RunResult, key: str, field: str) -> Average:
    """Return the average of a metric over a group, a field of `Averages` with a single value."""
    average: Average | None = getattr(result.averages[key], field)
    return average or Average(None, 0)


def comparison_table(
    results: Sequence[RunResult],
    names: Sequence[str] = (),
    significance: SentenceSignificance | None = None,
) -> str:
    """Format a Markdown table with one row per run and group of directions.

    Args:
        results: evaluations of one task.
        names: keys of metrics, as in `leading_metrics`.
        significance: intervals of the evaluations; None leaves them out.

    Returns:
        The table and notes below it, without a final line break. Scores are means over directions,
        in percent, with half the width of their 95 % interval; with several evaluations, over the
        directions and sentences common to all.
    """
    metrics, groups = leading_metrics(results, names), direction_groups(results)
    header = ["model", "steps", "training seconds", "decoding", "directions", "sentences"]
    header += [metric.title for metric in metrics]
    rows = []
    for group in groups:
        for number, result in enumerate(results):
            directions = f"{group.statuses[number]} ({group.directions(number)})"
            facts = [step_label(result), format_count(result.seconds)]
            facts += [decoding_label(result), directions, format_count(group.sentences(number))]
            scores = [
                format_score(group.mean(number, metric.key).mean)
                + format_half_width(
                    significance.interval(group, number, metric.key) if significance else None
                )
                for metric in metrics
            ]
            rows.append([model_label(result), *facts, *scores])
    notes = [*limit_notes(results), *comparison_notes(results), *metric_notes(groups, metrics)]
    notes += significance.notes if significance else []
    return "\n\n".join([markdown_table(header, rows), *notes])


def result_page(
    result: RunResult,
    significance: SentenceSignificance | None = None,
    tables: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the text of `table.md`: summary, averages, scores per direction, and methods.

    Args:
        result: the evaluation.
        significance: its intervals; None leaves them out.
        tables: further tables by title; empty ones are left out.
    """
    lines = [f"# {model_label(result)} on {result.task}", ""]
    lines += [result.note, ""] if result.note else []
    lines += [comparison_table([result], significance=significance), ""]
    for title, table in tables.items():
        lines += [f"## {title}", "", table, ""] if table else []
    lines += ["## Averages", "", _averages_table(result), ""]
    lines += paper_lines(result)
    lines += ["## Directions", "", _directions_table(result), ""]
    lines += [_METHODS_HEADING, ""]
    for metric, signature in result.signatures.items():
        signatures = signature.items() if isinstance(signature, dict) else [("", signature)]
        lines += [
            f"- {metric} {subset}: `{text}`".replace(" :", ":") for subset, text in signatures
        ]
    lines += [f"- {key}: {value}" for key, value in result.decoding.items()]
    lines += [f"- {note}" for note in result.notes]
    return "\n".join(lines) + "\n"


def is_result_page(text: str) -> bool:
    """Return whether a text was written by any version of `result_page`."""
    return text.startswith("# ") and _METHODS_HEADING in text.splitlines()


def sample_lines(results: Sequence[RunResult], count: int = 5) -> str:
    """Format translations of the same sentences by all runs, with a title, for a terminal.

    Args:
        results: evaluations of one task.
        count: number of sentences, spread over the directions.

    Returns:
        Zero-shot translations of the first run whose training directions are known, if it has
        them, else any translations; of those, sentences that all runs have translated if there are
        any.
    """
    reference = training_reference(results)
    trained = (reference.supervised if reference else None) or frozenset()
    zero_shot = [item for item in results[0].samples if item.direction not in trained]
    candidates = zero_shot or results[0].samples
    common = common_samples(results)
    shared = [item for item in candidates if item.sentence in common]
    samples = _select_samples(shared or candidates, count)
    title = "Translations"
    if reference and zero_shot:
        title = f"Translations, in directions that {reference.name} was not trained on"
        if all(_untrained(result, zero_shot) for result in results):
            title = "Translations, in directions never trained on"
    width = max([len(result.name) for result in results] + [len("reference")])
    blocks = [f"{title}:"]
    for sample in samples:
        lines = [
            f"{sample.source} → {sample.target}",
            f"  {'source':{width}}  {sample.source_text}",
            f"  {'reference':{width}}  {sample.reference}",
        ]
        for result in results:
            for output in result.samples:
                if output.sentence == sample.sentence:
                    lines.append(
                        f"  {result.name:{width}}  {output.hypothesis}  [{sample_status(output)}]"
                    )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _untrained(result: RunResult, samples: Sequence[Sample]) -> bool:
    """Return whether a model is known not to have been trained on any of the directions."""
    return result.supervised is not None and all(
        sample.direction not in result.supervised for sample in samples
    )


def sample_status(sample: Sample) -> str:
    """Return the status of a translation: exact, off-target, differs, or empty."""
    if is_exact(sample.hypothesis, sample.reference):
        return "exact"
    if sample.detected not in ("", sample.target):
        return f"off-target: {sample.detected}"
    return "differs" if sample.hypothesis.strip() else "empty"


def training_rows(result: RunResult, metric: Metric) -> list[tuple[str, Average]]:
    """List the groups of `direction_groups` with their averages; none without known training."""
    if result.supervised is None:
        return []
    groups = direction_groups([result])
    return [(group.title, group.mean(0, metric.key)) for group in groups]


def average_rows(
    averages: Averages, by_training: Sequence[tuple[str, Average]] = ()
) -> list[tuple[str, Average]]:
    """List the direction groups with a single average, with their titles.

    Args:
        averages: averages of a metric.
        by_training: further groups, of `training_rows`.
    """
    rows = [
        ("all", averages.all),
        *by_training,
        ("en →", averages.from_english),
        ("→ en", averages.to_english),
    ]
    rows += [(f"{family} →", average) for family, average in averages.from_family.items()]
    rows += [(f"→ {family}", average) for family, average in averages.to_family.items()]
    rows += averages.tiers.items()
    duplicates = ("English →", "→ English")
    return [(name, item) for name, item in rows if name not in duplicates]


def _averages_table(result: RunResult) -> str:
    columns = [
        average_rows(result.averages[metric.key], training_rows(result, metric))
        for metric in result.metrics
    ]
    rows = []
    for cells in zip(*columns, strict=True):
        count = max(average.directions for _, average in cells)
        if count:
            rows.append([cells[0][0], str(count), *(format_score(item.mean) for _, item in cells)])
    titles = [item.title for item in result.metrics]
    return markdown_table(["group", "directions", *titles], rows)


def paper_table(result: RunResult) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the averages by a published procedure, with two decimals."""
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


def paper_lines(result: RunResult) -> list[str]:
    """Return the section with the averages by a published procedure; no lines without one."""
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
            *(
                "–"
                if (score := item.score(metric.key)) is None
                else format_score(score) + format_half_width(item.intervals.get(metric.key))
                for metric in metrics
            ),
        ]
        for item in result.directions
    ]
    return markdown_table(header, rows)


def _select_samples(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Select samples round-robin over directions."""
    by_direction: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        by_direction.setdefault(sample.direction, []).append(sample)
    groups = list(by_direction.values())
    longest = max((len(group) for group in groups), default=0)
    ordered = [group[rank] for rank in range(longest) for group in groups if rank < len(group)]
    if len(groups) > count:  # avoids showing one source repeatedly
        ordered = [groups[index * len(groups) // count][0] for index in range(count)]
    return ordered[:count]
