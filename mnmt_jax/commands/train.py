r"""Train a model, or resume training; the command is the same.

The configuration is two gin files: a model (gin_configs/models) and a run (gin_configs/runs) with
the data, steps and optimizer. --gin.NAME=VALUE overrides single values. Example:

  mnmt train --gin_file=gin_configs/models/register_tiny.gin \
      --gin_file=gin_configs/runs/own_text.gin --gin.Data.cache="'runs/mine/cache'" \
      --workdir=runs/mine/register
"""

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
from mnmt_jax.runtime.run_command import signal_status

if TYPE_CHECKING:
    from mnmt_jax.training.source_runs import SourceRunSpec


class _HelpFormatter(DefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help formatter that appends defaults and keeps the description's lines."""


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__, formatter_class=_HelpFormatter)
    parser.add_argument(
        "--workdir", required=True, metavar="RUN", help="run directory, or gs://bucket/folder"
    )
    parser.add_argument(
        "--initialize_from",
        action="append",
        default=[],
        metavar="RUN",
        help="trained or imported run to initialize the parameters of a new run from; needs the "
        "same vocabulary and sizes; from an encoder-decoder, other layouts copy the decoder; "
        "NAME=RUN, repeatable, for each source name in Graft.parts",
    )
    parser.add_argument(
        "--initialize_step",
        action="append",
        default=[],
        metavar="STEP",
        help="checkpoint of --initialize_from: a step number, 'best' or 'average'; default: the "
        "newest; NAME=STEP, repeatable, for one of several runs",
    )
    add_process_flags(parser)
    add_gin_flags(parser)
    return parser


def main() -> int | None:
    """Parse the command line and train."""
    flags, gin_files, bindings = parse_command_line(make_parser())
    if not is_distributed(flags):
        return _train(flags, gin_files, bindings)

    def work() -> int:
        connect(flags)
        return _train(flags, gin_files, bindings)

    return supervise(work)


def _train(flags: argparse.Namespace, gin_files: list[str], bindings: list[str]) -> int:
    from mnmt_jax.config.loading import load_config
    from mnmt_jax.evaluation.validation_scores import score
    from mnmt_jax.training.train import train

    origins = _source_runs(flags.initialize_from, flags.initialize_step)
    import_modules(flags.module_import)
    config = load_config(gin_files, bindings)
    stopped = train(config, flags.workdir, origins, scorer=score)
    return signal_status(signal.Signals[stopped]) if stopped else 0


def _source_runs(runs: Sequence[str], steps: Sequence[str]) -> tuple[SourceRunSpec, ...]:
    """Return the source runs, each with its step.

    Args:
        runs: RUN or NAME=RUN; an existing path is always a RUN.
        steps: STEP, for all runs without a named step, or NAME=STEP.

    Raises:
        UserError: if a run has no path, a step belongs to no run, or a run has two steps.
    """
    from mnmt_jax.training.source_runs import SourceRunSpec

    if "" in runs:
        raise UserError("--initialize_from= is empty; name a run, or omit the flag")
    named_runs = [("", run) if Path(run).exists() else _split_name(run) for run in runs]
    step_of: dict[str, int | str] = {}
    for text in steps:
        name, step = _split_name(text)
        if name in step_of:
            raise UserError(f"--initialize_step={text}: this name has two steps; remove one")
        if not named_runs or (name and name not in dict(named_runs)):
            needed_flag = f"{name}=RUN" if name else "RUN"
            raise UserError(f"--initialize_step={text}: needs --initialize_from={needed_flag}")
        step_of[name] = checkpoint_step(step)
    default = step_of.get("")
    return tuple(SourceRunSpec(run, step_of.get(name, default), name) for name, run in named_runs)


def _split_name(text: str) -> tuple[str, str]:
    """Split NAME=VALUE; the name is empty if there is none."""
    name, equals, value = text.partition("=")
    return (name, value) if equals and is_source_run_name(name) else ("", text)
