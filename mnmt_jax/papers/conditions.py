"""Conditions of our runs, and their differences from the row's files and the paper's counts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Config
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.design.method import as_facts
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.evaluation.result import RunResult
from mnmt_jax.evaluation.result_labels import decoding_label
from mnmt_jax.papers.experiments import Experiment, gin_files, training_config
from mnmt_jax.papers.intervals import Evaluation
from mnmt_jax.papers.tables import EMPTY, number_text

# Settings that differ between any two runs, or have no influence on scores.
_UNCOMPARED = frozenset(
    {
        "data.cache",
        "data.chunk_examples",
        "data.workers",
        "model.vocab_size",
        "model.remat",
        "train.seed",
        "train.steps",
        "train.epochs",
        "train.log_every",
        "train.save_every",
        "train.keep_last",
        "train.keep_every",
        "train.trackers",
        "decode.batch",
        "decode.buckets",
    }
)
_SENTENCES = "training sentences"
_ROUNDED = 0.02  # share by which papers round the number of training sentences
_SECTIONS = ("data", "model", "optimizer", "train", "decode")
_PRECISION = {
    "bfloat16": "bfloat16, parameters float32",
    "float32": "float32",
}
HEADER = (
    *("row", "task", "seeds", "evaluated update", "trained updates", "training sentences"),
    *("vocabulary", "parameters", "precision", "test sentences", "decoding"),
)
"""Titles of the table of conditions."""

Count = int | None
CountParameters = Callable[[Config], int]


@dataclasses.dataclass(frozen=True)
class Conditions:
    """Conditions of a row's runs on one corpus.

    Attributes:
        row: name of the row.
        task: evaluated task.
        seeds: number of seeds.
        expected_seeds: number of seeds that the table's file names.
        evaluated: number of updates of the evaluated parameters, one per seed.
        counts: what is counted -> our number and the expected one; None where unknown. Expected
            are the sentences that the paper states, and the numbers of the row's files.
        precision: compute type and type of parameters.
        test_sentences: number of test sentences over all directions.
        decoding: search and settings that differ from the defaults.
        settings: settings -> our value and that of the row's files, where they differ.
    """

    row: str
    task: str
    seeds: int
    expected_seeds: int
    evaluated: tuple[Count, ...]
    counts: Mapping[str, tuple[Count, Count]]
    precision: str
    test_sentences: int
    decoding: str
    settings: Mapping[str, tuple[str, str]]

    @property
    def cells(self) -> list[str]:
        """Texts of the table of conditions, in the order of `HEADER`."""
        updates = ", ".join(dict.fromkeys(map(number_text, self.evaluated)))
        counts = [number_text(ours) for ours, _ in self.counts.values()]
        tested = number_text(self.test_sentences)
        return [
            self.row,
            self.task,
            str(self.seeds),
            updates,
            *counts,
            self.precision,
            tested,
            self.decoding,
        ]

    @property
    def difference(self) -> str:
        """A sentence on what differs; empty if nothing does, or nothing is known."""
        parts = []
        if self.seeds != self.expected_seeds:
            parts.append(f"seeds {self.seeds} instead of {self.expected_seeds}")
        parts += [
            f"{name} {number_text(ours)} instead of {number_text(expected)}"
            for name, (ours, expected) in self.counts.items()
            if _differ(name, ours, expected)
        ]
        parts += [
            f"{key} {ours} instead of {value}" for key, (ours, value) in self.settings.items()
        ]
        return f"{self.row} on {self.task}: {'; '.join(parts)}." if parts else ""


def conditions_of(
    row: str,
    evaluations: Sequence[Evaluation],
    experiment: Experiment,
    output: Path,
    count_parameters: CountParameters | None,
    expected_seeds: int,
) -> Conditions:
    """Return the conditions of a row's runs.

    Args:
        row: name of the row.
        evaluations: its evaluations, one per seed.
        experiment: what was trained and evaluated.
        output: folder in which the workflow ran.
        count_parameters: counts the parameters of a training's model; None does not compare them.
        expected_seeds: number of seeds that the table or its corpus names.
    """
    result = evaluations[0].result
    sentences, pieces = _data_counts(result, output)
    expected: dict[str, Count] = {}
    settings: Mapping[str, tuple[str, str]] = {}
    if not experiment.pretrained:
        config = training_config(experiment)
        if not config.train.epochs:  # the cache determines the updates of epochs
            expected = {"trained updates": config.train.steps}
        if not experiment.data.new_language:  # its pieces are known after training
            count = count_parameters(config) if count_parameters else None
            expected |= {"vocabulary": config.model.vocab_size, "parameters": count}
        settings = _changed_settings(result, experiment)
    ours = {
        "trained updates": _trained_updates(result),
        _SENTENCES: sentences,
        "vocabulary": pieces,
        "parameters": result.parameters,
    }
    if not experiment.back_translation_rounds:  # their caches also have pseudo pairs
        expected[_SENTENCES] = experiment.data.sentences or None
    return Conditions(
        row=row,
        task=result.task,
        seeds=len(evaluations),
        expected_seeds=expected_seeds,
        evaluated=tuple(evaluation.result.step for evaluation in evaluations),
        counts={name: (count, expected.get(name)) for name, count in ours.items()},
        precision=_PRECISION.get(result.config.get("model", {}).get("dtype", ""), EMPTY),
        test_sentences=sum(item.sentences for item in result.directions),
        decoding=decoding_label(result),
        settings=settings,
    )


def _trained_updates(result: RunResult) -> Count:
    """Return the last logged update; None without a log."""
    curve = result.curves.get("train")
    return int(curve[-1][0]) if curve else None


def _data_counts(result: RunResult, output: Path) -> tuple[Count, Count]:
    """Return the numbers of training sentences and vocabulary entries; None if unknown."""
    data = result.config.get("data", {})
    folder = data.get("cache")
    if not folder or not (output / folder).is_dir():
        return None, None
    try:
        cache = TokenCache.open(output / folder)
    except UserError:
        return None, None
    tasks = [cache.tasks[name] for name in data.get("tasks", ()) if name in cache.tasks]
    splits = [task.splits["train"] for task in tasks if "train" in task.splits]
    return sum(split.examples for split in splits), cache.vocabulary.size


def _changed_settings(result: RunResult, experiment: Experiment) -> dict[str, tuple[str, str]]:
    """Return the settings that differ from those of the row's files."""
    planned = dict(_flatten(_expected_settings(experiment)))
    run = {name: result.config.get(name, {}) for name in _SECTIONS}
    run["decode"] = {**run["decode"], **result.decoding}
    ours = dict(_flatten(json.loads(json.dumps(run, default=str))))
    return {
        key: (_setting(ours[key]), _setting(planned[key]))
        for key in planned
        if key in ours
        and key not in _UNCOMPARED
        and ours[key] != planned[key]
        and (key != "data.tasks" or planned[key])
    }


def _expected_settings(experiment: Experiment) -> dict[str, Any]:
    bindings = (*experiment.training_bindings, *experiment.decode)
    decode = load_config(gin_files(experiment), bindings).decode
    config = dataclasses.replace(training_config(experiment), decode=decode)
    facts = as_facts(config)
    planned = {name: facts[name] for name in _SECTIONS}
    return dict(json.loads(json.dumps(planned, default=str)))


def _flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values; of a list of methods their names, then their settings."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = {item.get("name", str(number)): item for number, item in enumerate(value)}
        yield prefix, list(value)
    if not isinstance(value, dict):
        yield prefix, value
        return
    for key, item in value.items():
        yield from _flatten(item, f"{prefix}.{key}" if prefix else key)


def _setting(value: Any) -> str:
    """Return the value of a setting as text; lists in parentheses."""
    if isinstance(value, list):
        return f"({join_names(list(map(str, value)))})"
    return f"{value}" or "''"


def _differ(name: str, ours: Count, expected: Count) -> bool:
    """Return whether a known count differs; papers round the number of training sentences."""
    if ours is None or expected is None:
        return False
    tolerance = _ROUNDED * expected if name == _SENTENCES else 0
    return abs(ours - expected) > tolerance
