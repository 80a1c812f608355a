"""Evaluation of a run: every direction translated and scored, results and report written."""

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
    """What is evaluated: a way to translate, and what is known about it.

    Attributes:
        name: to call it by.
        translate: makes the translations.
        config: of its run.
        decoding: how it translates: checkpoint and search.
        identity: what its translations depend on besides model, search and sources: parameters,
            vocabulary, instruction.
        step: updates its parameters have seen; None if unknown.
        parameters: their number; None if unknown.
        supervised: directions it was trained on; None if unknown.
        metrics_file: `metrics.jsonl` of its training; None if there is none.
        vocabulary: of its model; None if unknown.
        decoding_overrides: settings of decoding that flags changed from the run's own; None if
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
    """Opens a run directory for evaluation.

    Args:
        run: the directory; nothing else is needed.
        step: a checkpoint's step, "best", "average", or None for the newest.
        gin_files: read after the run's configuration; `Data.instruction` is how tags are laid out
            in decoding, e.g. 'none' omits those that the model was trained with.
        bindings: `Section.field=value`, read last.
        beam_size: hypotheses searched, as in `Translator.translate`.
        pivot: language to translate through, as there.

    Returns:
        The subject, and the languages its model knows.

    Raises:
        UserError: if the folder is not a run or has no such checkpoint, or the model does not have
            the pivot.
    """
    from mnmt_jax.decoding.generate import describe_search
    from mnmt_jax.decoding.translation_job import TranslationJob
    from mnmt_jax.decoding.translator import Translator

    folder = RunDirectory.open(run)
    translator = Translator.load(folder, step, gin_files=gin_files, bindings=bindings)
    job = TranslationJob.create(translator, pivot=pivot, beam_size=beam_size)
    config = dataclasses.replace(folder.config(gin_files, bindings), decode=job.decode)
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

    chosen = f"{step}, " if isinstance(step, str) else ""
    trained = folder.config()
    beside = {} if pivot is None else {"pivot": pivot}  # settings that are not of `Decode`
    if config.data.instruction != trained.data.instruction:
        beside["instruction"] = config.data.instruction
    usual = dataclasses.asdict(trained.decode)
    settings = dataclasses.asdict(config.decode)
    changed = {name: value for name, value in settings.items() if usual[name] != value}
    subject = EvaluatedModel(
        name=(folder.place if folder.mirror else folder.path.resolve()).name,
        translate=translate,
        config=config,
        decoding={
            "checkpoint": f"{chosen}step {translator.step}",
            **describe_search(config.decode),
            **beside,
        },
        identity=translator.identity,
        step=translator.step,
        parameters=translator.parameters,
        supervised=folder.trained_directions(),
        metrics_file=folder.metrics_file,
        vocabulary=translator.vocabulary,
        decoding_overrides={**changed, **beside},
    )
    return subject, translator.languages


def check_folder(output: str | Path) -> None:
    """Checks that an evaluation may write to a folder: what it would replace is an evaluation's.

    Raises:
        UserError: if a file there is somebody else's, or the folder is in a bucket or cannot be
            written.
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
    """Translates and scores every direction and writes everything to a folder.

    Args:
        subject: what is evaluated.
        benchmark: the sentences.
        output: folder for `scores.json`, `table.md`, `report.html` and `translations/`; what was
            translated there before, by the same parameters and search, is not translated again.
        which: "all", "supervised" or "zero_shot" directions.
        further: computes scores beyond the standard ones; None computes none.
        overwrite: replace an evaluation of other settings, or one with more results.

    Raises:
        UserError: if there is nothing to evaluate, or the folder cannot be written or holds files
            of others by these names, or such an evaluation.
    """
    settings = further.settings if further else {}
    directions, store = _begin(
        subject, benchmark, output, which=which, overwrite=overwrite, optional=settings
    )
    pivot = subject.decoding.get("pivot")
    if direct := sum(pivot in direction for direction in directions):
        _say(f"{pluralize(direct, 'direction')} from or into {pivot}: translated directly")
    folder, scored = Path(output), []
    for number, direction in enumerate(directions, start=1):
        texts = benchmark.texts(direction)
        outputs = store.outputs(direction, texts, subject.translate)
        item = score_direction(
            direction,
            texts,
            outputs=outputs,
            benchmark=benchmark,
            supervised=subject.supervised,
            first_sample=SAMPLES * (number - 1),
        )
        if further is not None:
            hypotheses = [output.text for output in outputs]
            added = further.add(item.result, texts, hypotheses)
            item = dataclasses.replace(item, result=added)
        scored.append(item)
        _say(f"{number}/{len(directions)} {_line(scored[-1].result)}")
    if store.reused:
        _say(f"{len(store.reused)} of {len(directions)} directions had been translated before")
    result = _run_result(subject, benchmark, scored)
    for note in _notes(result.directions):
        _say(f"note: {note}")
    if further is not None:
        signatures = {**result.signatures, **further.signatures}
        paper = further.paper(result.directions)
        result = dataclasses.replace(result, signatures=signatures, paper=paper)
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
    """Translates the directions of one of several processes, as `evaluate` would.

    Args:
        subject: as in `evaluate`, as are the others.
        benchmark: the sentences.
        output: the folder, which all processes see.
        share: which directions are this process's.
        which: the directions of all processes.
        further: the optional scores that the last process will compute.
        overwrite: as in `evaluate`.

    Returns:
        Whether those of the others are done, too: `evaluate` translates nothing then.

    Raises:
        UserError: as `evaluate`.
    """
    settings = further.settings if further else {}
    directions, store = _begin(
        subject, benchmark, output, which=which, overwrite=overwrite, optional=settings
    )
    texts = {direction: benchmark.texts(direction) for direction in directions}
    own = [each for number, each in enumerate(directions) if share.holds(number)]
    for number, direction in enumerate(own, start=1):
        store.outputs(direction, texts[direction], subject.translate)
        _say(f"{number}/{len(own)} {'-'.join(direction)} translated")
    left = store.missing(texts)
    if left:
        done = f"process {share.process} of {share.processes} has done its directions"
        _say(f"{done}, {len(left)} are left to others; the last one to end scores all")
    return not left


def _begin(
    subject: EvaluatedModel,
    benchmark: Benchmark,
    output: str | Path,
    *,
    which: str,
    overwrite: bool,
    optional: Mapping[str, str],
) -> tuple[tuple[Direction, ...], TranslationStore]:
    """Returns the directions, and their translations in the folder; see `evaluate`."""
    check_folder(output)
    directions = choose_directions(benchmark.directions, which, subject.supervised)
    if subject.supervised is None:
        _say(UNKNOWN_TRAINING)
    folder = Path(output)
    model = as_facts(subject.config.model)
    made_by = {"name": subject.name, "model": model, **subject.identity, **subject.decoding}
    if not overwrite:
        check_overwrite(folder, made_by, benchmark, directions=directions, optional=optional)
    store = TranslationStore(folder / "translations", made_by)
    if store.stale:
        _say(f"{folder}: translations by another model or search are replaced")
    return directions, store


def _run_result(
    subject: EvaluatedModel, benchmark: Benchmark, scored: Sequence[ScoredDirection]
) -> RunResult:
    """Puts the directions together with what is known of the run."""
    results = tuple(item.result for item in scored)
    shown = sampled_directions([item.direction for item in results], subject.supervised)
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
            sample for item in scored if item.result.direction in shown for sample in item.samples
        ),
        config=as_facts(subject.config),
        decoding=dict(subject.decoding),
        decoding_overrides=subject.decoding_overrides,
        notes=notes,
    )


def _signatures(scored: Sequence[ScoredDirection], benchmark: Benchmark) -> dict[str, Any]:
    """Says how each metric was computed; for BLEU per group of target languages."""
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
    """Collects what was left out, each reason once with the directions it holds for."""
    where: dict[str, list[str]] = {}
    for item in results:
        for note in item.notes:
            where.setdefault(note, []).append("-".join(item.direction))
        if item.empty:
            where.setdefault("empty hypotheses", []).append("-".join(item.direction))
    return tuple(
        f"{note} ({', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''})"
        for note, names in where.items()
    )


def _line(result: DirectionResult) -> str:
    """Sums up a direction for the terminal."""
    nearest = result.off_target_nearest
    off_target = result.off_target_lid if nearest is None else nearest
    return (
        f"{'-'.join(result.direction)}: BLEU {format_score(result.bleu)}, "
        f"chrF++ {format_score(result.chrf)}, exact {format_score(result.exact_match)}, "
        f"off-target {format_score(off_target)}"
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
