"""Average checkpoint parameters of a run; other commands load them with `--step=average`."""

import argparse
import itertools
import sys

from mnmt_jax.commands.common_flags import (
    CommandParser,
    DefaultsHelpFormatter,
    positive_int,
    split_list,
)
from mnmt_jax.errors import pluralize


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__, formatter_class=DefaultsHelpFormatter)
    parser.add_argument("--run", required=True, metavar="RUN", help="run directory")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--last", type=positive_int, default=5, metavar="N", help="average the N newest checkpoints"
    )
    which.add_argument(
        "--best", type=positive_int, metavar="N", help="average the N best by validation loss"
    )
    which.add_argument(
        "--steps",
        type=_steps,
        nargs="+",
        action="extend",
        metavar="STEP",
        help="steps to average, e.g. 100,200",
    )
    return parser


def _steps(text: str) -> list[int]:
    """Parse the value of a flag as steps, separated by commas.

    Raises:
        argparse.ArgumentTypeError: if it is not numbers.
    """
    steps = split_list(text)
    if not steps or not all(map(str.isdecimal, steps)):
        raise argparse.ArgumentTypeError(f"{text!r} must be steps, e.g. 100,200")
    return [int(step) for step in steps]


def main() -> None:
    """Average checkpoints and print the steps used."""
    flags = make_parser().parse_args()

    from mnmt_jax.runs.average import average_checkpoints, newest_steps
    from mnmt_jax.runs.parameters import best_steps
    from mnmt_jax.runs.run_directory import RunDirectory

    run = RunDirectory.open(flags.run)
    steps = sorted(
        set(itertools.chain(*flags.steps or ()))
        or (best_steps(run, flags.best) if flags.best else newest_steps(run, flags.last))
    )
    requested, kind = (flags.best, "best") if flags.best else (flags.last, "last")
    if not flags.steps and len(steps) < requested:
        qualifier = " with a validation loss" if flags.best else ""
        print(
            f"--{kind}={requested}: the run has {pluralize(len(steps), 'checkpoint')}{qualifier}; "
            "averaging these (Train.keep_last and Train.keep_best set how many are kept)",
            file=sys.stderr,
        )
    average_checkpoints(run, steps)
    print(f"averaged {pluralize(len(steps), 'step')}; use it with --step=average", file=sys.stderr)
    print(*steps)
