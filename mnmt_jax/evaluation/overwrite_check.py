"""Comparison of an evaluation to make with the results and translations in its output folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.errors import UserError, join_names
from mnmt_jax.evaluation.benchmark import Benchmark, TestSet
from mnmt_jax.evaluation.language_detectors import detector_name
from mnmt_jax.evaluation.translations import changed_provenance, describe_changed_sentences
from mnmt_jax.files.json_objects import read_object
from mnmt_jax.vocabulary.languages import Direction

_OPTIONAL = {"spbleu": "spBLEU", "comet": "COMET", "bert_score": "BERTScore"}


def check_overwrite(
    folder: Path,
    made_by: Mapping[str, Any],
    benchmark: Benchmark,
    *,
    directions: Sequence[Direction],
    optional: Mapping[str, str],
) -> None:
    """Refuse to replace an evaluation by one of other settings or with fewer results.

    A finished evaluation may gain directions and scores. It may not lose any, and its test
    sentences, model and search must be the same. An unfinished evaluation must have the same
    sentences, model and search.

    Args:
        folder: output of the evaluation.
        made_by: what its translations depend on besides their sources.
        benchmark: its test sentences.
        directions: to be evaluated.
        optional: from `OptionalMetrics.settings`.

    Raises:
        UserError: if results or translations would be lost or changed.
    """
    scores, what = folder / "scores.json", "translations made"
    changes = changed_provenance(folder / "translations", made_by)
    if scores.is_file() and scores.stat().st_size:
        what = "a finished evaluation"
        finished = read_object(scores, remedy="replace it with --overwrite")
        changes += _changes(finished, benchmark, directions, optional)
    elif not changes:
        kept = (
            describe_changed_sentences(
                folder / "translations", direction, benchmark.texts(direction)
            )
            for direction in directions
        )
        changes += _first(kept)
    if changes:
        raise UserError(
            f"--output={folder}: holds {what} with other settings ({join_names(changes)}); "
            "choose another folder, or replace it with --overwrite"
        )


def _changes(
    finished: Mapping[str, Any],
    benchmark: Benchmark,
    directions: Sequence[Direction],
    optional: Mapping[str, str],
) -> list[str]:
    """Return the settings in which a finished evaluation differs, as an error names them."""
    if finished.get("task") != benchmark.task:
        return ["task"]
    items = [item for item in finished.get("directions", ()) if isinstance(item, dict)]
    results = {(item.get("source"), item.get("target")): item for item in items}
    changes = []
    if lost := len(results.keys() - set(directions)):
        changes.append(f"directions: {lost} of its {len(results)} would be lost")
    common = [direction for direction in directions if direction in results]
    changes += _first(
        _sentences(direction, results[direction], benchmark.texts(direction))
        for direction in common
    )
    changes += _other_detector(finished, benchmark)
    return changes + _lost_scores(finished, items, optional)


def _first(changes: Iterable[str]) -> list[str]:
    """Return the first text that is not empty, if there is one; later ones are not computed."""
    return list(itertools.islice(filter(None, changes), 1))


def _sentences(direction: Direction, result: Mapping[str, Any], texts: TestSet) -> str:
    """Describe how a direction's test sentences differ from the scored ones; "" if they do not."""
    count, name = result.get("sentences"), "-".join(direction)
    if count != len(texts.sources):
        return f"sentences: {count} of {name}, now {len(texts.sources)}"
    known = result.get("text_fingerprint")
    return f"sentences of {name}" if known and known != texts.fingerprint else ""


def _other_detector(finished: Mapping[str, Any], benchmark: Benchmark) -> list[str]:
    """Describe the language detector of an evaluation if it is another one."""
    signatures = finished.get("signatures")
    before = signatures.get("off_target_lid") if isinstance(signatures, dict) else None
    if not isinstance(before, str) or detector_name(before) == benchmark.detector.name:
        return []
    return [f"--lid: {detector_name(before)}, now {benchmark.detector.name}"]


def _lost_scores(
    finished: Mapping[str, Any], items: Sequence[Mapping[str, Any]], optional: Mapping[str, str]
) -> list[str]:
    """Return the optional scores that would be lost or computed otherwise."""
    changes = [
        f"{title} would be lost"
        for name, title in _OPTIONAL.items()
        if name not in optional and any(item.get(name) is not None for item in items)
    ]
    signatures, paper = finished.get("signatures"), finished.get("paper")
    comet = signatures.get("comet") if isinstance(signatures, dict) else None
    if comet and optional.get("comet", comet) != comet:
        changes.append("model of COMET")
    procedure = paper.get("procedure") if isinstance(paper, dict) else None
    if procedure and optional.get("paper_compatible") != procedure:
        changes.append(f"--paper_compatible={procedure} would be lost")
    return changes
