"""Argument parser of commands that pass the arguments after `--` to an engine."""

from __future__ import annotations

import sys
from typing import Any

from mnmt_jax.commands.common_flags import CommandParser


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
