"""Means over target languages on one scale.

A metric has another scale in each language: translations of equal quality have different scores.
The references of a target language with 0 to 5 injected errors are translations of known quality.
Mean and standard deviation of their scores calibrate the language: a score s becomes

    z = (s - mean) / deviation

and a mean of z is put back on the metric's scale with the mean calibration of the languages. It is
the raw mean if all languages have one calibration.

Source: the idea of XQ-MEval (Liu et al., ACL Findings 2026, arXiv 2604.14934), whose errors are
written by a language model and checked by native speakers. Ours are omissions, additions and
replacements of spans that have, on average, the same share of the words in every language, or of
the characters in languages without spaces.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mnmt_jax.evaluation.benchmark import TestSet
from mnmt_jax.evaluation.comparison import DirectionGroup, direction_groups
from mnmt_jax.evaluation.result import Metric, RunResult
from mnmt_jax.evaluation.result_labels import model_label
from mnmt_jax.pages.html_elements import Html, tag
from mnmt_jax.pages.html_page import section, text_table
from mnmt_jax.pages.markdown_tables import format_score, markdown_table
from mnmt_jax.vocabulary.language_codes import Direction, is_spaceless

METRICS = ("bleu", "chrf", "spbleu", "comet", "xcomet", "kiwi", "metricx", "bert_score")
"""Metrics of quality, whose scale depends on the language."""
MAX_ERRORS = 5
SENTENCES = 200
_SHARE = 0.06  # of the units of a sentence, for an error
SIGNATURE = (
    f"references with 0 to {MAX_ERRORS} injected errors of {_SHARE:.0%}|"
    f"sentences:{SENTENCES}|seed:0"
)
_MIN_DEVIATION = 0.01

Calibration = tuple[float, float]
"""Mean and standard deviation of the scores of references with errors."""
ScoreFn = Callable[[TestSet, Sequence[str]], Mapping[str, float]]
"""Scores of translations of a test set by metric."""


class LanguageCalibrations:
    """Calibrations of target languages, each computed once.

    The first test set of a target language is used for all directions to it.
    """

    def __init__(self) -> None:
        self._by_target: dict[str, dict[str, Calibration]] = {}

    def of(self, direction: Direction, texts: TestSet, score: ScoreFn) -> dict[str, Calibration]:
        """Return the calibration of each metric for the target of a direction.

        Args:
            direction: source and target.
            texts: its test set.
            score: scores of translations into the target language.
        """
        target = direction[1]
        if target not in self._by_target:
            selected = TestSet(texts.sources[:SENTENCES], texts.references[:SENTENCES])
            levels = [
                score(selected, damage(selected.references, target, errors))
                for errors in range(MAX_ERRORS + 1)
            ]
            self._by_target[target] = {
                metric: (float(np.mean(scores)), float(np.std(scores)))
                for metric in METRICS
                if metric in levels[0]
                and np.std(scores := [level[metric] for level in levels]) > _MIN_DEVIATION
            }
        return self._by_target[target]


def damage(references: Sequence[str], target_language: str, errors: int) -> list[str]:
    """Return references with injected errors: omissions, additions and replacements.

    Args:
        references: the references.
        target_language: their language; a unit is a word, or a character without spaces.
        errors: number of errors of each sentence. The first ones are those of a smaller number. A
            span has whole units: in a sentence of ten words, six errors of ten change one word and
            the others none.
    """
    joiner = "" if is_spaceless(target_language) else " "
    units = [list(text) if joiner == "" else text.split() for text in references]
    damaged = []
    for number, sentence in enumerate(units):
        draw = random.Random(number)
        share = _SHARE * len(sentence)
        for _ in range(errors):
            size = int(share) + (draw.random() < share % 1)
            kind, other = draw.choice(("omit", "add", "replace")), draw.choice(units)
            start, other_start = draw.randrange(len(sentence) + 1), draw.randrange(len(other) + 1)
            removed = 0 if kind == "add" else size
            added = [] if kind == "omit" else other[other_start : other_start + size]
            sentence = [*sentence[:start], *added, *sentence[start + removed :]]
        damaged.append(joiner.join(sentence))
    return damaged


def normalized_mean(group: DirectionGroup, number: int, metric: str) -> float | None:
    """Return the normalized mean of a metric over the directions of a group.

    Args:
        group: the directions.
        number: index of the evaluation.
        metric: one of `METRICS`.

    Returns:
        The mean on the metric's scale; None if a direction has no calibration. The evaluations of a
        comparable group have one calibration, that of the first that has all.
    """
    directions = group.scored(number, metric)
    calibrated = group.items if group.comparable else [group.items[number]]
    by_evaluation = ([items[pair].calibration for pair in directions] for items in calibrated)
    complete = (items for items in by_evaluation if all(metric in item for item in items))
    calibrations = [item[metric] for item in next(complete, [])]
    if not calibrations:
        return None
    scores = [getattr(group.items[number][pair], metric) for pair in directions]
    means, deviations = np.array(calibrations).T
    return float(means.mean() + deviations.mean() * np.mean((scores - means) / deviations))


def normalized_table(results: Sequence[RunResult], metrics: Sequence[Metric]) -> str:
    """Format raw and normalized means as Markdown; "" for one target language."""
    header, rows = _table(results, metrics)
    return markdown_table(header, rows) if rows else ""


def normalized_section(results: Sequence[RunResult], metrics: Sequence[Metric]) -> list[Html]:
    """Return the section of a report with raw and normalized means; none for one target."""
    header, rows = _table(results, metrics)
    text = (
        "Raw means add scores of several target languages, whose scales differ. For normalized "
        "ones, each language is calibrated by its references with 0 to 5 injected errors "
        "(the idea of XQ-MEval, arXiv 2604.14934)."
    )
    title = "Means across languages"
    return (
        [section(title, tag("p", text, class_="muted"), text_table(header, rows))] if rows else []
    )


def _table(
    results: Sequence[RunResult], metrics: Sequence[Metric]
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows; no rows unless a group has several target languages."""
    kept = [metric for metric in metrics if metric.key in METRICS]
    header = ["system", "directions"]
    header += [title for metric in kept for title in (metric.title, f"{metric.title}, normalized")]
    rows = []
    for group in direction_groups(results):
        for number, result in enumerate(results):
            if len({target for _, target in group.items[number]}) < 2:
                continue
            cells = []
            for metric in kept:
                mean = group.mean(number, metric.key).mean
                cells += [mean, normalized_mean(group, number, metric.key)]
            if any(cell is not None for cell in cells[1::2]):
                label = [model_label(result), group.statuses[number]]
                rows.append([*label, *map(format_score, cells)])
    return header, rows
