"""Page of a preparation: what each step dropped, examples, and the sentences of each direction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax import __version__
from mnmt_jax.data.preparation.passes import REPORT_FILE
from mnmt_jax.data.preparation.recipes import Recipe
from mnmt_jax.data.preparation.report import GroupCounts, StepCounts, sum_groups
from mnmt_jax.data.preparation.stages import UNENCODED, label_steps
from mnmt_jax.data.preparation.steps import Step, Transform
from mnmt_jax.errors import pluralize
from mnmt_jax.evaluation.count_page import counts_section
from mnmt_jax.files.atomic_write import write_text
from mnmt_jax.pages.html_elements import Html, breakable, tag, text_in
from mnmt_jax.pages.html_page import (
    collapsible,
    generator_mark,
    html_page,
    section,
    text_table,
)
from mnmt_jax.pages.markdown_tables import markdown_table

PAGE = "preparation.html"
_MAX_EXAMPLE = 300  # characters
_GENERATOR = generator_mark("mnmt prepare")


def write_page(folder: Path, recipe: Recipe, counts: Sequence[GroupCounts]) -> None:
    """Write the page, and the same as JSON, into the folder of a cache."""
    facts = {
        "recipe": recipe.name,
        "version": __version__,
        "steps": [f"{label} ({step.settings()})" for label, step in label_steps(recipe.steps)],
        "text": [_group_facts(item) for item in counts],
    }
    write_text(folder / REPORT_FILE, json.dumps(facts, ensure_ascii=False, indent=1) + "\n")
    write_text(folder / PAGE, preparation_page(recipe, counts))


def _group_facts(item: GroupCounts) -> dict[str, Any]:
    """Return the counts of two languages as JSON values."""
    return {
        "split": item.group.split,
        "languages": "-".join(item.group.languages),
        "unclean": item.unclean,
        "read": item.read,
        "dropped": item.dropped,
        "kept": item.kept,
    }


def preparation_page(recipe: Recipe, counts: Sequence[GroupCounts]) -> str:
    """Return the page as HTML."""
    title = f"Preparation: {recipe.title or recipe.name}"
    texts = (f"Recipe {recipe.name}, mnmt-jax {__version__}.", recipe.source, recipe.note)
    notes = [tag("p", text, class_="muted") for text in texts if text]
    steps = dict(label_steps(recipe.steps))
    titles = _titles(steps, counts)
    sections = [
        tag("header", tag("h1", title), notes),
        section("Steps", text_table(*_steps_table(steps, counts))),
        section(
            "Dropped pairs",
            [_examples(item, titles[item.label]) for item in _sums(steps, counts)],
        ),
        *(counts_section(split, kept) for split, kept in _kept_by_direction(counts).items()),
    ]
    return html_page(title, sections, generator=_GENERATOR)


def steps_table(recipe: Recipe, counts: Sequence[GroupCounts]) -> str:
    """Return what each step dropped as a Markdown table."""
    header, rows = _steps_table(dict(label_steps(recipe.steps)), counts)
    return markdown_table(header, rows)


def _sums(steps: Mapping[str, Step], counts: Sequence[GroupCounts]) -> list[StepCounts]:
    labels = [
        label for label in _titles(steps, counts) if not isinstance(steps.get(label), Transform)
    ]
    return sum_groups(labels, counts)


def _titles(steps: Mapping[str, Step], counts: Sequence[GroupCounts]) -> dict[str, str]:
    """Return the text of each step, and of the encoding if it dropped pairs, by label."""
    titles = {label: _step_text(label, step) for label, step in steps.items()}
    if any(UNENCODED in item.dropped for item in counts):
        titles[UNENCODED] = f"{UNENCODED}: a side has no pieces"
    return titles


def _steps_table(
    steps: Mapping[str, Step], counts: Sequence[GroupCounts]
) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows: steps, pairs that reached them, and what they dropped."""
    dropped = {item.label: item for item in _sums(steps, counts)}
    shown = [item for item in counts if item.group.split == "train"] or counts
    rows = [_reading_row(shown)]
    for label, title in _titles(steps, counts).items():
        item = dropped.get(label)
        numbers = _numbers(item.reached, item.dropped) if item else ["–"] * 3
        rows.append([title, *numbers])
    kept = sum(item.kept for item in shown)
    rows.append(["kept", f"{kept:,}", "", ""])
    return ["step", "pairs", "dropped", "share"], rows


def _step_text(label: str, step: Step) -> str:
    """Return the label, title and settings of a step."""
    settings = step.settings()
    return f"{label}: {step.title()}" + (f" ({settings})" if settings else "")


def _shorten(text: str) -> str:
    """Return a text of at most some hundred characters."""
    return text if len(text) <= _MAX_EXAMPLE else f"{text[:_MAX_EXAMPLE]}…"


def _reading_row(counts: Sequence[GroupCounts]) -> list[str]:
    """Return the row of the lines that are not pairs of clean sentences."""
    unclean = sum((Counter(item.unclean) for item in counts), Counter())
    lines = sum(item.read for item in counts) + unclean.total()
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in unclean.most_common())
    label = f"reading: {reasons}" if reasons else "reading"
    return [label, *_numbers(lines, unclean.total())]


def _numbers(reached: int, dropped: int) -> list[str]:
    return [f"{reached:,}", f"{dropped:,}", f"{dropped / max(1, reached):.2%}"]


def _examples(item: StepCounts, title: str) -> Html:
    """Return the first dropped pairs of a step, folded."""
    text = f"{title}: {pluralize(item.dropped, 'pair')}"
    summary = tag("summary", breakable(text))
    rows = []
    for languages, *texts in item.examples:
        sides = zip(languages.split("-"), texts, strict=True)
        cells = [tag("td", text_in(code, _shorten(text))) for code, text in sides]
        rows.append(tag("tr", tag("th", languages, scope="row"), cells))
    return collapsible(
        summary, tag("div", tag("table", rows, class_="averages"), class_="scroll"), unfolded=False
    )


def _kept_by_direction(counts: Sequence[GroupCounts]) -> dict[str, dict[str, int]]:
    """Return the kept pairs by split and direction; both directions have the same."""
    kept: dict[str, dict[str, int]] = {}
    for item in counts:
        for pair in dict.fromkeys((item.group.languages, item.group.languages[::-1])):
            kept.setdefault(item.group.split, {})["-".join(pair)] = item.kept
    return kept
