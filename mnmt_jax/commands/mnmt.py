"""Dispatcher of the `mnmt` command line and its shell completion."""

from __future__ import annotations

import argparse
import difflib
import importlib
import re
import sys
from collections.abc import Iterator
from types import ModuleType

from mnmt_jax import __version__
from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.errors import UserError
from mnmt_jax.files.storage_errors import one_line
from mnmt_jax.runtime.huge_pages import restart_with_huge_pages
from mnmt_jax.runtime.run_command import run_command

# Each command is a module of this package, with the same name or the one in `_MODULES`.
COMMANDS = {
    "train": "train a model, or resume training",
    "translate": "translate lines of text",
    "serve": "serve a model over HTTP, for clients of LibreTranslate and DeepL",
    "api-keys": "create, list or revoke the API keys of the server",
    "score": "print log-probabilities of texts or translations, and the perplexity",
    "sample": "sample text from a language model",
    "evaluate": "translate a test set and score every direction",
    "metrics": "make or check the environment of neural metrics",
    "prompt": "write a paper's prompts for test sentences, for language models",
    "benchmark": "time the translation of test sentences",
    "analyse": "analyse attention, hidden states and language branches; train probes",
    "compare": "compare evaluations of several runs",
    "back-translate": "back-translate training data, and optionally train on it in rounds",
    "distill": "replace training targets by the translations of one or several teachers",
    "cache": "tokenize a corpus into the token cache used for training",
    "prepare": "clean, filter and deduplicate text by a recipe into a token cache",
    "vocabulary": "train or adopt a SentencePiece vocabulary, or split shared pieces",
    "languages": "list known languages, or resolve language codes",
    "count": "count the sentence pairs of a corpus by split and direction",
    "corpus": "write the built-in CLDR corpus to files",
    "fetch": "download a corpus from Debian packages",
    "papers": "list the published tables and their numbers",
    "reproduce": "run a published table from data to the page with both numbers",
    "keys": "list the gin keys: values, defaults and meaning",
    "describe": "print parameter count, FLOPs and memory of a configuration",
    "compile-ahead": "compile for TPUs or GPUs without the hardware; report memory and FLOPs",
    "import": "convert a checkpoint of another toolkit into a run",
    "export": "export a run's model for another toolkit",
    "average": "average the checkpoints of a run",
    "adapters": "save, load or merge LoRA weights",
    "add-language": "add a language to a trained run",
}
_MODULES = {"import": "import_checkpoint", "export": "export_checkpoint"}
_FILE_FLAGS = ("input", "reference", "output", "results", "parallel", "tsv", "bitext")
_COMPLETED_AS_FILES = {"FILE", "RUN", "DIR", "CACHE", "P", "MODEL", "FOLDER", "PATH"}


def main() -> int | None:
    """Run the command that the first argument names."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in COMMANDS:
        sys.argv = [f"mnmt {arguments[0]}", *arguments[1:]]
        return module_of(arguments[0]).main()
    if arguments and not arguments[0].startswith("-"):
        matches = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        hint = f"did you mean {matches[0]}?" if matches else "mnmt --help lists them"
        raise UserError(f"{arguments[0]}: no such command; {hint}")
    flags = _parser().parse_args(arguments)
    if flags.version:
        print(_versions())
    elif flags.completion:
        print(completion(flags.completion))
    else:
        _parser().print_help()
    return 0


def run() -> None:
    """Run `main`; entry point of the installed `mnmt`."""
    restart_with_huge_pages()
    run_command(main)


def module_of(name: str) -> ModuleType:
    """Import the module of a command; it has `make_parser` and `main`."""
    module = _MODULES.get(name, name.replace("-", "_"))
    return importlib.import_module(f"mnmt_jax.commands.{module}")


def completion(shell: str) -> str:
    """Return the script that completes command lines.

    Args:
        shell: `bash`, `zsh` or `tcsh`.
    """
    import shtab

    parser = CommandParser(prog="mnmt")
    _add_flags(parser)
    commands = parser.add_subparsers()
    for name, text in COMMANDS.items():
        command_parser = module_of(name).make_parser()
        commands.add_parser(name, help=text, parents=[command_parser], add_help=False)
    for action in _actions(parser):
        words = re.split(r"\W+", str(action.metavar))  # "[NAME=]RUN", "NAME|FILE"
        if not _COMPLETED_AS_FILES.isdisjoint(words) or action.dest in _FILE_FLAGS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell=shell)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from _actions(subparser)


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
        help='print a completion script; for bash: eval "$(mnmt --completion bash)"',
    )


def _versions() -> str:
    import jax

    try:
        devices = jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX_PLATFORMS names an absent platform
        kind = f"no device ({one_line(error)})"
    else:
        kind = f"{len(devices)} {devices[0].device_kind} ({devices[0].platform})"
    return f"mnmt-jax {__version__}, jax {jax.__version__}, {kind}"
