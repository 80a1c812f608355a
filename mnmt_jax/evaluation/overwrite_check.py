"""Check of an evaluation's output folder against replacing other results or translations."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.decoding.search_settings import changed_settings
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.evaluation.benchmark import Benchmark, TestSet
from mnmt_jax.evaluation.neural_metrics import differing_models
from mnmt_jax.evaluation.outside_hypotheses import describe_checksum
from mnmt_jax.evaluation.result import OPTIONAL_METRICS, SCORES_FILE
from mnmt_jax.evaluation.translations import (
    HYPOTHESES,
    TRANSLATIONS,
    changed_provenance,
    describe_changed_sentences,
    has_translations,
)
from mnmt_jax.files.json_objects import read_object
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.language_detectors import detector_titles, is_same_detector

_OPTIONAL = {metric.key: metric.title for metric in OPTIONAL_METRICS}


def check_overwrite(
    folder: Path,
    provenance: Mapping[str, Any],
    benchmark: Benchmark,
    *,
    system: Mapping[str, Any],
    directions: Sequence[Direction],
    optional: Mapping[str, Any],
    supervised: Collection[Direction] | None,
) -> None:
    """Refuse to replace an evaluation with other settings or more results.

    A finished evaluation may gain directions and scores, but not lose any. Test sentences, model
    and search must be the same, for a finished and for an unfinished evaluation.

    Args:
        folder: output folder of the evaluation.
        provenance: provenance of its translations, as in `TranslationStore`.
        benchmark: its test sentences.
        system: `name`, `step` and `decoding` of the result, which stand in for the provenance if
            the folder has lost its translations.
        directions: the directions to evaluate.
        optional: `OptionalMetrics.settings`.
        supervised: directions that the model was trained on; None if unknown.

    Raises:
        UserError: if results or translations would be lost or changed.
    """
    scores, contents = folder / SCORES_FILE, "translations made"
    changes = changed_provenance(folder / TRANSLATIONS, provenance)
    if scores.is_file() and scores.stat().st_size:
        contents = "a finished evaluation"
        finished = read_object(scores, remedy="replace it with --overwrite")
        if not has_translations(folder / TRANSLATIONS):
            changes += _changed_system(finished, provenance, system)
        changes += _changes(finished, benchmark, directions, optional, supervised)
    elif not changes:
        sentence_changes = (
            describe_changed_sentences(folder / TRANSLATIONS, direction, benchmark.texts(direction))
            for direction in directions
        )
        changes += _first_nonempty(sentence_changes)
    if changes:
        raise UserError(
            f"--output={folder}: holds {contents} with other settings ({join_names(changes)}); "
            "choose another folder, or replace it with --overwrite"
        )


def _changed_system(
    finished: Mapping[str, Any], provenance: Mapping[str, Any], system: Mapping[str, Any]
) -> list[str]:
    """Return the facts in which a system differs from that of a finished evaluation."""
    changes = [name for name in ("name", "step") if finished.get(name) != system[name]]
    decoding, signatures = finished.get("decoding"), finished.get("signatures")
    if isinstance(decoding, dict):
        changes += changed_settings(decoding, system["decoding"])
    recorded = signatures.get(HYPOTHESES) if isinstance(signatures, dict) else None
    scored = {f"{item.get('source')}-{item.get('target')}" for item in _results(finished)}
    files = {name: text for name, text in provenance.get(HYPOTHESES, {}).items() if name in scored}
    if recorded != (describe_checksum(files) if files else None):
        changes.append(HYPOTHESES)
    return changes


def _results(finished: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the results of the directions of a finished evaluation."""
    return [item for item in finished.get("directions", ()) if isinstance(item, dict)]


def _changes(
    finished: Mapping[str, Any],
    benchmark: Benchmark,
    directions: Sequence[Direction],
    optional: Mapping[str, Any],
    supervised: Collection[Direction] | None,
) -> list[str]:
    """Return the settings in which a finished evaluation differs, as text for an error."""
    if finished.get("task") != benchmark.task:
        return ["task"]
    items = _results(finished)
    results = {(item.get("source"), item.get("target")): item for item in items}
    changes = []
    if lost_count := len(results.keys() - set(directions)):
        changes.append(f"directions: {lost_count} of its {len(results)} would be lost")
    common = [direction for direction in directions if direction in results]
    changes += _first_nonempty(
        _changed_sentences(direction, results[direction], benchmark.texts(direction))
        for direction in common
    )
    changes += _changed_detector(finished, benchmark)
    if supervised is None and any(item.get("supervised") is not None for item in items):
        changes.append("the labels of --trained_on would be lost")
    if supervised is not None and any(
        results[pair].get("supervised") not in (None, pair in supervised) for pair in common
    ):
        changes.append("the directions of --trained_on")
    return changes + _lost_scores(finished, items, optional)


def _first_nonempty(changes: Iterable[str]) -> list[str]:
    """Return at most one text, the first that is not empty; later ones are not computed."""
    return list(itertools.islice(filter(None, changes), 1))


def _changed_sentences(direction: Direction, result: Mapping[str, Any], texts: TestSet) -> str:
    """Describe how the test sentences of a direction differ from the scored ones, or return ""."""
    count, name = result.get("sentences"), "-".join(direction)
    if count != len(texts.sources):
        return f"sentences: {count} of {name}, now {len(texts.sources)}"
    fingerprint = result.get("text_fingerprint")
    return f"sentences of {name}" if fingerprint and fingerprint != texts.fingerprint else ""


def _changed_detector(finished: Mapping[str, Any], benchmark: Benchmark) -> list[str]:
    """Describe the change of the language detector, if there is one."""
    signatures = finished.get("signatures")
    signature = signatures.get("off_target_lid") if isinstance(signatures, dict) else None
    return _changed_model("--lid", signature, benchmark.detector.signature)


def _changed_model(flag: str, recorded: object, signature: str) -> list[str]:
    """Describe the change of a flag's detector, if its recorded signature is of another one."""
    if not isinstance(recorded, str) or is_same_detector(recorded, signature):
        return []
    titles = detector_titles([recorded, signature])
    return [f"{flag}: {titles[recorded]}, now {titles[signature]}"]


def _lost_scores(
    finished: Mapping[str, Any], items: Sequence[Mapping[str, Any]], optional: Mapping[str, Any]
) -> list[str]:
    """Return the optional scores that would be lost or would be computed differently."""
    changes = [
        f"{title} would be lost"
        for name, title in _OPTIONAL.items()
        if name not in optional and any(item.get(name) is not None for item in items)
    ]
    signatures, paper = finished.get("signatures"), finished.get("paper")
    second = signatures.get("off_target_second") if isinstance(signatures, dict) else None
    if second and "off_target_second" not in optional:
        changes.append("the ratio of --lid_model would be lost")
    elif second:
        changes += _changed_model("--lid_model", second, optional["off_target_second"])
    recorded = signatures if isinstance(signatures, dict) else {}
    changes += [
        f"model of {title}"
        for name, title in _OPTIONAL.items()
        if differing_models([recorded.get(name), optional.get(name)])
    ]
    procedure = paper.get("procedure") if isinstance(paper, dict) else None
    if procedure and optional.get("paper_compatible") != procedure:
        changes.append(f"--paper_compatible={procedure} would be lost")
    return changes
