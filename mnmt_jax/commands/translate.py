"""Translate lines of text with a trained model, one output line per input line.

With --runner=beam the lines are translated by the workers of Apache Beam, with the same result.
Arguments after `--` go to Beam.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from mnmt_jax.commands.common_flags import (
    add_beam_size,
    add_gin_flags,
    add_pivot,
    add_retry,
    add_step,
    check_retry,
    import_modules,
    parse_command_line,
)
from mnmt_jax.commands.context_flags import add_trained_context
from mnmt_jax.commands.document_translation import translate_document_file
from mnmt_jax.commands.line_events import LineEvents, report_events
from mnmt_jax.commands.pass_through import (
    PassThroughParser,
    add_beam_runner,
    make_beam_runner,
)
from mnmt_jax.commands.text_files import (
    BadLines,
    check_input_file,
    check_output_file,
    format_record,
    is_stream,
    make_record,
    open_output,
    read_lines,
    read_record,
)
from mnmt_jax.distributed.work_shards import add_work_shard_flags, work_shard_of
from mnmt_jax.errors import UserError, docs_page, pluralize
from mnmt_jax.runtime.first_results import note_first_results
from mnmt_jax.vocabulary.language_codes import match_code

if TYPE_CHECKING:
    from mnmt_jax.commands.beam_translation import BeamOutput
    from mnmt_jax.commands.resumable_output import ResumableOutput
    from mnmt_jax.data.preparation.runners import BeamRunner
    from mnmt_jax.decoding.encoded_lines import Line
    from mnmt_jax.decoding.translation_job import TranslationJob
    from mnmt_jax.decoding.translator import Translator

    Writer = Callable[[Iterable[Mapping[str, Any]], IO[str]], LineEvents]


def make_parser() -> PassThroughParser:
    """Make the parser of the command line."""
    parser = PassThroughParser(description=__doc__)
    nbest = "use --beam_size N --format=jsonl for the N best translations"
    parser.flag_hints = dict.fromkeys(("--nbest", "--n_best", "--n-best"), nbest)
    parser.add_argument(
        "--run", required=True, metavar="RUN", help="run directory of a trained or imported model"
    )
    parser.add_argument("--source", required=True, metavar="CODE", help="source language")
    parser.add_argument("--target", required=True, metavar="CODE", help="target language")
    _add_file_flags(parser)
    _add_text_flags(parser)
    add_beam_size(parser)
    add_trained_context(parser)
    add_pivot(parser)
    add_retry(parser)
    _add_result_flags(parser)
    add_step(parser)
    add_work_shard_flags(parser, "lines")
    add_gin_flags(parser)
    add_beam_runner(parser, "--output")
    return parser


def _add_file_flags(parser: argparse.ArgumentParser) -> None:
    """Add flags for lines or a document, and for where translations go."""
    parser.add_argument(
        "--input",
        metavar="FILE",
        help="text file, UTF-8 or UTF-16 with a byte order mark, or gzip of one; default: standard "
        "input",
    )
    parser.add_argument(
        "--document",
        metavar="FILE",
        help="translate a document into --output instead of lines; its layout is kept. Formats: "
        "txt, md, html, docx, odt, srt, po, xliff, tmx",
    )
    parser.add_argument(
        "--overwrite_translations",
        action="store_true",
        help="also translate the texts of a .po, .xliff or .tmx --document that have a translation",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="output file, gzip if it ends in .gz, written when complete; an interrupted command "
        "resumes from FILE.unfinished; default: standard output",
    )
    parser.add_argument(
        "--on_bad_line",
        choices=("error", "drop"),
        default="error",
        help="on an undecodable line or one longer than 1 MiB: stop, or treat it as blank and "
        "count it; default: %(default)s",
    )


def _add_text_flags(parser: argparse.ArgumentParser) -> None:
    """Add flags for sentences, tags and terms in lines."""
    parser.add_argument(
        "--split_sentences",
        action="store_true",
        help="translate each sentence of a line by itself, and keep what is between them; lines "
        "longer than the largest bucket are split instead of being cut",
    )
    parser.add_argument(
        "--markup",
        choices=("html", "xml"),
        help="with --split_sentences: lines have tags, which are placed in their translations by "
        "word alignment; default: plain text",
    )
    parser.add_argument(
        "--glossary",
        metavar="FILE",
        help="terms and their translations: SOURCE<TAB>TARGET, with alternatives after | and "
        f"forbidden targets after !; {docs_page('guide.md')}",
    )


def _add_result_flags(parser: argparse.ArgumentParser) -> None:
    """Add flags for what is written of each translation."""
    parser.add_argument(
        "--checks",
        action="store_true",
        help="add the object checks to each line of --format=jsonl: language (detected), "
        "probability, off_target, copied, repeated, empty, cut, unknown_characters, "
        "missing_numbers, score, retried",
    )
    parser.add_argument(
        "--format",
        choices=("text", "jsonl"),
        default="text",
        help="text: the translations; jsonl: one JSON object per line with line (number, from 1), "
        "source, translation, score, truncated (source too long, its end is not translated), "
        "limited (output has Decode.max_length pieces), nbest (text and score of each hypothesis, "
        "at most as many as the beam), and where they apply others (contrast sources), pivot (text "
        "in the pivot language), unknown_characters, retried (contrast or pivot, of "
        "--retry_off_target), without_context (of --context), missing_terms and forbidden_terms "
        "(of the glossary); default: %(default)s",
    )


def main() -> None:
    """Run the command."""
    parser = make_parser()
    flags, gin_files, bindings = parse_command_line(parser)
    if flags.document:
        translate_document_file(parser, flags, gin_files, bindings)
        return
    if flags.overwrite_translations:
        raise UserError("--overwrite_translations is for --document; leave it out for lines")
    work_shard = work_shard_of(flags)
    runner = make_beam_runner(flags, ("num_processes", "process_id"))
    _check_sharing(flags, work_shard.processes)
    _check_checks(flags)
    if flags.split_sentences and flags.context is not None:
        raise UserError("--context translates lines of one sentence; leave --split_sentences out")
    if flags.markup and not flags.split_sentences:
        raise UserError("--markup needs --split_sentences, because tags are placed by sentences")
    check_input_file(flags.input)
    if flags.output:
        check_output_file(flags.output, flags.input, work_shard=work_shard)
    import_modules(flags.module_import)
    from mnmt_jax.commands.resumable_output import ResumableOutput
    from mnmt_jax.decoding.translator import Translator

    translator = Translator.load(flags.run, flags.step, gin_files=gin_files, bindings=bindings)
    bad: BadLines = {}
    bad_lines = bad if flags.on_bad_line == "drop" else None
    texts = read_lines(flags.input, bad_lines, language=flags.source)
    _match_languages(flags, translator.languages)
    job = _make_job(translator, flags)
    write = _writer(flags, translator.languages)
    lines = job.number_lines(texts, source=flags.source, target=flags.target)
    if job.pivot is not None:
        flags.pivot = job.pivot
        if flags.pivot in (flags.source, flags.target):
            name = "source" if flags.pivot == flags.source else "target"
            print(f"--pivot={flags.pivot} is the {name}: translated directly", file=sys.stderr)
    if flags.output and not is_stream(flags.output):
        provenance = job.provenance() | {"source": flags.source, "target": flags.target}
        partial = (
            _on_beam(job, provenance, flags, (runner, gin_files, bindings))
            if runner
            else ResumableOutput(flags.output, provenance, job.window_size, work_shard)
        )
        events = _translate_to_file(job, lines, partial, flags.output, write)
        if events is None:
            return
    else:
        with open_output(flags.output) as file, _progress() as report:
            pairs = job.in_order(lines, report=report)
            records = (make_record(*pair) for pair in pairs)
            events = write(records, file)
    report_events(bad, events, job, flags)


def _match_languages(flags: argparse.Namespace, languages: Sequence[str]) -> None:
    """Replace `--source` and `--target` by the model's codes of these languages."""
    for name in ("source", "target"):
        setattr(flags, name, match_code(getattr(flags, name), languages, f"--{name}"))


def _make_job(translator: Translator, flags: argparse.Namespace) -> TranslationJob:
    """Return the job that the flags describe."""
    from mnmt_jax.decoding.context_job import create_job
    from mnmt_jax.decoding.glossary import Glossary
    from mnmt_jax.decoding.text.sentence_job import SentenceJob

    settings: dict[str, Any] = {
        "pivot": flags.pivot,
        "beam_size": flags.beam_size,
        "glossary": Glossary.load(flags.glossary) if flags.glossary else None,
        "retry_off_target": flags.retry_off_target,
        "retry_pivot": flags.retry_pivot,
        "lid": flags.lid,
    }
    if flags.split_sentences:
        job = SentenceJob.create(translator, **settings)
        return dataclasses.replace(job, markup=flags.markup or "")
    return create_job(translator, context=flags.context, **settings)


def _check_sharing(flags: argparse.Namespace, processes: int) -> None:
    """Check that flags fit a translation by several processes or Beam's workers.

    Raises:
        UserError: if not.
    """
    if processes == 1 and flags.runner != "beam":
        return
    flag = "--num_processes" if processes > 1 else "--runner=beam"
    if not flags.output or is_stream(flags.output):
        raise UserError(f"{flag} needs --output, because finished lines are kept beside it")
    if flags.split_sentences or flags.context is not None:
        name = "split_sentences" if flags.split_sentences else "context"
        raise UserError(f"--{name} translates in one process; leave {flag} out")
    if flags.glossary and flags.runner == "beam":
        raise UserError("--glossary is not for --runner=beam; leave one of them out")


def _check_checks(flags: argparse.Namespace) -> None:
    """Check that the flags of checks fit the others.

    Raises:
        UserError: if not.
    """
    if flags.checks and flags.format != "jsonl":
        raise UserError("--checks adds a field to --format=jsonl; add that flag")
    check_retry(flags)


def _on_beam(
    job: TranslationJob,
    provenance: Mapping[str, Any],
    flags: argparse.Namespace,
    settings: tuple[BeamRunner, list[str], list[str]],
) -> BeamOutput:
    """Return the output of Beam's workers.

    Args:
        job: the loaded model.
        provenance: everything that translations depend on besides their sources.
        flags: of the command.
        settings: the runner, gin files and bindings.
    """
    from mnmt_jax.commands.beam_translation import BeamOutput, WorkerModel
    from mnmt_jax.decoding.translation_job import WINDOW_SIZE

    runner, gin_files, bindings = settings
    model = WorkerModel(
        flags.run,
        flags.step,
        gin_files=tuple(gin_files),
        bindings=tuple(bindings),
        modules=tuple(flags.module_import),
        pivot=flags.pivot,
        beam_size=flags.beam_size,
        retry_off_target=flags.retry_off_target,
        retry_pivot=flags.retry_pivot,
        lid=flags.lid,
    )
    model.keep(job)
    return BeamOutput(flags.output, provenance, WINDOW_SIZE, model=model, runner=runner)


def _translate_to_file(
    job: TranslationJob,
    lines: Iterator[Line],
    partial: ResumableOutput | BeamOutput,
    output: str,
    write: Writer,
) -> LineEvents | None:
    """Translate into a file, resuming where the same command was stopped.

    Returns:
        The events, as `write` returns them; None if another process writes the output.
    """
    with partial as unfinished:
        with _progress() as report:
            unfinished.finish(lines, job.as_completed, report)
        if not unfinished.is_last():
            return None
        with open_output(output) as file:
            events = write(unfinished.records(), file)
        unfinished.remove()
    return events


def _writer(flags: argparse.Namespace, languages: Sequence[str]) -> Writer:
    """Return a function that writes a line per record, and returns the lines with events."""
    check = _make_check(flags, languages) if flags.checks else lambda record: {}

    def write(records: Iterable[Mapping[str, Any]], file: IO[str]) -> LineEvents:
        events = LineEvents()
        for record in records:
            text = record["translation"]
            print(
                format_record({**record, **check(record)}) if flags.format == "jsonl" else text,
                file=file,
            )
            events.add(record)
        return events

    return write


def _make_check(
    flags: argparse.Namespace, languages: Sequence[str]
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a function from a record to its field `checks`."""
    from mnmt_jax.decoding.guards import TranslationChecker
    from mnmt_jax.vocabulary.language_detectors import find_detector

    checker = TranslationChecker(find_detector(flags.lid), languages)

    def check(record: Mapping[str, Any]) -> dict[str, Any]:
        translation = read_record(record)
        checks = checker.check(record["source"], flags.source, translation, flags.target)
        return {"checks": checks.as_dict()}

    return check


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """Yield a function that counts translated lines for a progress bar and a final message."""
    from tqdm import tqdm

    count, start = 0, time.monotonic()
    with (
        tqdm(unit=" lines", file=sys.stderr, disable=None) as bar,
        note_first_results(functools.partial(tqdm.write, file=sys.stderr)) as note,
    ):

        def report(lines: int) -> None:
            nonlocal count
            count += lines
            bar.update(lines)
            note(lines)

        yield report
    seconds = time.monotonic() - start
    rate = count / max(seconds, 1e-9)
    summary = f"{pluralize(count, 'line')} in {seconds:.1f} s"
    print(f"{summary} ({rate:.1f} lines/s with compilation)", file=sys.stderr)
