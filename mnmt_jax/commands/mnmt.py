"""`mnmt COMMAND`: all commands under one name."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

from mnmt_jax import __version__
from mnmt_jax.commands.arguments import CommandParser
from mnmt_jax.errors import UserError
from mnmt_jax.files.storage import one_line
from mnmt_jax.runtime.run_command import run_command

# Each is a module of this room, named alike or as said in `_MODULES`.
COMMANDS = {
    "train": "train a model, or continue a training",
    "translate": "translate lines of text",
    "score": "print how probable given texts or translations are",
    "sample": "draw texts from a language model",
    "evaluate": "translate and score every direction of a test set",
    "analyse": "draw attention, states and language branches of a model, probe it",
    "compare": "set evaluations of several runs side by side",
    "back-translate": "make pseudo pairs of training data with a run, and train on them in rounds",
    "cache": "write the token cache that training reads",
    "vocabulary": "train a vocabulary, adopt a SentencePiece model, or split pieces by language",
    "languages": "list languages, or say how a code is understood",
    "corpus": "write the embedded corpus as files",
    "fetch": "fetch a corpus that packages of Debian hold",
    "describe": "print parameters, FLOPs and bytes of a configuration",
    "compile-ahead": "compile a run for TPUs or GPUs that need not be there",
    "import": "turn a checkpoint of another toolkit into a run",
    "export": "write a run's model for another toolkit",
    "average": "average checkpoints of a run",
    "adapters": "save, load or merge LoRA",
    "add-language": "make a run of a trained one that has a language more",
}
_MODULES = {"import": "import_checkpoint", "export": "export_checkpoint"}
_FILE_FLAGS = ("input", "reference", "output", "results", "parallel", "tsv", "bitext")
_COMPLETED_AS_FILES = ("FILE", "RUN", "DIR", "CACHE", "P", "MODEL", "FOLDER")


def main() -> int | None:
    """Runs the command that the first argument names."""
    given = sys.argv[1:]
    if given and given[0] in COMMANDS:
        sys.argv = [f"mnmt {given[0]}", *given[1:]]
        return module_of(given[0]).main()
    if given and not given[0].startswith("-"):
        near = difflib.get_close_matches(given[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "mnmt --help lists them"
        raise UserError(f"{given[0]}: no such command; {hint}")
    flags = _parser().parse_args(given)
    if flags.version:
        print(_versions())
    elif flags.completion:
        print(completion(flags.completion))
    else:
        _parser().print_help()
    return 0


def run() -> None:
    """Runs `main`; what the installed `mnmt` starts."""
    run_command(main)


def module_of(name: str) -> ModuleType:
    """Imports the module of a command; it has `make_parser` and `main`."""
    module = _MODULES.get(name, name.replace("-", "_"))
    return importlib.import_module(f"mnmt_jax.commands.{module}")


def completion(shell: str) -> str:
    """Returns the script that completes command lines.

    Args:
        shell: `bash`, `zsh` or `tcsh`.
    """
    import shtab

    parser = CommandParser(prog="mnmt")
    _add_flags(parser)
    commands = parser.add_subparsers()
    for name, text in COMMANDS.items():
        own = module_of(name).make_parser()
        commands.add_parser(name, help=text, parents=[own], add_help=False)
    for action in _actions(parser):
        if action.metavar in _COMPLETED_AS_FILES or action.dest in _FILE_FLAGS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell=shell)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields the arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for own in action.choices.values():
                yield from _actions(own)


def _parser() -> CommandParser:
    width = max(map(len, COMMANDS)) + 2
    listed = "\n".join(f"  {name:{width}}{text}" for name, text in COMMANDS.items())
    parser = CommandParser(
        prog="mnmt",
        usage="mnmt COMMAND [ARGUMENTS]; mnmt COMMAND --help",
        description="Multilingual neural machine translation in JAX and Flax.",
        epilog=f"commands:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_flags(parser)
    return parser


def _add_flags(parser: CommandParser) -> None:
    parser.add_argument("--version", action="store_true", help="print versions and devices")
    parser.add_argument(
        "--completion",
        choices=("bash", "zsh", "tcsh"),
        metavar="SHELL",
        help='print what completes command lines; bash: eval "$(mnmt --completion bash)"',
    )


def _versions() -> str:
    import jax

    try:
        devices = jax.devices()
    except (RuntimeError, AssertionError) as error:  # what JAX_PLATFORMS names is not there
        kind = f"no device ({one_line(error)})"
    else:
        kind = f"{len(devices)} {devices[0].device_kind} ({devices[0].platform})"
    return f"mnmt-jax {__version__}, jax {jax.__version__}, {kind}"
