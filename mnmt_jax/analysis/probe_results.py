"""Probe results of one or more models: accuracy by location and token class, and gains."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.analysis.layer_states import location_fields
from mnmt_jax.analysis.probe import (
    ProbeSettings,
    TypeAccuracy,
    accuracy_by_class,
    accuracy_by_type,
    class_gains,
    evaluate_probe,
    held_out_mask,
)
from mnmt_jax.analysis.probe_features import ProbeFeatures
from mnmt_jax.analysis.token_classes import token_id_classes
from mnmt_jax.design.objective import States
from mnmt_jax.vocabulary.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class ProbedModel:
    """A model to probe.

    Attributes:
        facts: what identifies the model: `run`, `checkpoint`, `parameters`.
        train_features: features for training the classifiers.
        test_features: features for testing; None tests on the held-out sentences of
            `train_features`.
    """

    facts: Mapping[str, Any]
    train_features: ProbeFeatures
    test_features: ProbeFeatures | None


def run_probes(
    probed_models: Sequence[ProbedModel],
    vocabulary: Vocabulary,
    *,
    probe: ProbeSettings,
    min_count: int,
    folder: Path,
) -> dict[str, Any]:
    """Probe models.

    Args:
        probed_models: models with features of the same sentences, all of one vocabulary.
        vocabulary: their vocabulary.
        probe: settings.
        min_count: minimum number of tokens of a type for it to count among types.
        folder: cache of classifier results.

    Returns:
        A JSON-ready dict with `subjects`. Each has its `places` in order, with `accuracy`,
        `held_out` and `classes`. For two subjects also `gains`, the `class_gains` of the second
        over the first at their common locations.
    """
    classes: Mapping[int, frozenset[str]] = _LazyClasses(vocabulary)
    types: list[dict[States, TypeAccuracy]] = []
    results = []
    for subject in probed_models:
        types_by_location, location_results = {}, []
        for number, location in enumerate(subject.train_features.locations):
            held_out_correct, tested_correct = evaluate_probe(
                subject.train_features, subject.test_features, number, probe=probe, folder=folder
            )
            ids = subject.train_features.ids[
                held_out_mask(subject.train_features.texts, probe.seed)
            ]
            if subject.test_features is not None:
                ids = subject.test_features.ids
            types_by_location[location] = accuracy_by_type(
                ids, held_out_correct if subject.test_features is None else tested_correct
            )
            by_class = accuracy_by_class(types_by_location[location], classes, min_count)
            location_results.append(
                {
                    **location_fields(location),
                    "accuracy": by_class["all"]["micro"],
                    "held_out": float(held_out_correct.mean()) if len(held_out_correct) else None,
                    "classes": by_class,
                }
            )
        types.append(types_by_location)
        results.append({**subject.facts, "places": location_results})
    facts: dict[str, Any] = {
        "probe": dataclasses.asdict(probe),
        "least": min_count,
        "subjects": results,
    }
    if len(probed_models) == 2:
        first, second = types
        facts["gains"] = [
            {
                **location_fields(location),
                **class_gains(first[location], second[location], classes, min_count),
            }
            for location in first
            if location in second
        ]
    return facts


class _LazyClasses(dict[int, frozenset[str]]):
    """Token classes by id, computed on first access."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._of = functools.partial(token_id_classes, vocabulary)

    def __missing__(self, token: int) -> frozenset[str]:
        self[token] = self._of(token)
        return self[token]
