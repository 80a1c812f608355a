"""Evaluation pipeline of a run: translate, score and report.

Each stage is a function that writes files of the output folder:

translate   translations/*.jsonl
score       reads these and writes scores.json and statistics/*.npz
report      reads those and writes table.md and report.html
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mnmt_jax import __version__
from mnmt_jax.design.method import as_facts
from mnmt_jax.distributed.work_shards import WHOLE, WorkShard
from mnmt_jax.errors import pluralize, say
from mnmt_jax.evaluation.benchmark import Benchmark, TestSet, choose_directions
from mnmt_jax.evaluation.evaluated_model import EvaluatedModel
from mnmt_jax.evaluation.language_normalization import (
    SIGNATURE,
    LanguageCalibrations,
    normalized_table,
)
from mnmt_jax.evaluation.metrics import corpus_scores
from mnmt_jax.evaluation.optional_metrics import OptionalMetrics
from mnmt_jax.evaluation.outside_hypotheses import describe_checksum
from mnmt_jax.evaluation.overwrite_check import check_overwrite
from mnmt_jax.evaluation.quality_flags import quality_table
from mnmt_jax.evaluation.report import is_report, write_report
from mnmt_jax.evaluation.result import (
    SCORES_FILE,
    DirectionResult,
    RunResult,
    is_result,
    read_result,
    write_result,
)
from mnmt_jax.evaluation.result_tables import is_result_page, leading_metrics, result_page
from mnmt_jax.evaluation.scoring import (
    ScoredDirection,
    sampled_directions,
    score_direction,
)
from mnmt_jax.evaluation.sentence_statistics import (
    DirectionStatistics,
    check_statistics,
    write_statistics,
)
from mnmt_jax.evaluation.significance import (
    SentenceSignificance,
    direction_intervals,
    interval_signature,
)
from mnmt_jax.evaluation.training_log import read_training_log
from mnmt_jax.evaluation.translations import (
    HYPOTHESES,
    TRANSLATIONS,
    TranslationStore,
    check_translations,
    read_translations,
)
from mnmt_jax.files.atomic_write import check_replaced, check_writable, locked, write_text
from mnmt_jax.files.bucket import refuse_bucket
from mnmt_jax.pages.markdown_tables import format_score
from mnmt_jax.runtime.first_results import note_first_results
from mnmt_jax.vocabulary.language_codes import Direction, is_same_language


def check_folder(output: str | Path) -> None:
    """Check that an evaluation may write to a folder and replaces only files of an evaluation.

    Raises:
        UserError: if a file to replace is not of an evaluation, or if the folder is in a bucket or
            is not writable.
    """
    refuse_bucket(output)
    folder = Path(output)
    check_writable(folder)
    check_replaced(folder / SCORES_FILE, is_result)
    check_replaced(folder / "table.md", is_result_page)
    check_replaced(folder / "report.html", is_report)
    check_statistics(folder)
    check_translations(folder / TRANSLATIONS)


@dataclasses.dataclass(frozen=True)
class TranslatedDirections:
    """Directions of an evaluation whose translations are on disk.

    Attributes:
        directions: all directions to score, in order.
        reused: those of this process that had been translated before.
        missing: those that other processes have not translated yet.
    """

    directions: tuple[Direction, ...]
    reused: tuple[Direction, ...]
    missing: tuple[Direction, ...] = ()


def evaluate(
    model: EvaluatedModel,
    benchmark: Benchmark,
    output: str | Path,
    *,
    subset: str = "all",
    optional_metrics: OptionalMetrics | None = None,
    overwrite: bool = False,
) -> RunResult:
    """Translate and score all directions and write the results to a folder.

    Calls `translate`, `score` and `report`. Of several processes one scores at a time.

    Args:
        model: the model.
        benchmark: the test sentences.
        output: folder for `scores.json`, `table.md`, `report.html`, `statistics/` and
            `translations/`. Existing translations by the same parameters and search are reused.
        subset: "all", "supervised" or "zero_shot" directions.
        optional_metrics: optional metrics; None computes the standard ones only.
        overwrite: replace an evaluation with other settings or with more results.

    Raises:
        UserError: as `translate` and `score`.
    """
    translated = translate(
        model,
        benchmark,
        output,
        subset=subset,
        optional_metrics=optional_metrics,
        overwrite=overwrite,
    )
    directions = translated.directions
    with locked(Path(output)):  # processes that restart after the translations would all score
        result = score(
            model, benchmark, output, directions=directions, optional_metrics=optional_metrics
        )
        report(output)
    if translated.reused:
        reused = f"{len(translated.reused)} of {len(directions)} directions"
        say(f"{reused} had been {model.obtained} before")
    for note in _notes(result.directions):
        say(f"note: {note}")
    return result


def translate(
    model: EvaluatedModel,
    benchmark: Benchmark,
    output: str | Path,
    *,
    subset: str = "all",
    optional_metrics: OptionalMetrics | None = None,
    overwrite: bool = False,
    work_shard: WorkShard = WHOLE,
) -> TranslatedDirections:
    """Translate all directions, the first stage of `evaluate`; write `translations/*.jsonl`.

    Args:
        model: the model, as in `evaluate`.
        benchmark: the test sentences.
        output: output folder. Complete files by the same parameters and search are kept.
        subset: "all", "supervised" or "zero_shot" directions.
        optional_metrics: the optional metrics that `score` will compute.
        overwrite: replace an evaluation with other settings or with more results.
        work_shard: the share of this process if several translate to one folder; the other flags
            of all processes are equal.

    Raises:
        UserError: if there is nothing to evaluate, if the folder is not writable or has files of
            these names that are not of an evaluation, or if it holds an evaluation that only
            `overwrite` may replace.
    """
    directions, store = _prepare(
        model,
        benchmark,
        output,
        subset=subset,
        overwrite=overwrite,
        optional_metrics=optional_metrics,
    )
    pivot = model.decoding.get("pivot")
    if pivot and (direct_count := sum(_has_language(pair, pivot) for pair in directions)):
        say(f"{pluralize(direct_count, 'direction')} from or into {pivot}: translated directly")
    assigned = [pair for number, pair in enumerate(directions) if work_shard.holds(number)]
    with note_first_results() as note:
        for number, direction in enumerate(assigned, start=1):
            note(0)
            if store.translate(direction, benchmark.texts(direction), model.translate):
                note(1)
                say(f"{number}/{len(assigned)} {'-'.join(direction)} {model.obtained}")
    missing = []
    if work_shard.processes > 1:
        missing = [pair for pair in directions if not store.holds(pair, benchmark.texts(pair))]
    if missing:
        progress = (
            f"process {work_shard.process} of {work_shard.processes} has finished its directions"
        )
        say(
            f"{progress}, other processes have {len(missing)} left; the last one to finish scores "
            "all"
        )
    return TranslatedDirections(directions, tuple(store.reused), tuple(missing))


def score(
    model: EvaluatedModel,
    benchmark: Benchmark,
    output: str | Path,
    *,
    directions: Sequence[Direction],
    optional_metrics: OptionalMetrics | None = None,
) -> RunResult:
    """Score the translations in a folder, the second stage of `evaluate`; write `scores.json`.

    Args:
        model: the model that made the translations.
        benchmark: the test sentences.
        output: output folder with the files of `translate`, which has also checked it.
        directions: the directions to score, in display order.
        optional_metrics: optional metrics; None computes the standard ones only.

    Raises:
        UserError: if the translations of a direction are missing, of other sentences or by another
            model or search. `scores.json` is not written then.
    """
    folder, scored = Path(output), []
    provenance = model.provenance(directions)
    statistics, calibrations = {}, LanguageCalibrations()
    has_several_targets = len({target for _, target in directions}) > 1  # else nothing to compare
    for number, direction in enumerate(directions, start=1):
        texts = benchmark.texts(direction)
        outputs = read_translations(folder / TRANSLATIONS, provenance, direction, texts)
        scored_direction = score_direction(
            direction,
            texts,
            outputs=outputs,
            benchmark=benchmark,
            supervised=model.supervised,
            has_context="context" in model.decoding,
            has_vocabulary=model.vocabulary is not None,
        )
        if optional_metrics is not None:
            hypotheses = [sentence.text for sentence in outputs]
            scored_direction = optional_metrics.add(scored_direction, texts, hypotheses)
        statistics[direction] = DirectionStatistics.create(texts, scored_direction.statistics)
        direction_result = dataclasses.replace(
            scored_direction.result,
            intervals=direction_intervals(statistics[direction]),
            calibration=calibrations.of(
                direction, texts, functools.partial(_quality, direction[1], optional_metrics)
            )
            if has_several_targets
            else {},
        )
        scored.append(dataclasses.replace(scored_direction, result=direction_result))
        say(f"{number}/{len(directions)} {_progress_line(scored_direction.result)}")
    result = _run_result(model, benchmark, scored)
    if optional_metrics is not None:
        signatures = {**result.signatures, **optional_metrics.signatures}
        paper_averages = optional_metrics.paper(result.directions)
        result = dataclasses.replace(result, signatures=signatures, paper=paper_averages)
    write_statistics(folder, statistics)
    write_result(result, folder / SCORES_FILE)
    return result


def _quality(
    target: str,
    optional_metrics: OptionalMetrics | None,
    texts: TestSet,
    hypotheses: Sequence[str],
) -> dict[str, float]:
    """Return the scores of translations into a language by metric."""
    scores = corpus_scores(hypotheses, texts.references, target)
    standard = {"chrf": scores.chrf} | ({} if scores.bleu is None else {"bleu": scores.bleu})
    optional = optional_metrics.scores(texts, hypotheses, target) if optional_metrics else {}
    return {**standard, **optional}


def report(output: str | Path) -> None:
    """Write `table.md` and `report.html`, the third stage of `evaluate`.

    Args:
        output: output folder with the `scores.json` of `score`.

    Raises:
        UserError: if `scores.json` is missing or damaged.
    """
    folder = Path(output)
    result = read_result(folder)
    significance = SentenceSignificance.read([result], [folder])
    tables = {
        "Quality flags": quality_table([result]),
        "Means across languages": normalized_table([result], leading_metrics([result])),
    }
    page = result_page(result, significance, tables)
    write_text(folder / "table.md", page)
    write_report(folder / "report.html", [result], significance=significance)


def _has_language(direction: Direction, language: str) -> bool:
    """Return whether a direction has a language, in any form of its code."""
    return any(is_same_language(code, language) for code in direction)


def _prepare(
    model: EvaluatedModel,
    benchmark: Benchmark,
    output: str | Path,
    *,
    subset: str,
    overwrite: bool,
    optional_metrics: OptionalMetrics | None,
) -> tuple[tuple[Direction, ...], TranslationStore]:
    """Check the output folder; return the directions and the store of their translations."""
    check_folder(output)
    directions = choose_directions(
        benchmark.directions, subset, model.supervised, model.unknown_training
    )
    model.check_directions(directions)
    if model.supervised is None:
        say(model.unknown_training)
    folder = Path(output)
    provenance = model.provenance(directions)
    if not overwrite:
        targets = dict.fromkeys(target for _, target in directions)
        settings = optional_metrics.settings(targets) if optional_metrics else {}
        if benchmark.second_detector:
            settings["off_target_second"] = benchmark.second_detector.signature
        check_overwrite(
            folder,
            provenance,
            benchmark,
            system={"name": model.name, "step": model.step, "decoding": model.decoding},
            directions=directions,
            optional=settings,
            supervised=model.supervised,
        )
    store = TranslationStore(folder / TRANSLATIONS, provenance)
    if store.stale:
        say(f"{folder}: translations by another model or search are replaced")
    return directions, store


def _run_result(
    model: EvaluatedModel, benchmark: Benchmark, scored: Sequence[ScoredDirection]
) -> RunResult:
    """Combine the scored directions with the facts about the run."""
    results = tuple(item.result for item in scored)
    sampled = sampled_directions([item.direction for item in results], model.supervised)
    log = read_training_log(model.metrics_file, model.step)
    notes = _notes(results)
    if model.supervised is None:
        notes = (model.unknown_training, *notes)
    return RunResult(
        name=model.name,
        task=benchmark.task,
        note=benchmark.note,
        layout=model.config.model.layout if model.config else "",
        step=model.step,
        seconds=log.seconds,
        parameters=model.parameters,
        directions=results,
        signatures=_signatures(scored, benchmark) | _checksum(model, results),
        curves=log.curves,
        validation=log.validation,
        samples=tuple(
            sample for item in scored if item.result.direction in sampled for sample in item.samples
        ),
        config=as_facts(model.config) if model.config else {},
        decoding=dict(model.decoding),
        decoding_overrides=model.decoding_overrides,
        notes=notes,
        version=__version__,
        trained_languages=None
        if model.supervised is None
        else tuple(sorted({code for pair in model.supervised for code in pair})),
    )


def _checksum(model: EvaluatedModel, results: Sequence[DirectionResult]) -> dict[str, str]:
    """Return the checksum of the files of another system's translations, if it is one."""
    checksums = model.provenance([item.direction for item in results]).get(HYPOTHESES)
    return {HYPOTHESES: describe_checksum(checksums)} if checksums else {}


def _signatures(scored: Sequence[ScoredDirection], benchmark: Benchmark) -> dict[str, Any]:
    """Return the signature of each metric; BLEU has one per group of target languages."""
    targets: dict[str, dict[str, None]] = {}
    for item in scored:
        if item.scores.bleu_signature:
            targets.setdefault(item.scores.bleu_signature, {})[item.result.target] = None
    limit = f"at most the first {benchmark.limit:,} of each direction (--limit)"
    signatures: dict[str, Any] = {
        **({"sentences": limit} if benchmark.limit else {}),
        "bleu": {f"to {' '.join(codes)}": signature for signature, codes in targets.items()},
        "chrf": scored[0].scores.chrf_signature,
        "intervals": interval_signature(),
        "normalization": SIGNATURE,
        "exact_match": "equal up to white space and Unicode's canonical forms",
        "off_target_lid": benchmark.detector.signature,
    }
    if benchmark.second_detector:
        signatures["off_target_second"] = benchmark.second_detector.signature
    if benchmark.nearest:
        signatures["off_target_nearest"] = benchmark.nearest.signature
    return signatures


def _notes(results: Sequence[DirectionResult]) -> tuple[str, ...]:
    """Collect the distinct notes, each with the directions that it applies to."""
    directions_by_note: dict[str, list[str]] = {}
    for item in results:
        for note in item.notes:
            directions_by_note.setdefault(note, []).append("-".join(item.direction))
        if item.empty:
            name = f"{'-'.join(item.direction)}: {item.empty}"
            directions_by_note.setdefault("empty hypotheses", []).append(name)
    return tuple(
        f"{note} ({', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''})"
        for note, names in directions_by_note.items()
    )


def _progress_line(result: DirectionResult) -> str:
    """Sum up a direction in one line for the terminal."""
    key = "off_target_lid" if result.off_target_nearest is None else "off_target_nearest"
    return (
        f"{'-'.join(result.direction)}: BLEU {format_score(result.bleu)}, "
        f"chrF++ {format_score(result.chrf)}, exact {format_score(result.exact_match)}, "
        f"off-target {format_score(result.score(key))}"
    )
