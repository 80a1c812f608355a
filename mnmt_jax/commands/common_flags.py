"""Command-line arguments shared by commands: gin files and bindings, modules, checkpoints."""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from mnmt_jax.errors import UserError, docs_page, install_remedy, suggest
from mnmt_jax.files.bucket import is_bucket
from mnmt_jax.files.typed_fields import LARGEST
from mnmt_jax.vocabulary.detector_names import LANGDETECT, LID176

_PREFIX = "--gin."
_OUTPUT_FLAGS = ("output", "text_output", "evaluation_text", "page")
"""Flags of files and folders that a command writes on this machine."""


class DefaultsHelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Help formatter that appends non-empty default values."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default else action.help


class CommandParser(argparse.ArgumentParser):
    """An argument parser that reports a mistake as one line, without the usage text.

    Attributes:
        synonyms: synonyms of choices, in lower case, e.g. {"tsne": "states"}; an error about a
            synonym names the choice.
        flag_hints: remedies for flags of other toolkits, e.g. {"--nbest": "use --beam_size N"}.
    """

    synonyms: Mapping[str, str] = {}
    flag_hints: Mapping[str, str] = {}

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        """Create a parser that accepts no abbreviated flags: `--metrics` may be another flag's."""
        super().__init__(*arguments, **{"allow_abbrev": False, **settings})

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check a choice as in the base class, and suggest the likely choice."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            choices = [str(choice) for choice in action.choices or ()]
            meant = self.synonyms.get(str(value).lower())
            hint = f"did you mean '{meant}'?" if meant in choices else suggest(str(value), choices)
            message = f"{error.message}; {hint.strip()}" if hint else error.message
            raise argparse.ArgumentError(action, message) from error

    def error(self, message: str) -> NoReturn:
        """Raise the mistake as an error for `mnmt_jax.runtime.run_command` to print.

        Raises:
            UserError: always.
        """
        raise UserError(f"{message} (see {self.prog} --help)")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments as in the base class.

        Raises:
            UserError: for a mistake, or an output in a bucket, which commands do not support.
        """
        parsed = super().parse_args(args, namespace)
        for flag in _OUTPUT_FLAGS:
            output = getattr(parsed, flag, None)
            if output and is_bucket(output):
                raise UserError(
                    f"--{flag}={output}: must be on this machine; copy it to the bucket afterwards"
                )
        return parsed

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse known arguments as in the base class, also for sub-commands.

        Raises:
            UserError: for an unknown flag.
        """
        self._check_flags(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def _check_flags(self, arguments: Sequence[str]) -> None:
        """Report an unknown flag before the base class reports a missing one."""
        known_flags = [name for name in self._option_string_actions if name.startswith("--")]
        if self._subparsers:  # the parser of a sub-command knows its flags
            return
        for argument in itertools.takewhile(lambda text: text != "--", arguments):
            flag = argument.partition("=")[0]
            if flag.startswith("--") and flag not in known_flags:
                hint = self.flag_hints.get(flag, "")
                hint = f"{hint}; " if hint else suggest(flag, known_flags)
                raise UserError(f"{flag}: no such flag; {hint}see {self.prog} --help")


def add_gin_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--gin_file`, `--gin.NAME=VALUE` and `--module_import`."""
    group = parser.add_argument_group("configuration")
    group.add_argument(
        "--gin_file",
        action="append",
        default=[],
        metavar="FILE",
        help="gin configuration file; repeatable, later files override earlier ones",
    )
    group.add_argument(
        "--gin.NAME",
        dest="_gin_binding",
        metavar="VALUE",
        help="override one configuration value, which 'mnmt keys' lists, e.g. "
        "--gin.Decode.max_length=100; repeatable; quote a string twice: "
        "--gin.Model.layout=\"'prefix'\"",
    )
    add_module_import(group, "Python module to import before the gin files are read")


def parse_command_line(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None = None
) -> tuple[argparse.Namespace, list[str], list[str]]:
    """Parse a command's flags, including those of `add_gin_flags`.

    Args:
        parser: parser with the flags.
        argv: arguments without the program's name; None uses the process's.

    Returns:
        The parsed flags, including `module_import` for `import_modules`; the gin files in order;
        and the bindings as `NAME=VALUE` in order.

    Raises:
        UserError: if `--gin.NAME` has no name or no value.
    """
    remaining, bindings = _split_bindings(list(sys.argv[1:] if argv is None else argv))
    namespace = parser.parse_args(remaining)
    files = namespace.gin_file
    del namespace.gin_file, namespace._gin_binding
    return namespace, list(files), bindings


def add_module_import(parser: argparse._ActionsContainer, help: str) -> None:
    """Add `--module_import`, the only way to make a command import a user's module.

    Args:
        parser: parser, or a group of it.
        help: purpose of the module; the search path is appended.
    """
    parser.add_argument(
        "--module_import",
        action="append",
        default=[],
        metavar="MODULE",
        help=f"{help}; the current folder is searched first; repeatable",
    )


def add_method_import(parser: argparse.ArgumentParser) -> None:
    """Add `--module_import` to a command that reads a run but no gin files."""
    add_module_import(parser, "Python module with your own method of the run")


def positive_int(text: str) -> int:
    """Parse the value of a flag as a positive integer.

    Raises:
        argparse.ArgumentTypeError: if it is not from 1 to `LARGEST`.
    """
    return _whole_number(text, 1, LARGEST)


def amount(text: str) -> int:
    """Parse the value of a flag as a number of sentences.

    Raises:
        argparse.ArgumentTypeError: if it is not from 0 to `LARGEST`.
    """
    return _whole_number(text, 0, LARGEST)


def checkpoint_step(text: str) -> int | str:
    """Parse the value of a flag as a step: a number, or a word such as `best`."""
    return int(text) if text.isdecimal() else text


def seed_value(text: str) -> int:
    """Parse the value of a flag as a seed, valid for NumPy and scikit-learn.

    Raises:
        argparse.ArgumentTypeError: if it is not from 0 to 2**32 - 1.
    """
    return _whole_number(text, 0, 2**32 - 1)


def _whole_number(text: str, least: int, most: int) -> int:
    # Python does not read a number of thousands of digits.
    number = int(text) if text.isdecimal() and len(text) < 100 else -1
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(
            f"{text[:20]!r} must be a whole number from {least} to {most}"
        )
    return number


def add_note(parser: argparse.ArgumentParser) -> None:
    """Add `--note`."""
    parser.add_argument(
        "--note", default="", metavar="TEXT", help="text to show at the top of the page"
    )


def add_step(parser: argparse.ArgumentParser, help_suffix: str = "") -> None:
    """Add `--step`, the checkpoint of a run.

    Args:
        parser: parser of the command.
        help_suffix: text appended to its help.
    """
    parser.add_argument(
        "--step",
        type=checkpoint_step,
        metavar="STEP",
        help="checkpoint: a step number, 'best' or 'average'; default: the newest" + help_suffix,
    )


def add_beam_size(parser: argparse.ArgumentParser) -> None:
    """Add `--beam_size`, which overrides the run's search settings."""
    parser.add_argument(
        "--beam_size",
        type=positive_int,
        metavar="N",
        help="hypotheses per sentence (1: greedy search); default: the run's Decode settings",
    )


def add_pivot(parser: argparse.ArgumentParser) -> None:
    """Add `--pivot`, the language to translate through."""
    parser.add_argument(
        "--pivot",
        metavar="CODE",
        help="pivot language: translate into CODE, then from CODE into the target; directions "
        "from or into CODE are translated directly; default: no pivot",
    )


def add_retry(parser: argparse.ArgumentParser) -> None:
    """Add `--retry_off_target`, `--retry_pivot` and `--lid`."""
    parser.add_argument(
        "--retry_off_target",
        action="store_true",
        help="search translations in the wrong language, copies of the source, loops and empty "
        "ones again, with language contrast and then through a pivot",
    )
    parser.add_argument(
        "--retry_pivot",
        metavar="CODE",
        help="pivot language of --retry_off_target; default: English, if the model has it",
    )
    parser.add_argument(
        "--lid",
        metavar="NAME|FILE",
        help="detector of the languages of translations, for --retry_off_target and --checks: "
        f"{LID176}, {LANGDETECT} or a fastText model; default: {LID176}",
    )


def check_retry(flags: argparse.Namespace) -> None:
    """Check the flags of `add_retry`, and set the default of `--lid`.

    Raises:
        UserError: if one is given without the flag that reads it.
    """
    if flags.retry_pivot and not flags.retry_off_target:
        raise UserError("--retry_pivot is the pivot of --retry_off_target; add that flag")
    if flags.lid is None:
        flags.lid = LID176
    elif not flags.retry_off_target and not flags.checks:
        raise UserError(
            f"--lid={flags.lid}: is the detector of --retry_off_target and --checks; add one"
        )


def import_modules(names: Sequence[str]) -> None:
    """Import modules named by the user, searching the current folder first.

    Raises:
        UserError: if a name is not a module name, or the module cannot be imported.
    """
    if not names:
        return
    for name in names:
        if name.endswith(".py") or not all(
            component.isidentifier() for component in name.split(".")
        ):
            raise UserError(
                f"--module_import={name}: must be the name of a module, such as my_tasks, without "
                "a folder and without .py"
            )
    working_directory = os.getcwd()
    sys.path.insert(0, working_directory)
    try:
        for name in names:
            importlib.import_module(name)
    except (ImportError, SyntaxError) as error:
        raise UserError(f"--module_import={name}: {error}; {_remedy(error, names)}") from error
    finally:
        # Later imports by these modules still work, but no file here shadows an installed module.
        sys.path.remove(working_directory)
        sys.path.append(working_directory)


def _remedy(error: Exception, names: Sequence[str]) -> str:
    """Return the remedy for a module that cannot be imported."""
    missing = getattr(error, "name", None) or ""
    if not isinstance(error, ModuleNotFoundError):
        return "correct it"
    if missing in names:
        return "this folder and PYTHONPATH were searched"
    if missing.startswith("mnmt_jax."):
        return "this version has no such module; mnmt_jax/__init__.py lists the packages"
    return f"install it (seqio: {install_remedy('seqio')}; t5x: {docs_page('t5x.md')})"


def _split_bindings(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split `--gin.NAME=VALUE` and `--gin.NAME VALUE` from the other arguments."""
    others: list[str] = []
    bindings: list[str] = []
    remaining = iter(argv)
    for argument in remaining:
        if argument == "--":
            return [*others, argument, *remaining], bindings
        if not argument.startswith(_PREFIX):
            others.append(argument)
            continue
        name, equals, value = argument[len(_PREFIX) :].partition("=")
        if not equals:
            value = next(remaining, "")
        if not name or not value:
            raise UserError(f"'{argument}' must be {_PREFIX}NAME=VALUE")
        bindings.append(f"{name}={value}")
    return others, bindings


def split_list(text: str | None) -> list[str]:
    """Return the items of a comma-separated list, without blanks and empty items."""
    return [item.strip() for item in (text or "").split(",") if item.strip()]


def list_of(flag: str, text: str | None, *, repeats: bool = False) -> list[str]:
    """Return the items of a flag that is a list; none if the flag is absent.

    Args:
        flag: name of the flag, for the error.
        text: its value; None without the flag.
        repeats: whether an item may be repeated, because the command checks its meaning.

    Raises:
        UserError: if the list is empty, as `--languages="$UNSET"` of a shell, or an item is
            repeated.
    """
    items = split_list(text)
    if text is not None and not items:
        raise UserError(f"{flag}: names nothing; write a list, or leave the flag out")
    if not repeats:
        check_distinct(flag, items)
    return items


def check_distinct(flag: str, items: Sequence[Any]) -> None:
    """Check that the items of a flag differ.

    Args:
        flag: name of the flag, for the error.
        items: its items.

    Raises:
        UserError: naming the first repeated item.
    """
    for number, item in enumerate(items):
        if item in items[:number]:
            raise UserError(f"{flag}: {item} is named twice; leave one of them out")
