"""Arguments that every command shares: gin files, gin bindings, and errors in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from mnmt_jax.bucket import is_bucket
from mnmt_jax.errors import UserError

_PREFIX = "--gin."


class CommandParser(argparse.ArgumentParser):
    """Parses arguments like its base, but reports a mistake as one line without the usage text."""

    def error(self, message: str) -> NoReturn:
        """Raises the mistake for `mnmt_jax.errors.run_command` to print.

        Raises:
            UserError: always.
        """
        raise UserError(f"{message} (see {self.prog} --help)")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses arguments like its base.

        Raises:
            UserError: for a mistake, and for an output in a bucket, which no command writes.
        """
        parsed = super().parse_args(args, namespace)
        output = getattr(parsed, "output", None)
        if output and is_bucket(output):
            raise UserError(
                f"--output={output}: must be on this machine; copy it to the bucket afterwards"
            )
        return parsed


def parse_command_line(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None = None
) -> tuple[argparse.Namespace, list[str], list[str]]:
    """Parses a command's own flags together with `--gin_file` and `--gin.NAME=VALUE`.

    Args:
        parser: holds the command's own flags; the gin flags are added here.
        argv: arguments without the program's name; None takes the process's.

    Returns:
        The parsed flags, the gin files in order, and the bindings as `NAME=VALUE` in order.

    Raises:
        UserError: if `--gin.NAME` has no name or no value.
    """
    group = parser.add_argument_group("configuration")
    group.add_argument(
        "--gin_file",
        action="append",
        default=[],
        metavar="FILE",
        help="gin file; repeatable, later files win",
    )
    group.add_argument(
        "--gin.NAME",
        dest="_gin_binding",
        metavar="VALUE",
        help="binds one value, e.g. --gin.Decode.max_length=100; strings need quotes of their own: "
        "--gin.Model.layout=\"'prefix'\"; repeatable",
    )
    rest, bindings = _take_bindings(list(sys.argv[1:] if argv is None else argv))
    namespace = parser.parse_args(rest)
    files = namespace.gin_file
    del namespace.gin_file, namespace._gin_binding
    return namespace, list(files), bindings


def _take_bindings(argv: list[str]) -> tuple[list[str], list[str]]:
    """Splits `--gin.NAME=VALUE` and `--gin.NAME VALUE` from the other arguments."""
    rest: list[str] = []
    bindings: list[str] = []
    remaining = iter(argv)
    for argument in remaining:
        if argument == "--":
            return [*rest, argument, *remaining], bindings
        if not argument.startswith(_PREFIX):
            rest.append(argument)
            continue
        name, equals, value = argument[len(_PREFIX) :].partition("=")
        if not equals:
            value = next(remaining, "")
        if not name or not value:
            raise UserError(f"'{argument}' must be {_PREFIX}NAME=VALUE")
        bindings.append(f"{name}={value}")
    return rest, bindings
