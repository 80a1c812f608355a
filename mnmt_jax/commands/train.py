"""Trains a model, or continues a training: the same command does both."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mnmt_jax.commands.common_flags import (
    CommandParser,
    DefaultsHelpFormatter,
    add_gin_flags,
    checkpoint_step,
    import_modules,
    parse_command_line,
)
from mnmt_jax.design.param_mapping import is_source_run_name
from mnmt_jax.distributed.processes import add_process_flags, connect, is_distributed, supervise
from mnmt_jax.errors import UserError

if TYPE_CHECKING:
    from mnmt_jax.training.source_runs import SourceRunSpec

_SIGNAL_STATUS = 128  # what a shell reports for a process that a signal ended, plus its number


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__, formatter_class=DefaultsHelpFormatter)
    parser.add_argument(
        "--workdir", required=True, metavar="RUN", help="run directory, or gs://bucket/folder"
    )
    parser.add_argument(
        "--initialize_from",
        action="append",
        default=[],
        metavar="RUN",
        help="trained or imported run whose parameters a new run starts from, of the same "
        "vocabulary and sizes; an encoder-decoder gives other layouts its decoder; NAME=RUN, "
        "repeatable, for each name that Graft.parts takes from",
    )
    parser.add_argument(
        "--initialize_step",
        action="append",
        default=[],
        metavar="STEP",
        help="its checkpoint's step, 'best' or 'average'; the newest if not given; NAME=STEP, "
        "repeatable, of one run among several",
    )
    add_process_flags(parser)
    add_gin_flags(parser)
    return parser


def main() -> int | None:
    """Parse the command line and trains."""
    flags, gin_files, bindings = parse_command_line(make_parser())
    if not is_distributed(flags):
        return _train(flags, gin_files, bindings)

    def work() -> int:
        connect(flags)
        return _train(flags, gin_files, bindings)

    return supervise(work)


def _train(flags: argparse.Namespace, gin_files: list[str], bindings: list[str]) -> int:
    from mnmt_jax.config.loading import load_config
    from mnmt_jax.training.train import train

    origins = _origins(flags.initialize_from, flags.initialize_step)
    import_modules(flags.module_import)
    stopped = train(load_config(gin_files, bindings), flags.workdir, origins)
    return _SIGNAL_STATUS + signal.Signals[stopped] if stopped else 0


def _origins(runs: Sequence[str], steps: Sequence[str]) -> tuple[SourceRunSpec, ...]:
    """Return the runs to start from, each with its step.

    Args:
        runs: RUN or NAME=RUN; what is there as it stands is a RUN.
        steps: STEP, of all that have none of their own, or NAME=STEP.

    Raises:
        UserError: if a run has no name, a step is nobody's, or one of two.
    """
    from mnmt_jax.training.source_runs import SourceRunSpec

    if "" in runs:
        raise UserError("--initialize_from= names no run; leave it out, or name one")
    named = [("", run) if Path(run).exists() else _named(run) for run in runs]
    chosen: dict[str, int | str] = {}
    for text in steps:
        name, step = _named(text)
        if name in chosen:
            raise UserError(f"--initialize_step={text}: not the only one of its name; leave one")
        if not named or (name and name not in dict(named)):
            given = f"{name}=RUN" if name else "RUN"
            raise UserError(f"--initialize_step={text}: needs --initialize_from={given}")
        chosen[name] = checkpoint_step(step)
    default = chosen.get("")
    return tuple(SourceRunSpec(run, chosen.get(name, default), name) for name, run in named)


def _named(text: str) -> tuple[str, str]:
    """Split NAME=VALUE; the name is empty if there is none."""
    name, equals, value = text.partition("=")
    return (name, value) if equals and is_source_run_name(name) else ("", text)
