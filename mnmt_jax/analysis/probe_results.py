"""The probes of one model or several: accuracy by place, by class of token, and what is gained."""

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
    """A model that is probed.

    Attributes:
        facts: what tells it: `run`, `checkpoint`, `parameters`.
        learned: the features that classifiers are trained on.
        tested: and tested on; None tests on what is held out of `learned`.
    """

    facts: Mapping[str, Any]
    learned: ProbeFeatures
    tested: ProbeFeatures | None


def run_probes(
    subjects: Sequence[ProbedModel],
    vocabulary: Vocabulary,
    *,
    probe: ProbeSettings,
    least: int,
    folder: Path,
) -> dict[str, Any]:
    """Probes models.

    Args:
        subjects: with features of the same sentences, of one vocabulary.
        vocabulary: theirs.
        probe: how.
        least: tokens that a type must have to count among types.
        folder: keeps what classifiers have told.

    Returns:
        Facts: `subjects`, each with its `places` in their order, which have `accuracy`, `held_out_mask`
        and `classes`; of two also `class_gains` at the places of both, those of the second over the
        first.
    """
    classes: Mapping[int, frozenset[str]] = _Classes(vocabulary)
    types: list[dict[States, TypeAccuracy]] = []
    found = []
    for subject in subjects:
        own, places = {}, []
        for number, place in enumerate(subject.learned.places):
            right, tested = evaluate_probe(
                subject.learned, subject.tested, number, probe=probe, folder=folder
            )
            ids = subject.learned.ids[held_out_mask(subject.learned.texts, probe.seed)]
            if subject.tested is not None:
                ids = subject.tested.ids
            own[place] = accuracy_by_type(ids, right if subject.tested is None else tested)
            by_class = accuracy_by_class(own[place], classes, least)
            places.append(
                {
                    **location_fields(place),
                    "accuracy": by_class["all"]["micro"],
                    "held_out": float(right.mean()) if len(right) else None,
                    "classes": by_class,
                }
            )
        types.append(own)
        found.append({**subject.facts, "places": places})
    facts: dict[str, Any] = {"probe": dataclasses.asdict(probe), "least": least, "subjects": found}
    if len(subjects) == 2:
        first, second = types
        facts["gains"] = [
            {**location_fields(place), **class_gains(first[place], second[place], classes, least)}
            for place in first
            if place in second
        ]
    return facts


class _Classes(dict[int, frozenset[str]]):
    """The classes of ids, found when they are asked for."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._of = functools.partial(token_id_classes, vocabulary)

    def __missing__(self, token: int) -> frozenset[str]:
        self[token] = self._of(token)
        return self[token]
