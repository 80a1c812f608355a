"""Branch ablation: scores of a model with and without its language branches.

Source: Qu and Watanabe 2022, Table 9. Row (1) is the trained model and row (2) the same model
without its branches. Row (3) takes the output of row (2) for a zero-shot direction a -> c and
scores it against the references of a -> b, a direction that was trained on.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.analysis.branches import NO_BRANCHES_MESSAGE
from mnmt_jax.config.sections import Config
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark
from mnmt_jax.evaluation.evaluate import evaluate
from mnmt_jax.evaluation.evaluated_model import EvaluatedModel
from mnmt_jax.evaluation.metrics import corpus_scores
from mnmt_jax.evaluation.result import RunResult
from mnmt_jax.evaluation.result_tables import group_mean
from mnmt_jax.evaluation.translations import TRANSLATIONS, read_translations
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.vocabulary.language_codes import Direction

BRANCHES_OFF = "LanguageLayers.off=True"
BRANCHES_ON = "LanguageLayers.off=False"
METRICS = ("bleu", "chrf")
_GROUPS = ("supervised", "zero_shot", "all")


@dataclasses.dataclass(frozen=True)
class AblationPair:
    """A model to evaluate with and without its branches.

    Attributes:
        with_branches: the model with its branches.
        without_branches: the model without them.
        languages: language codes of the model.
    """

    with_branches: EvaluatedModel
    without_branches: EvaluatedModel
    languages: tuple[str, ...]


def check_has_branches(config: Config) -> None:
    """Check that the model of a run has language branches.

    Raises:
        UserError: if it has none.
    """
    if not any(isinstance(method, LanguageLayers) for method in config.model.methods):
        raise UserError(NO_BRANCHES_MESSAGE)


def supervised_targets_by_source(
    directions: Iterable[Direction], trained: Collection[Direction] | None
) -> dict[str, tuple[str, ...]]:
    """Return the trained target languages of each source language.

    Args:
        directions: directions that have test sentences.
        trained: directions trained on; None if unknown, which gives an empty dict.
    """
    targets: dict[str, tuple[str, ...]] = {}
    for source, target in directions:
        if trained is not None and (source, target) in trained:
            targets[source] = (*targets.get(source, ()), target)
    return targets


def run_ablation(
    ablated: AblationPair,
    benchmark: Benchmark,
    output: Path,
    *,
    directions: Sequence[Direction],
    targets: Mapping[str, Sequence[str]],
    overwrite: bool = False,
) -> dict[str, Any]:
    """Translate and score with and without branches.

    Args:
        ablated: the model with and without branches.
        benchmark: test sentences.
        output: folder for two evaluations, `on` and `off`; existing ones are continued.
        directions: directions of the benchmark to evaluate.
        targets: trained target languages by source language.
        overwrite: replace finished evaluations of something else.

    Returns:
        A JSON-ready dict: `rows` of the table, `supervised_targets` and `directions`.

    Raises:
        UserError: before any translation, if a zero-shot source has no reference in a trained
            target language.
    """
    references = {
        (direction, language): _references_in(benchmark, direction, language)
        for direction in directions
        for language in _reference_languages(direction, ablated.with_branches.supervised, targets)
        if (direction[0], language) in benchmark.directions
    }
    selected = benchmark.only(directions)
    on = evaluate(ablated.with_branches, selected, output / "on", overwrite=overwrite)
    off = evaluate(ablated.without_branches, selected, output / "off", overwrite=overwrite)
    models = {"on": ablated.with_branches, "off": ablated.without_branches}
    rescored = {
        (direction, language): {
            name: _scores_against(
                texts,
                _outputs(model, output / name, benchmark=benchmark, direction=direction),
                language,
            )
            for name, model in models.items()
        }
        for (direction, language), texts in references.items()
    }
    rows = [_row(1, on, "on"), _row(2, off, "off")]
    if rescored:
        rows += [_rescored_row(3, "off", rescored), _rescored_row(None, "on", rescored)]
    return {
        "rows": rows,
        "supervised_targets": {code: list(languages) for code, languages in targets.items()},
        "directions": [
            _direction(direction, {"on": on, "off": off}, rescored) for direction in directions
        ],
    }


def _reference_languages(
    direction: Direction,
    trained: Collection[Direction] | None,
    targets: Mapping[str, Sequence[str]],
) -> list[str]:
    """Return the other languages whose references a zero-shot output is also scored against.

    The list is empty for a direction that was trained on.
    """
    source, target = direction
    supervised = targets.get(source, ())
    if target in supervised or (trained is not None and direction in trained):
        return []
    return [code for code in supervised if code != source]


def _references_in(benchmark: Benchmark, direction: Direction, language: str) -> list[str]:
    """Return the references in another language of the source sentences of a direction.

    The n-th occurrence of a repeated source has the n-th of its references.

    Raises:
        UserError: if a source sentence has no reference in that language.
    """
    sources, pair = list(benchmark.texts(direction).sources), (direction[0], language)
    parallel = benchmark.texts(pair)
    if list(parallel.sources) == sources:
        return list(parallel.references)
    parallel = benchmark.unlimited().texts(pair)  # may have the sentences in another order
    references: dict[str, collections.deque[str]] = {}
    for text, reference in zip(parallel.sources, parallel.references, strict=True):
        references.setdefault(text, collections.deque()).append(reference)
    if missing := [text for text in sources if text not in references]:
        raise UserError(
            f"{'-'.join(direction)}: {len(missing)} of {len(sources)} source sentences have "
            f"no reference in {'-'.join(pair)}; use a test set that is parallel in all "
            "languages, or leave the direction out"
        )
    return [_next_reference(references[text]) for text in sources]


def _next_reference(references: collections.deque[str]) -> str:
    """Remove and return the first reference of a repeated source, but keep the last one."""
    return references.popleft() if len(references) > 1 else references[0]


def _outputs(
    model: EvaluatedModel, folder: Path, *, benchmark: Benchmark, direction: Direction
) -> list[str]:
    """Return the translations of a direction that an evaluation wrote."""
    provenance, texts = model.provenance([direction]), benchmark.texts(direction)
    outputs = read_translations(folder / TRANSLATIONS, provenance, direction, texts)
    return [output.text for output in outputs]


def _scores_against(
    references: Sequence[str], outputs: Sequence[str], language: str
) -> dict[str, float | None]:
    """Score translations against references in a language, in percent."""
    scores = corpus_scores(outputs, references, language)
    return {name: getattr(scores, name) for name in METRICS}


def _row(number: int, result: RunResult, branches: str) -> dict[str, Any]:
    row: dict[str, Any] = {"row": number, "branches": branches, "references": "own"}
    for group in _GROUPS:
        means = {name: group_mean(result, name, group) for name in METRICS}
        row[group] = {name: mean.mean for name, mean in means.items()}
        row[group]["directions"] = means["chrf"].directions
    return row


def _rescored_row(
    number: int | None, branches: str, rescored: Mapping[Any, Mapping[str, Any]]
) -> dict[str, Any]:
    means = {}
    for name in METRICS:
        scores = [by_branches[branches][name] for by_branches in rescored.values()]
        defined = [score for score in scores if score is not None]
        means[name] = sum(defined) / len(defined) if defined else None
    zero_shot = {**means, "directions": len({direction for direction, _ in rescored})}
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
    rescored: Mapping[tuple[Direction, str], Mapping[str, Any]],
) -> dict[str, Any]:
    entry: dict[str, Any] = {"source": direction[0], "target": direction[1]}
    for name, result in results.items():
        (scores,) = [item for item in result.directions if item.direction == direction]
        entry["supervised"], entry["sentences"] = scores.supervised, scores.sentences
        entry[name] = {metric: getattr(scores, metric) for metric in METRICS}
    entry["against"] = {
        code: by_branches
        for (rescored_direction, code), by_branches in rescored.items()
        if rescored_direction == direction
    }
    return entry
