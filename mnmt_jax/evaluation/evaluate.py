"""Evaluation pipeline of a run: translation and scoring of all directions, results and report."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.config.sections import Config
from mnmt_jax.design.method import as_facts
from mnmt_jax.distributed.work_shards import WorkShard
from mnmt_jax.errors import pluralize
from mnmt_jax.evaluation.benchmark import UNKNOWN_TRAINING, Benchmark, choose_directions
from mnmt_jax.evaluation.markdown_tables import format_score, is_result_page, result_page
from mnmt_jax.evaluation.optional_metrics import OptionalMetrics
from mnmt_jax.evaluation.overwrite_check import check_overwrite
from mnmt_jax.evaluation.report import is_report, write_report
from mnmt_jax.evaluation.result import DirectionResult, RunResult, is_result, write_result
from mnmt_jax.evaluation.scoring import (
    SAMPLES,
    ScoredDirection,
    sampled_directions,
    score_direction,
)
from mnmt_jax.evaluation.training_log import read_training_log
from mnmt_jax.evaluation.translations import (
    TranslatedSentence,
    TranslateFn,
    TranslationStore,
    check_translations,
)
from mnmt_jax.files.atomic_write import check_replaced, check_writable, write_text
from mnmt_jax.files.bucket import refuse_bucket
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.languages import Direction
from mnmt_jax.vocabulary.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class EvaluatedModel:
    """A model under evaluation: its translation function and the known facts about it.

    Attributes:
        name: name in results and reports.
        translate: function that translates the sentences of one direction.
        config: configuration of the run.
        decoding: decoding settings: checkpoint and search.
        identity: what the translations depend on besides model, search and sources: parameters,
            vocabulary, instruction.
        step: number of updates of the parameters; None if unknown.
        parameters: number of parameters; None if unknown.
        supervised: directions that the model was trained on; None if unknown.
        metrics_file: `metrics.jsonl` of the training run; None if there is none.
        vocabulary: vocabulary of the model; None if unknown.
        decoding_overrides: decoding settings that flags changed from the run's values; None if
            unknown.
    """

    name: str
    translate: TranslateFn
    config: Config
    decoding: Mapping[str, Any]
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    step: int | None = None
    parameters: int | None = None
    supervised: frozenset[Direction] | None = None
    metrics_file: Path | None = None
    vocabulary: Vocabulary | None = None
    decoding_overrides: Mapping[str, Any] | None = None


def load_evaluated_model(
    run: str | Path,
    step: int | str | None = None,
    *,
    gin_files: Sequence[str] = (),
    bindings: Sequence[str] = (),
    beam_size: int | None = None,
    pivot: str | None = None,
) -> tuple[EvaluatedModel, tuple[str, ...]]:
    """Open a run directory for evaluation.

    Args:
        run: the run directory; nothing else is needed.
        step: step of a checkpoint, "best", "average", or None for the newest.
        gin_files: gin files read after the run's configuration. `Data.instruction` sets the layout
            of the language tags in decoding, e.g. 'none' omits the tags of training.
        bindings: `Section.field=value`, read last.
        beam_size: beam size, as in `Translator.translate`.
        pivot: pivot language, as in `Translator.translate`.

    Returns:
        The model to evaluate, and its languages.

    Raises:
        UserError: if the folder is not a run or does not have the checkpoint, or if the model does
            not have the pivot language.
    """
    from mnmt_jax.decoding.generate import describe_search
    from mnmt_jax.decoding.translation_job import TranslationJob
    from mnmt_jax.decoding.translator import Translator

    run_dir = RunDirectory.open(run)
    translator = Translator.load(run_dir, step, gin_files=gin_files, bindings=bindings)
    job = TranslationJob.create(translator, pivot=pivot, beam_size=beam_size)
    config = dataclasses.replace(run_dir.config(gin_files, bindings), decode=job.decode)
    pivot = job.pivot

    def translate(lines: Sequence[str], direction: Direction) -> list[TranslatedSentence]:
        source, target = direction
        translations = translator.translate_nbest(
            lines, source=source, target=target, beam_size=beam_size, pivot=pivot
        )
        return [
            TranslatedSentence(item.text, item.truncated, item.pivot, item.unknown_characters)
            for item in translations
        ]

    checkpoint_prefix = f"{step}, " if isinstance(step, str) else ""
    trained_config = run_dir.config()
    extra_settings = {} if pivot is None else {"pivot": pivot}  # settings outside `Decode`
    if config.data.instruction != trained_config.data.instruction:
        extra_settings["instruction"] = config.data.instruction
    run_settings = dataclasses.asdict(trained_config.decode)
    settings = dataclasses.asdict(config.decode)
    overrides = {name: value for name, value in settings.items() if run_settings[name] != value}
    evaluated_model = EvaluatedModel(
        name=(run_dir.place if run_dir.mirror else run_dir.path.resolve()).name,
        translate=translate,
        config=config,
        decoding={
            "checkpoint": f"{checkpoint_prefix}step {translator.step}",
            **describe_search(config.decode),
            **extra_settings,
        },
        identity=translator.identity,
        step=translator.step,
        parameters=translator.parameters,
        supervised=run_dir.trained_directions(),
        metrics_file=run_dir.metrics_file,
        vocabulary=translator.vocabulary,
        decoding_overrides={**overrides, **extra_settings},
    )
    return evaluated_model, translator.languages


def check_folder(output: str | Path) -> None:
    """Check that an evaluation may write to a folder and replaces only files of an evaluation.

    Raises:
        UserError: if a file to replace is not of an evaluation, or if the folder is in a bucket or
            is not writable.
    """
    refuse_bucket(output)
    folder = Path(output)
    check_writable(folder)
    check_replaced(folder / "scores.json", is_result)
    check_replaced(folder / "table.md", is_result_page)
    check_replaced(folder / "report.html", is_report)
    check_translations(folder / "translations")


def evaluate(
    subject: EvaluatedModel,
    benchmark: Benchmark,
    output: str | Path,
    *,
    which: str = "all",
    further: OptionalMetrics | None = None,
    overwrite: bool = False,
) -> RunResult:
    """Translate and score all directions and write the results to a folder.

    Args:
        subject: the model.
        benchmark: the test sentences.
        output: folder for `scores.json`, `table.md`, `report.html` and `translations/`. Existing
            translations by the same parameters and search are reused.
        which: "all", "supervised" or "zero_shot" directions.
        further: optional metrics; None computes the standard ones only.
        overwrite: replace an evaluation with other settings or with more results.

    Raises:
        UserError: if there is nothing to evaluate, if the folder is not writable or has files of
            these names that are not of an evaluation, or if it holds an evaluation that only
            `overwrite` may replace.
    """
    settings = further.settings if further else {}
    directions, store = _prepare(
        subject, benchmark, output, which=which, overwrite=overwrite, optional=settings
    )
    pivot = subject.decoding.get("pivot")
    if direct_count := sum(pivot in direction for direction in directions):
        _log(f"{pluralize(direct_count, 'direction')} from or into {pivot}: translated directly")
    folder, scored = Path(output), []
    for number, direction in enumerate(directions, start=1):
        texts = benchmark.texts(direction)
        outputs = store.outputs(direction, texts, subject.translate)
        scored_direction = score_direction(
            direction,
            texts,
            outputs=outputs,
            benchmark=benchmark,
            supervised=subject.supervised,
            first_sample=SAMPLES * (number - 1),
        )
        if further is not None:
            hypotheses = [output.text for output in outputs]
            extended_result = further.add(scored_direction.result, texts, hypotheses)
            scored_direction = dataclasses.replace(scored_direction, result=extended_result)
        scored.append(scored_direction)
        _log(f"{number}/{len(directions)} {_progress_line(scored[-1].result)}")
    if store.reused:
        _log(f"{len(store.reused)} of {len(directions)} directions had been translated before")
    result = _run_result(subject, benchmark, scored)
    for note in _notes(result.directions):
        _log(f"note: {note}")
    if further is not None:
        signatures = {**result.signatures, **further.signatures}
        paper_averages = further.paper(result.directions)
        result = dataclasses.replace(result, signatures=signatures, paper=paper_averages)
    write_result(result, folder / "scores.json")
    write_text(folder / "table.md", result_page(result))
    write_report(folder / "report.html", [result])
    return result


def translate_work_shard(
    subject: EvaluatedModel,
    benchmark: Benchmark,
    output: str | Path,
    share: WorkShard,
    *,
    which: str = "all",
    further: OptionalMetrics | None = None,
    overwrite: bool = False,
) -> bool:
    """Translate the directions assigned to one of several processes.

    Args:
        subject: the model, as in `evaluate`.
        benchmark: the test sentences.
        output: output folder, shared by all processes.
        share: the work shard of this process.
        which: the directions of all processes.
        further: the optional metrics that the last process computes.
        overwrite: as in `evaluate`.

    Returns:
        Whether the directions of all processes are translated. `evaluate` then has only to score
        them.

    Raises:
        UserError: as in `evaluate`.
    """
    settings = further.settings if further else {}
    directions, store = _prepare(
        subject, benchmark, output, which=which, overwrite=overwrite, optional=settings
    )
    texts = {direction: benchmark.texts(direction) for direction in directions}
    assigned = [direction for number, direction in enumerate(directions) if share.holds(number)]
    for number, direction in enumerate(assigned, start=1):
        store.outputs(direction, texts[direction], subject.translate)
        _log(f"{number}/{len(assigned)} {'-'.join(direction)} translated")
    missing = store.missing(texts)
    if missing:
        progress = f"process {share.process} of {share.processes} has done its directions"
        _log(f"{progress}, {len(missing)} are left to others; the last one to end scores all")
    return not missing


def _prepare(
    subject: EvaluatedModel,
    benchmark: Benchmark,
    output: str | Path,
    *,
    which: str,
    overwrite: bool,
    optional: Mapping[str, str],
) -> tuple[tuple[Direction, ...], TranslationStore]:
    """Check the output folder; return the directions and the store of their translations."""
    check_folder(output)
    directions = choose_directions(benchmark.directions, which, subject.supervised)
    if subject.supervised is None:
        _log(UNKNOWN_TRAINING)
    folder = Path(output)
    model = as_facts(subject.config.model)
    made_by = {"name": subject.name, "model": model, **subject.identity, **subject.decoding}
    if not overwrite:
        check_overwrite(folder, made_by, benchmark, directions=directions, optional=optional)
    store = TranslationStore(folder / "translations", made_by)
    if store.stale:
        _log(f"{folder}: translations by another model or search are replaced")
    return directions, store


def _run_result(
    subject: EvaluatedModel, benchmark: Benchmark, scored: Sequence[ScoredDirection]
) -> RunResult:
    """Combine the scored directions with the facts about the run."""
    results = tuple(item.result for item in scored)
    sampled = sampled_directions([item.direction for item in results], subject.supervised)
    log = read_training_log(subject.metrics_file, subject.step)
    notes = _notes(results)
    if subject.supervised is None:
        notes = (UNKNOWN_TRAINING, *notes)
    return RunResult(
        name=subject.name,
        task=benchmark.task,
        layout=subject.config.model.layout,
        step=subject.step,
        seconds=log.seconds,
        parameters=subject.parameters,
        directions=results,
        signatures=_signatures(scored, benchmark),
        curves=log.curves,
        samples=tuple(
            sample for item in scored if item.result.direction in sampled for sample in item.samples
        ),
        config=as_facts(subject.config),
        decoding=dict(subject.decoding),
        decoding_overrides=subject.decoding_overrides,
        notes=notes,
    )


def _signatures(scored: Sequence[ScoredDirection], benchmark: Benchmark) -> dict[str, Any]:
    """Return the signature of each metric; BLEU has one per group of target languages."""
    targets: dict[str, dict[str, None]] = {}
    for item in scored:
        if item.scores.bleu_signature:
            targets.setdefault(item.scores.bleu_signature, {})[item.result.target] = None
    signatures: dict[str, Any] = {
        "bleu": {f"to {' '.join(codes)}": signature for signature, codes in targets.items()},
        "chrf": scored[0].scores.chrf_signature,
        "exact_match": "equal up to white space and Unicode's canonical forms",
        "off_target_lid": benchmark.detector.signature,
    }
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
            directions_by_note.setdefault("empty hypotheses", []).append("-".join(item.direction))
    return tuple(
        f"{note} ({', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''})"
        for note, names in directions_by_note.items()
    )


def _progress_line(result: DirectionResult) -> str:
    """Sum up a direction in one line for the terminal."""
    nearest = result.off_target_nearest
    off_target = result.off_target_lid if nearest is None else nearest
    return (
        f"{'-'.join(result.direction)}: BLEU {format_score(result.bleu)}, "
        f"chrF++ {format_score(result.chrf)}, exact {format_score(result.exact_match)}, "
        f"off-target {format_score(off_target)}"
    )


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
