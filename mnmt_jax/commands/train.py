"""Trains a model, or continues a training: the same command does both."""

import argparse
import signal

from mnmt_jax.commands.arguments import (
    CommandParser,
    DefaultsHelp,
    add_configuration,
    import_modules,
    parse_command_line,
)
from mnmt_jax.distributed.processes import add_process_flags, connect, is_distributed, supervise

_SIGNAL_STATUS = 128  # what a shell reports for a process that a signal ended, plus its number


def make_parser() -> CommandParser:
    """Makes the parser of the command line."""
    parser = CommandParser(description=__doc__, formatter_class=DefaultsHelp)
    parser.add_argument(
        "--workdir", required=True, metavar="RUN", help="run directory, or gs://bucket/folder"
    )
    parser.add_argument(
        "--initialize_from",
        metavar="RUN",
        help="trained or imported run whose parameters a new run starts from, of the same "
        "vocabulary and sizes; an encoder-decoder gives other layouts its decoder",
    )
    parser.add_argument(
        "--initialize_step",
        metavar="STEP",
        help="its checkpoint's step, 'best' or 'average'; the newest if not given",
    )
    add_process_flags(parser)
    add_configuration(parser)
    return parser


def main() -> int | None:
    """Parses the command line and trains."""
    flags, gin_files, bindings = parse_command_line(make_parser())
    if not is_distributed(flags):
        return _train(flags, gin_files, bindings)

    def work() -> int:
        connect(flags)
        return _train(flags, gin_files, bindings)

    return supervise(work)


def _train(flags: argparse.Namespace, gin_files: list[str], bindings: list[str]) -> int:
    from mnmt_jax.config.loading import load_config
    from mnmt_jax.training.initialization import Origin
    from mnmt_jax.training.train import train

    origin = None
    if flags.initialize_from:
        step = flags.initialize_step or ""
        origin = Origin(flags.initialize_from, int(step) if step.isdigit() else step or None)
    import_modules(flags.module_import)
    stopped = train(load_config(gin_files, bindings), flags.workdir, origin)
    return _SIGNAL_STATUS + signal.Signals[stopped] if stopped else 0
