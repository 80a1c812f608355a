"""Tables and page sections of significance: differences to the first system, and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mnmt_jax.evaluation.comparison import direction_groups
from mnmt_jax.evaluation.result import Metric, RunResult
from mnmt_jax.evaluation.result_labels import model_label
from mnmt_jax.evaluation.result_tables import leading_metrics, title_with_arrow
from mnmt_jax.evaluation.seed_statistics import SEED_HEADER, explain_seeds, seed_rows
from mnmt_jax.evaluation.sentence_bootstrap import SEED
from mnmt_jax.evaluation.significance import SentenceSignificance, limits_of_p
from mnmt_jax.pages.html_elements import Html, tag
from mnmt_jax.pages.html_page import section, text_table
from mnmt_jax.pages.markdown_tables import format_difference, markdown_table

_HEADER = ("system", "directions", "metric", "difference (95 % interval)") + (
    "p (bootstrap, one-sided)",
    "p (randomization)",
)


def difference_table(
    results: Sequence[RunResult],
    names: Sequence[str],
    significance: SentenceSignificance,
    compared: Sequence[int] | None = None,
) -> str:
    """Format the differences to the first evaluation as Markdown; "" if there are none.

    Args:
        results: evaluations of one task.
        names: keys of metrics, as in `leading_metrics`.
        significance: their tests.
        compared: numbers of the evaluations that are compared; None for all.
    """
    rows = _rows(results, leading_metrics(results, names), significance, compared)
    if not rows:
        return ""
    table = markdown_table(_HEADER, rows)
    return f"{_title(results)}:\n\n{table}\n\n{_explanation(significance.samples)}"


def difference_section(
    results: Sequence[RunResult],
    metrics: Sequence[Metric],
    significance: SentenceSignificance | None,
    compared: Sequence[int] | None = None,
) -> list[Html]:
    """Return the section with the tests of each system against the first.

    Args:
        results: evaluations of one task.
        metrics: the metrics to test.
        significance: their tests; there is no section without them.
        compared: as in `difference_table`.
    """
    rows = _rows(results, metrics, significance, compared) if significance else []
    if not significance or not rows:
        return []
    text = tag("p", _explanation(significance.samples), class_="muted")
    return [section(_title(results), text, text_table(_HEADER, rows))]


def seed_section(
    groups: Mapping[str, Sequence[RunResult]],
    names: Sequence[str] = (),
    title: str = "Over seeds",
    notes: Sequence[str] = (),
) -> list[Html]:
    """Return the section with statistics over seeds.

    Args:
        groups: as in `seed_rows`.
        names: as in `seed_rows`.
        title: title of the section.
        notes: notes on the groups.
    """
    if not groups:
        return []
    table = text_table(SEED_HEADER, seed_rows(groups, names))
    texts = [tag("p", text, class_="muted") for text in (explain_seeds(groups), *notes)]
    return [section(title, texts, table)]


def _explanation(samples: int) -> str:
    return (
        f"Means over directions; {samples:,} resamples of the sentences, seed {SEED}. p by the "
        "paired bootstrap (in effect one-sided) and by approximate randomization, as in sacreBLEU. "
        f"{limits_of_p(samples)}"
    )


def _title(results: Sequence[RunResult]) -> str:
    return f"Differences to {model_label(results[0])}"


def _rows(
    results: Sequence[RunResult],
    metrics: Sequence[Metric],
    significance: SentenceSignificance,
    compared: Sequence[int] | None,
) -> list[list[str]]:
    """Return a row for each group of directions, metric, and compared system after the first."""
    numbers = range(len(results)) if compared is None else compared
    if 0 not in numbers:
        return []
    rows = []
    for group in direction_groups(results):
        for metric in metrics:
            for number in numbers[1:]:
                difference = significance.difference(group, number, metric.key)
                if difference is not None:
                    mean, *ends = map(format_difference, (difference.mean, *difference.interval))
                    rows.append(
                        [model_label(results[number]), group.title, title_with_arrow(metric)]
                        + [f"{mean} ({' to '.join(ends)})"]
                        + [f"{difference.p_bootstrap:.3f}", f"{difference.p_randomization:.3f}"]
                    )
    return rows
