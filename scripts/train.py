"""Trains a model, or continues a training: the same command does both."""

import argparse
import signal

from mnmt_jax.cli import CommandParser, parse_command_line
from mnmt_jax.errors import run_command

_SIGNAL_STATUS = 128  # what a shell reports for a process that a signal ended, plus its number


def main() -> int:
    """Parses the command line and trains."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--workdir", required=True, metavar="RUN", help="run directory")
    flags, gin_files, bindings = parse_command_line(parser)

    from mnmt_jax.config import load_config
    from mnmt_jax.train import train

    stopped = train(load_config(gin_files, bindings), flags.workdir)
    return _SIGNAL_STATUS + signal.Signals[stopped] if stopped else 0


if __name__ == "__main__":
    run_command(main)
