"""Quality flags: shares of outputs that are off-target, empty, copies or loops, and lengths.

The checks are those of the server (`mnmt_jax.decoding.guards`); they need no reference. The rate of
off-target references is the error rate of the language detector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mnmt_jax.evaluation.comparison import DirectionGroup, direction_groups
from mnmt_jax.evaluation.result import (
    DirectionResult,
    RunResult,
    is_undefined,
    name_detectors,
)
from mnmt_jax.evaluation.result_labels import model_label
from mnmt_jax.pages.html_elements import Html, tag
from mnmt_jax.pages.html_page import section, text_table
from mnmt_jax.pages.markdown_tables import format_score, markdown_table

_EXPLANATION = (
    "Percent of outputs: in another language by each detector, and by both; empty, equal to the "
    "source, and repeating themselves in a loop. On references: percent of the references that the "
    "detector before takes for another language, its error rate. Length: characters of the "
    "outputs, in percent of those of the references. Without context: lines of documents that were "
    "translated alone. Unknown: characters of the sources that no piece of the vocabulary covers."
)


def quality_table(results: Sequence[RunResult]) -> str:
    """Format the quality flags as Markdown, one row per evaluation and group of directions."""
    header, rows = _table(results)
    return markdown_table(header, rows)


def quality_section(results: Sequence[RunResult]) -> Html:
    """Return the section of a report with the quality flags."""
    header, rows = _table(results)
    explanation = tag("p", _EXPLANATION, class_="muted")
    return section("Quality flags", explanation, text_table(header, rows))


def _table(results: Sequence[RunResult]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows; columns that no evaluation has are left out."""
    rows = []
    groups = direction_groups(results)
    columns = _columns(results)
    for group in groups:
        for number, result in enumerate(results):
            cells = [_cell(group, number, column) for _, column in columns]
            rows.append([model_label(result), group.statuses[number], *cells])
    kept = [n for n in range(len(columns)) if any(row[n + 2] != "–" for row in rows)]
    header = ["system", "directions", *(columns[n][0] for n in kept)]
    return header, [[*row[:2], *(row[n + 2] for n in kept)] for row in rows]


Column = str | Callable[[DirectionResult], float | None]
"""Field of `DirectionResult`, or its value in percent; None if unknown."""


def _columns(results: Sequence[RunResult]) -> list[tuple[str, Column]]:
    """Return titles and values of the columns."""
    first = name_detectors((result.detector for result in results), among=results)
    second = name_detectors((result.second_detector for result in results), among=results)
    return [
        ("off-target", "off_target_nearest"),
        (f"off-target ({first})", "off_target_lid"),
        ("on references", "off_target_lid_reference"),
        (f"off-target ({second})", "off_target_second"),
        ("on references", "off_target_second_reference"),
        ("by both", "off_target_both"),
        ("on references", "off_target_both_reference"),
        ("empty", lambda item: 100 * item.empty / item.sentences),
        ("copied", lambda item: _percent(item.copied, item)),
        ("looping", lambda item: _percent(item.repeated, item)),
        ("length", "length_ratio"),
        ("without context", lambda item: _percent(item.without_context, item)),
        ("unknown", "unknown_characters"),
    ]


def _percent(count: int | None, item: DirectionResult) -> float | None:
    return None if count is None else 100 * count / item.sentences


def _cell(group: DirectionGroup, number: int, column: Column) -> str:
    """Format the mean over the directions of a group; of counts, the sum."""
    items = group.items[number].values()
    if isinstance(column, str):
        values = [] if is_undefined(column, items) else [getattr(item, column) for item in items]
    else:
        values = [column(item) for item in items]
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    if all(isinstance(value, int) for value in known):
        return f"{sum(known):,}"
    return format_score(sum(known) / len(known))
