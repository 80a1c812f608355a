"""Evaluation of a model with its language branches and without them.

Source: third paper, Table 9. Row (1) is the model as it was trained, row (2) the same without its
branches, row (3) scores what row (2) translates from a into c, never trained on, against the
references of the language into which a was trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.analysis.branches import NO_BRANCHES_MESSAGE
from mnmt_jax.config.sections import Config
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark
from mnmt_jax.evaluation.evaluate import EvaluatedModel, evaluate
from mnmt_jax.evaluation.markdown_tables import group_mean
from mnmt_jax.evaluation.metrics import corpus_scores
from mnmt_jax.evaluation.result import RunResult
from mnmt_jax.evaluation.translations import read_outputs
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.vocabulary.languages import Direction

BRANCHES_OFF = "LanguageLayers.off=True"
BRANCHES_ON = "LanguageLayers.off=False"
METRICS = ("bleu", "chrf")
_GROUPS = ("supervised", "zero_shot", "all")


@dataclasses.dataclass(frozen=True)
class AblationPair:
    """What is compared.

    Attributes:
        on: the model with its branches.
        off: the model without.
        languages: of the model.
    """

    on: EvaluatedModel
    off: EvaluatedModel
    languages: tuple[str, ...]


def check_has_branches(config: Config) -> None:
    """Checks that a run's model has branches to leave out.

    Raises:
        UserError: otherwise.
    """
    if not any(isinstance(method, LanguageLayers) for method in config.model.methods):
        raise UserError(NO_BRANCHES_MESSAGE)


def supervised_targets_by_source(
    directions: Iterable[Direction], trained: Collection[Direction] | None
) -> dict[str, tuple[str, ...]]:
    """Returns the languages that each source language was trained into.

    Args:
        directions: that have test sentences.
        trained: directions trained on; None if unknown, which gives none.
    """
    found: dict[str, tuple[str, ...]] = {}
    for source, target in directions:
        if trained is not None and (source, target) in trained:
            found[source] = (*found.get(source, ()), target)
    return found


def run_ablation(
    ablated: AblationPair,
    benchmark: Benchmark,
    output: Path,
    *,
    directions: Sequence[Direction],
    targets: Mapping[str, Sequence[str]],
    overwrite: bool = False,
) -> dict[str, Any]:
    """Translates and scores with and without branches.

    Args:
        ablated: the model twice.
        benchmark: the sentences.
        output: gets an evaluation in `on` and one in `off`, continued if they are there.
        directions: to evaluate, of the benchmark's.
        targets: of source languages, those into which they were trained.
        overwrite: whether finished evaluations that are not of these may be replaced.

    Returns:
        Facts: `rows` of the table and `directions`.
    """
    own = benchmark.only(directions)
    on = evaluate(ablated.on, own, output / "on", overwrite=overwrite)
    off = evaluate(ablated.off, own, output / "off", overwrite=overwrite)
    folders = {"on": output / "on", "off": output / "off"}
    rolled = {
        (direction, against): {
            name: _against(folder, benchmark, direction, against)
            for name, folder in folders.items()
        }
        for direction in directions
        for against in _others(direction, ablated.on.supervised, targets)
        if (direction[0], against) in benchmark.directions
    }
    rows = [_row(1, on, "on"), _row(2, off, "off")]
    if rolled:
        rows += [_rolled_row(3, "off", rolled), _rolled_row(None, "on", rolled)]
    return {
        "rows": rows,
        "supervised_targets": {code: list(found) for code, found in targets.items()},
        "directions": [
            _direction(direction, {"on": on, "off": off}, rolled) for direction in directions
        ],
    }


def _others(
    direction: Direction,
    trained: Collection[Direction] | None,
    targets: Mapping[str, Sequence[str]],
) -> list[str]:
    """Returns the languages whose references the output of a direction may be nearer to."""
    source, target = direction
    known = targets.get(source, ())
    if target in known or (trained is not None and direction in trained):
        return []
    return [code for code in known if code != source]


def _against(
    folder: Path, benchmark: Benchmark, direction: Direction, against: str
) -> dict[str, float | None]:
    """Scores the translations of one direction by the references of another, in percent.

    Raises:
        UserError: if the two have not the same source sentences.
    """
    texts, other = benchmark.texts(direction), benchmark.texts((direction[0], against))
    references = dict(zip(other.sources, other.references, strict=True))
    if missing := [text for text in texts.sources if text not in references]:
        raise UserError(
            f"{'-'.join(direction)}: {len(missing)} of {len(texts.sources)} source sentences have "
            f"no reference in {direction[0]}-{against}; use a test set that is parallel in all "
            "languages, or leave the direction out"
        )
    outputs = read_outputs(folder / "translations", direction, texts)
    assert outputs is not None
    wanted = [references[text] for text in texts.sources]
    scores = corpus_scores([one.text for one in outputs], wanted, against)
    return {name: getattr(scores, name) for name in METRICS}


def _row(number: int, result: RunResult, branches: str) -> dict[str, Any]:
    found: dict[str, Any] = {"row": number, "branches": branches, "references": "own"}
    for group in _GROUPS:
        means = {name: group_mean(result, name, group) for name in METRICS}
        found[group] = {name: mean.mean for name, mean in means.items()}
        found[group]["directions"] = means["chrf"].directions
    return found


def _rolled_row(
    number: int | None, branches: str, rolled: Mapping[Any, Mapping[str, Any]]
) -> dict[str, Any]:
    means = {}
    for name in METRICS:
        values = [found[branches][name] for found in rolled.values()]
        known = [value for value in values if value is not None]
        means[name] = sum(known) / len(known) if known else None
    zero_shot = {**means, "directions": len({direction for direction, _ in rolled})}
    references = "supervised target"
    return {
        "row": number,
        "branches": branches,
        "references": references,
        "zero_shot": zero_shot,
    }


def _direction(
    direction: Direction,
    results: Mapping[str, RunResult],
    rolled: Mapping[tuple[Direction, str], Mapping[str, Any]],
) -> dict[str, Any]:
    found: dict[str, Any] = {"source": direction[0], "target": direction[1]}
    for name, result in results.items():
        (own,) = [item for item in result.directions if item.direction == direction]
        found["supervised"], found["sentences"] = own.supervised, own.sentences
        found[name] = {metric: getattr(own, metric) for metric in METRICS}
    found["against"] = {code: scores for (of, code), scores in rolled.items() if of == direction}
    return found
