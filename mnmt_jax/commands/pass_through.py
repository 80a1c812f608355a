"""Argument parser of commands that pass the arguments after `--` to an engine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.errors import UserError

if TYPE_CHECKING:
    from mnmt_jax.data.preparation.runners import BeamRunner


class PassThroughParser(CommandParser):
    """A parser that leaves the arguments after `--` to an engine, also if flags precede them."""

    _engine = ""

    def add_pass_through(self, engine: str) -> None:
        """Add the arguments after `--`, as the last argument.

        Args:
            engine: name of the engine, lower case; the parsed flags have the arguments under it.
        """
        self._engine = engine
        title = engine.capitalize()
        self.add_argument(
            engine, nargs="*", default=[], metavar="-- ARG", help=f"arguments of {title}"
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments as in the base class.

        Raises:
            UserError: for a mistake.
        """
        words = [*(sys.argv[1:] if args is None else args), "--"]
        end = words.index("--")
        parsed = super().parse_args(words[:end], namespace)
        if misplaced := getattr(parsed, self._engine):
            self.error(
                f"unexpected '{misplaced[0]}'; lists are written with commas, and arguments of "
                f"{self._engine.capitalize()} follow '--'"
            )
        setattr(parsed, self._engine, words[end + 1 : -1])
        return parsed


def add_beam_runner(parser: PassThroughParser, output: str) -> None:
    """Add `--runner`, and the arguments of Beam, as the last argument.

    Args:
        parser: of a command that translates.
        output: output that Beam's workers can write, e.g. `--output`.
    """
    parser.add_argument(
        "--runner",
        choices=("local", "beam"),
        default="local",
        help=f"local: this process; beam: the workers of Apache Beam, with {output} on storage "
        "that all of them mount; default: %(default)s",
    )
    parser.add_pass_through("beam")


def make_beam_runner(flags: argparse.Namespace, local: Sequence[str]) -> BeamRunner | None:
    """Return the runner that `--runner` and the arguments after `--` name; None without Beam.

    Args:
        flags: the parsed flags.
        local: names of flags of the local runner.

    Raises:
        UserError: if the flags do not go together, or Beam is not installed.
    """
    if flags.runner != "beam":
        if flags.beam:
            raise UserError(f"{flags.beam[0]}: flags after '--' are Beam's; add --runner=beam")
        return None
    if other := [name for name in local if getattr(flags, name) is not None]:
        raise UserError(
            f"--{other[0]} is of --runner=local; give Beam its own flags after '--', e.g. "
            "-- --direct_num_workers=4 --direct_running_mode=multi_processing"
        )
    from mnmt_jax.data.preparation.runners import BeamRunner

    return BeamRunner(flags.beam)
