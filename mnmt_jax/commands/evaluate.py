"""Translate and score all directions of a task; write scores.json, table.md and report.html.

`--hypotheses` scores translations by another system instead, from files.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands.benchmark_corpus import benchmark_corpus
from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_beam_size,
    add_gin_flags,
    add_note,
    add_pivot,
    add_step,
    amount,
    import_modules,
    parse_command_line,
)
from mnmt_jax.commands.context_flags import add_document_ids, add_trained_context
from mnmt_jax.commands.corpus_flags import add_user_file_flags, refuse_flags
from mnmt_jax.commands.direction_flags import (
    FORMS,
    benchmark_codes,
    read_directions,
    restrict,
    to_corpus_codes,
)
from mnmt_jax.commands.metrics import add_metrics_environment
from mnmt_jax.distributed.work_shards import add_work_shard_flags, work_shard_of
from mnmt_jax.errors import UserError, say, warn
from mnmt_jax.evaluation.neural_metrics import COMET_MODELS, ENGLISH_MODELS, METRICX_MODEL
from mnmt_jax.vocabulary.detector_names import LID176

if TYPE_CHECKING:
    from mnmt_jax.evaluation.benchmark import Benchmark
    from mnmt_jax.evaluation.evaluated_model import EvaluatedModel
    from mnmt_jax.evaluation.result import RunResult
    from mnmt_jax.vocabulary.language_codes import Direction
    from mnmt_jax.vocabulary.language_detectors import LanguageDetector


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__)
    system = parser.add_mutually_exclusive_group(required=True)
    system.add_argument("--run", metavar="RUN", help="directory of a trained or imported model")
    system.add_argument(
        "--hypotheses",
        metavar="FOLDER",
        help="instead of a run: folder with the translations of another system, a file such as "
        "de-fr.txt or de-fr.jsonl per direction with a line per test sentence",
    )
    parser.add_argument(
        "--name", help="name of the system of --hypotheses; default: that of its folder"
    )
    parser.add_argument(
        "--task",
        required=True,
        help="corpus or mixture whose test split is translated, e.g. cldr_quickstart; with files "
        "of your own, a name for them",
    )
    parser.add_argument(
        "--directions",
        default="all",
        metavar="WHICH",
        help=f"all, supervised (trained on), zero_shot, or {FORMS}; default: %(default)s",
    )
    parser.add_argument(
        "--trained_on",
        metavar="DIRECTIONS",
        help="directions that an imported model was trained on, which are then labelled "
        f"supervised: {FORMS}",
    )
    parser.add_argument(
        "--output", required=True, help="folder to write to; an interrupted command resumes there"
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace an evaluation with other settings (model, search, task, sentences) or with "
        "more directions or scores",
    )
    parser.add_argument(
        "--limit", type=amount, default=0, help="sentences per direction; default: %(default)s, all"
    )
    add_beam_size(parser)
    add_trained_context(parser)
    add_document_ids(parser)
    add_pivot(parser)
    parser.add_argument(
        "--pivot_prompt",
        action="store_true",
        default=None,
        help="translate from the pivot with the source before it, for models trained with "
        "'mnmt cache --auxiliary'",
    )
    add_step(parser)
    add_note(parser)
    _add_score_flags(parser)
    add_user_file_flags(parser)
    add_work_shard_flags(parser, "directions")
    add_gin_flags(parser)
    return parser


def _add_score_flags(parser: CommandParser) -> None:
    """Add the flags of scores beyond the standard ones."""
    scores = parser.add_argument_group("optional scores")
    scores.add_argument(
        "--paper_compatible",
        nargs="?",
        const="auto",
        default="",
        metavar="NAME",
        help="also compute the scores of the papers' scripts (such as hypotheses and references "
        "swapped), labelled: mitre, ec40, ted19, ted30, opus100 or iwslt17; without a name, by the "
        "model's languages",
    )
    scores.add_argument(
        "--flores200_model",
        metavar="FILE",
        help="SentencePiece model of spBLEU; default: sacreBLEU's cached copy, which 'sacrebleu "
        "-tok flores200' downloads",
    )
    scores.add_argument(
        "--lid",
        default=LID176,
        metavar="NAME|FILE",
        help="language detector of the off-target ratio: lid.176 (bundled, compressed), langdetect "
        "(seed 0; needs the extra paper-metrics) or the path of fastText's lid.176.bin, GlotLID or "
        f"OpenLID; default: {LID176}",
    )
    scores.add_argument(
        "--lid_model",
        metavar="NAME|FILE",
        help="second detector as --lid, for another off-target ratio in the quality flags",
    )
    for name, model in COMET_MODELS.items():
        scores.add_argument(f"--{name}", metavar="FILE", help=f"checkpoint of {model} or the like")
    scores.add_argument(
        "--metricx", metavar="FOLDER", help=f"folder of {METRICX_MODEL} with its tokenizer"
    )
    scores.add_argument(
        "--bert_score",
        metavar="FOLDER",
        help="folder of BERTScore's models, e.g. FOLDER/roberta-large",
    )
    scores.add_argument(
        "--bert_score_english",
        choices=ENGLISH_MODELS,
        help="model of --bert_score for English: that of the published scripts (default), or that "
        "of the two-stage paper's text",
    )
    add_metrics_environment(scores)


def main() -> None:
    """Run the command."""
    flags, gin_files, bindings = parse_command_line(make_parser())
    if flags.bert_score_english and not flags.bert_score:
        raise UserError("--bert_score_english needs --bert_score, the folder of its models")
    if flags.document_ids and flags.context is None:
        raise UserError("--document_ids needs --context, which translates with context")
    import_modules(flags.module_import)
    from mnmt_jax.commands.model_benchmark import model_benchmark
    from mnmt_jax.evaluation.evaluate import check_folder, evaluate, translate
    from mnmt_jax.evaluation.evaluated_model import with_documents
    from mnmt_jax.evaluation.metrics_environment import use_environment
    from mnmt_jax.evaluation.optional_metrics import MetricSelection, OptionalMetrics
    from mnmt_jax.vocabulary.language_detectors import find_detector

    if flags.metrics_environment:
        use_environment(flags.metrics_environment)  # also that of Decode.utility
    work_shard = work_shard_of(flags)
    check_folder(flags.output)
    detector = find_detector(flags.lid)
    corpus, available = benchmark_corpus(flags)
    subject, languages = _open_system(flags, gin_files, bindings, available)
    benchmark = model_benchmark(
        flags,
        corpus,
        available,
        languages,
        limit=flags.limit,
        detector=detector,
        second_detector=_second_detector(flags.lid_model, detector),
        note=flags.note,
    )
    subject = _with_training(subject, flags.trained_on, languages, benchmark_codes(benchmark))
    benchmark, which = _listed(benchmark, flags.directions)
    if flags.context is not None:
        subject = with_documents(subject, benchmark)
    unknown = {pair[1] for pair in benchmark.directions if detector.expected(pair[1]) is None}
    if unknown and benchmark.nearest is None:
        codes = " ".join(sorted(unknown))
        warn(f"no off-target ratio, since {detector.name} has no reliable label for: {codes}")
    optional_metrics = OptionalMetrics(
        MetricSelection(
            spbleu=benchmark.nearest is None or flags.flores200_model is not None,
            flores200_model=flags.flores200_model,
            comet={name: path for name in COMET_MODELS if (path := getattr(flags, name))},
            metricx=flags.metricx,
            bert_score=flags.bert_score,
            bert_score_english=flags.bert_score_english or ENGLISH_MODELS[0],
            metrics_environment=flags.metrics_environment,
            paper=flags.paper_compatible,
        ),
        subject.vocabulary,
        languages,
    )
    options: dict[str, Any] = {"subset": which, "overwrite": flags.overwrite}
    options["optional_metrics"] = optional_metrics
    if work_shard.processes > 1:
        translated = translate(subject, benchmark, flags.output, work_shard=work_shard, **options)
        if translated.missing:
            return
    result = evaluate(subject, benchmark, flags.output, **options)
    _print_scores(result, Path(flags.output))


def _print_scores(result: RunResult, output: Path) -> None:
    """Print the tables of an evaluation, and on standard error what they leave out."""
    from mnmt_jax.evaluation.language_normalization import normalized_table
    from mnmt_jax.evaluation.result_tables import comparison_table, leading_metrics, paper_lines
    from mnmt_jax.evaluation.significance import SentenceSignificance

    significance = SentenceSignificance.read([result], [output])
    print(comparison_table([result], significance=significance))
    if lines := paper_lines(result):
        print("", *lines[:-1], sep="\n")
    if normalized_table([result], leading_metrics([result])):
        say("means over several target languages are raw; the report has normalized ones beside")
    print(f"Report: {output / 'report.html'}", file=sys.stderr)


def _second_detector(name: str | None, first: LanguageDetector) -> LanguageDetector | None:
    """Return the detector of `--lid_model`, None without one.

    Raises:
        UserError: if it is the first one, which would agree with itself.
    """
    from mnmt_jax.vocabulary.language_detectors import find_detector, is_same_detector

    if not name:
        return None
    detector = find_detector(name, "--lid_model=")
    if is_same_detector(detector.signature, first.signature):
        raise UserError(f"--lid_model={name}: {first.name} is the first detector; name another")
    return detector


def _open_system(
    flags: argparse.Namespace,
    gin_files: Sequence[str],
    bindings: Sequence[str],
    available: tuple[str, ...],
) -> tuple[EvaluatedModel, tuple[str, ...]]:
    """Return the run or the outside system to evaluate, and its languages.

    Raises:
        UserError: if the run cannot be loaded, or a flag does not apply to hypotheses from files.
    """
    if flags.hypotheses is None:
        from mnmt_jax.evaluation.evaluated_model import load_evaluated_model

        refuse_flags(flags, ["name"], "a run")
        if flags.pivot_prompt and not flags.pivot:
            raise UserError("--pivot_prompt is for translations through a pivot; add --pivot")
        return load_evaluated_model(
            flags.run,
            flags.step,
            gin_files=gin_files,
            bindings=bindings,
            beam_size=flags.beam_size,
            pivot=flags.pivot,
            pivot_prompt=bool(flags.pivot_prompt),
            context=flags.context,
        )
    from mnmt_jax.evaluation.outside_hypotheses import HypothesisFiles, outside_system

    context = "--hypotheses, whose files are translations"
    refuse_flags(flags, ["step", "beam_size", "pivot", "pivot_prompt", "context"], context)
    if gin_files or bindings:
        raise UserError(f"gin files and bindings do not apply to {context}; leave them out")
    if flags.name is not None and not flags.name.strip():
        raise UserError("--name= is empty; name the system, or leave the flag out")
    files = HypothesisFiles(Path(flags.hypotheses), flags.limit)
    return outside_system(files, flags.name or ""), available


def _with_training(
    subject: EvaluatedModel,
    trained_on: str | None,
    languages: Sequence[str],
    available: Sequence[str],
) -> EvaluatedModel:
    """Return a model with its training directions, or those of `--trained_on`, in corpus codes.

    Args:
        subject: the model.
        trained_on: value of `--trained_on`.
        languages: codes of the model.
        available: codes of the corpus.

    Raises:
        UserError: if the run records its training directions, and the flag names others.
    """
    if trained_on is not None and subject.supervised is not None:
        raise UserError(
            f"--trained_on: {subject.name} records its training directions; leave the flag out"
        )
    directions: Collection[Direction] | None = subject.supervised
    if trained_on is not None:
        directions = read_directions("--trained_on", trained_on, languages)
    if directions is None:
        return subject
    trained = frozenset(to_corpus_codes(directions, available, languages))
    return dataclasses.replace(subject, supervised=trained)


def _listed(benchmark: Benchmark, subset: str) -> tuple[Benchmark, str]:
    """Return the benchmark restricted to listed directions, and the selection to evaluate.

    Args:
        benchmark: benchmark with all directions of the task.
        subset: value of `--directions`.

    Raises:
        UserError: if the task lacks a listed direction.
    """
    from mnmt_jax.evaluation.benchmark import SUBSETS

    if subset in SUBSETS:
        return benchmark, subset
    return restrict(benchmark, subset, f"; or write {', '.join(SUBSETS)}"), "all"
