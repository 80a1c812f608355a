"""Make or check the environment of neural metrics: COMET, xCOMET, CometKiwi, MetricX, BERTScore.

They need other packages than mnmt-jax. `mnmt metrics setup` installs them into a Python environment
of their own, from which `mnmt evaluate --comet FILE` and the like call them. Models are not
downloaded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.errors import UserError, say


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="setup|check")
    setup = commands.add_parser("setup", help="make the environment, or update it")
    setup.add_argument(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="Python to make it with; default: that of this command",
    )
    setup.add_argument(
        "--requirement",
        action="append",
        default=[],
        metavar="R",
        help="further requirement of pip, e.g. torch==2.13.0; repeatable",
    )
    check = commands.add_parser("check", help="print the versions of the packages")
    for command in (setup, check):
        add_metrics_environment(command)
    return parser


def add_metrics_environment(parser: argparse._ActionsContainer) -> None:
    """Add `--metrics_environment`."""
    parser.add_argument(
        "--metrics_environment",
        type=Path,
        metavar="FOLDER",
        help="environment of neural metrics; default: $MNMT_JAX_METRICS, or ~/.cache/mnmt_jax/"
        "metrics",
    )


def main() -> None:
    """Run the sub-command."""
    flags = make_parser().parse_args()
    from mnmt_jax.evaluation.metrics_environment import (
        MetricWorker,
        create_environment,
        default_environment,
    )

    folder = flags.metrics_environment or default_environment()
    if flags.command == "setup":
        create_environment(folder, python=flags.python, requirements=flags.requirement)
    worker, failed = MetricWorker(folder), False
    worker.check_environment()
    for metric in ("comet", "bert_score", "metricx"):
        try:
            print(f"{metric}\t{worker.version(metric)}")
        except UserError as error:
            failed = True
            say(f"error: {error}")
    if failed:
        raise UserError(f"{folder}: not all metrics work; repeat 'mnmt metrics setup'")
