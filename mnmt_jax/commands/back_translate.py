"""Back-translate target sentences of the training data into randomly drawn languages."""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from mnmt_jax.commands.common_flags import (
    add_gin_flags,
    add_step,
    import_modules,
    parse_command_line,
    positive_int,
    seed_value,
    split_list,
)
from mnmt_jax.commands.pass_through import (
    PassThroughParser,
    add_beam_runner,
    make_beam_runner,
)
from mnmt_jax.distributed.processes import (
    add_process_flags,
    connect,
    is_distributed,
    is_first,
    supervise,
)
from mnmt_jax.distributed.work_shards import work_shard_of
from mnmt_jax.errors import UserError
from mnmt_jax.runtime.run_command import signal_status
from mnmt_jax.vocabulary.language_codes import find_code

if TYPE_CHECKING:
    from mnmt_jax.commands.back_translation_rounds import BackTranslationRounds

_ROUNDS = 4


def make_parser() -> PassThroughParser:
    """Make the parser of the command line."""
    parser = PassThroughParser(
        description=__doc__ + " --output writes one token cache with the real and the "
        "back-translated pairs. --workdir runs several rounds; each writes a cache and trains on "
        "it, starting from the model of the previous round. Several processes split the sentences: "
        "with --output they need only --num_processes and --process_id, with --workdir they train "
        "together as in `mnmt train`. After an interruption, the same command resumes."
    )
    parser.add_argument(
        "--run", required=True, metavar="RUN", help="run directory of a trained or imported model"
    )
    add_step(parser)
    parser.add_argument(
        "--cache", required=True, metavar="CACHE", help="token cache of the real pairs"
    )
    parser.add_argument(
        "--languages",
        required=True,
        metavar="CODES",
        help="languages whose target sentences are back-translated, e.g. ar,de,fr",
    )
    parser.add_argument(
        "--pool",
        default="",
        metavar="CODES",
        help="languages to translate into; for each sentence one other than its own is drawn; "
        "default: --languages without en",
    )
    parser.add_argument(
        "--seed", type=seed_value, default=1, metavar="N", help="random seed; default: %(default)s"
    )
    parser.add_argument(
        "--beam_size",
        type=positive_int,
        default=1,
        metavar="N",
        help="hypotheses per sentence; default: %(default)s (greedy search)",
    )
    destination = parser.add_mutually_exclusive_group(required=True)
    destination.add_argument(
        "--output", metavar="CACHE", help="token cache to write: one round, no training"
    )
    destination.add_argument(
        "--workdir",
        metavar="FOLDER",
        help="folder of the training rounds: round_1/cache, round_1/run, ...",
    )
    parser.add_argument(
        "--round", type=positive_int, metavar="N", help="round number, with --output; default: 1"
    )
    parser.add_argument(
        "--rounds",
        type=positive_int,
        metavar="N",
        help=f"number of rounds, with --workdir; default: {_ROUNDS}",
    )
    add_process_flags(parser)
    add_gin_flags(parser)
    add_beam_runner(parser, "--output")
    return parser


def main() -> int | None:
    """Run the command."""
    flags, gin_files, bindings = parse_command_line(make_parser())
    if not flags.workdir:
        return _make_cache(flags, gin_files, bindings)
    if flags.runner == "beam":
        raise UserError("--runner=beam needs --output: rounds also train; leave it out")
    if flags.round:
        raise UserError("--round needs --output; --workdir counts the rounds itself")
    if not is_distributed(flags):
        return _make_rounds(flags, gin_files, bindings)

    def work() -> int:
        connect(flags)
        return _make_rounds(flags, gin_files, bindings)

    return supervise(work)


def _make_rounds(flags: argparse.Namespace, gin_files: list[str], bindings: list[str]) -> int:
    rounds = _rounds(flags, gin_files, bindings)
    stopped = rounds.run(Path(flags.workdir), flags.rounds or _ROUNDS)
    return signal_status(signal.Signals[stopped]) if stopped else 0


def _make_cache(flags: argparse.Namespace, gin_files: list[str], bindings: list[str]) -> int:
    """Make the cache of one round; its processes work without communication."""
    if flags.rounds:
        raise UserError("--rounds needs --workdir, not --output")
    if any(binding.startswith("Train.") for binding in bindings):
        raise UserError("--gin.Train...: --output does not train; omit the flag, or give --workdir")
    if flags.distributed or flags.coordinator_address:
        raise UserError(
            "--distributed, --coordinator_address: not needed with --output; give only "
            "--num_processes and --process_id"
        )
    work_shard = work_shard_of(flags)
    runner = make_beam_runner(flags, ("num_processes", "process_id"))
    from mnmt_jax.commands.beam_translation import BeamWorkers

    rounds = _rounds(flags, gin_files, bindings)
    beam = BeamWorkers(runner, tuple(flags.module_import)) if runner else None
    cache = rounds.write_cache(Path(flags.output), flags.round or 1, work_shard, beam=beam)
    if cache is None:
        return 0
    trained = cache.tasks_with("train")
    examples = {name: cache.split(name, "train").examples for name in trained}
    print(json.dumps({"output": flags.output, "examples": examples}, indent=2))
    return 0


def _rounds(
    flags: argparse.Namespace, gin_files: list[str], bindings: list[str]
) -> BackTranslationRounds:
    from mnmt_jax.commands.back_translation_rounds import BackTranslationRounds
    from mnmt_jax.commands.translated_cache import report_context_tasks, report_prompted_tasks
    from mnmt_jax.data.back_translation import BackTranslationDraws
    from mnmt_jax.data.cache import TokenCache
    from mnmt_jax.training.source_runs import SourceRunSpec

    import_modules(flags.module_import)
    cache = TokenCache.open(flags.cache)
    if is_first():
        report_context_tasks(cache, "not back-translated")
        report_prompted_tasks(cache, "not back-translated")
    known_codes = cache.vocabulary.languages
    languages, pool = (
        [find_code(code, known_codes, flag) or code for code in split_list(text)]
        for flag, text in (("--languages", flags.languages), ("--pool", flags.pool))
    )
    return BackTranslationRounds(
        draws=BackTranslationDraws.of(languages, pool, seed=flags.seed),
        cache=cache,
        origin=SourceRunSpec(flags.run, flags.step),
        beam_size=flags.beam_size,
        configuration=(gin_files, bindings),
    )
