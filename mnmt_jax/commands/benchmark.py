"""Time the translation of random test sentences; write timing.json and print mean and deviation.

Every pass translates the same sentences, batch by batch. The first pass compiles and is not
counted.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands.benchmark_corpus import benchmark_corpus
from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_beam_size,
    add_gin_flags,
    add_step,
    import_modules,
    parse_command_line,
    positive_int,
    seed_value,
)
from mnmt_jax.commands.corpus_flags import add_user_file_flags
from mnmt_jax.commands.direction_flags import FORMS, restrict
from mnmt_jax.runtime.first_results import note_first_results

if TYPE_CHECKING:
    from mnmt_jax.evaluation.benchmark import Benchmark

_SENTENCES, _REPEATS = 100, 10  # as in Table 7 of the registers paper


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run", required=True, metavar="RUN", help="run directory of a trained or imported model"
    )
    parser.add_argument(
        "--task", required=True, help="corpus or mixture whose test sentences are translated"
    )
    parser.add_argument("--output", required=True, type=Path, help="folder for timing.json")
    parser.add_argument(
        "--directions", metavar="WHICH", help=f"{FORMS}; default: all directions of the task"
    )
    parser.add_argument(
        "--sentences",
        type=positive_int,
        default=_SENTENCES,
        metavar="N",
        help=f"sentences drawn at random over all directions; default: {_SENTENCES}",
    )
    parser.add_argument(
        "--repeats",
        type=positive_int,
        default=_REPEATS,
        metavar="N",
        help=f"timed passes over the sentences; default: {_REPEATS}",
    )
    parser.add_argument(
        "--batch",
        type=positive_int,
        default=1,
        metavar="N",
        help="sentences translated together; default: %(default)s",
    )
    parser.add_argument(
        "--seed",
        type=seed_value,
        default=0,
        metavar="N",
        help="seed of the draws; default: %(default)s",
    )
    add_beam_size(parser)
    add_step(parser)
    add_user_file_flags(parser)
    add_gin_flags(parser)
    return parser


def main() -> None:
    """Run the command."""
    flags, gin_files, bindings = parse_command_line(make_parser())
    import_modules(flags.module_import)
    import jax

    from mnmt_jax.decoding.search_settings import describe_search
    from mnmt_jax.decoding.translation_job import TranslationJob
    from mnmt_jax.decoding.translation_time import time_translation
    from mnmt_jax.decoding.translator import Translator
    from mnmt_jax.evaluation.timing import Timing, check_timing_folder, draw_sentences, write_timing

    check_timing_folder(flags.output)
    translator = Translator.load(flags.run, flags.step, gin_files=gin_files, bindings=bindings)
    job = TranslationJob.create(translator, beam_size=flags.beam_size, batch=flags.batch)
    drawn = draw_sentences(_test_set(flags, translator.languages), flags.sentences, flags.seed)
    texts, sources, targets = zip(*drawn, strict=True)
    lines = list(job.number_lines(texts, source=sources, target=targets))
    with note_first_results() as note:
        note(0)
        measured = time_translation(job, lines, repeats=flags.repeats)
    timing = Timing(
        sentences=flags.sentences,
        tokens=measured.tokens,
        repeats=flags.repeats,
        mean_seconds=measured.mean,
        deviation_seconds=measured.deviation,
        device=jax.devices()[0].device_kind,
    )
    facts: dict[str, Any] = {"run": str(translator.run), "step": translator.step}
    facts |= {"parameters": translator.parameters, "task": flags.task, "seed": flags.seed}
    facts |= {"decoding": describe_search(job.decode) | {"batch": job.decode.batch}}
    facts |= {"first_seconds": measured.first_seconds, "seconds": measured.seconds}
    write_timing(timing, flags.output, facts)
    print(timing.describe())


def _test_set(flags: argparse.Namespace, languages: tuple[str, ...]) -> Benchmark:
    """Return the test set, restricted to the model's languages and the listed directions."""
    from mnmt_jax.commands.model_benchmark import model_benchmark

    corpus, available = benchmark_corpus(flags)
    benchmark = model_benchmark(flags, corpus, available, languages)
    return benchmark if flags.directions is None else restrict(benchmark, flags.directions)
