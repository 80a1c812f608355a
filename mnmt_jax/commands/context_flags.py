"""Flags of document context: chunk sizes, separator, document ids."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mnmt_jax.commands.common_flags import check_distinct, list_of
from mnmt_jax.data.document_context import SEPARATOR, Context
from mnmt_jax.errors import UserError

if TYPE_CHECKING:
    from mnmt_jax.data.corpus import Corpus

LONGEST = 0
"""Value of `--context` without a number: the longest context of the training."""


def add_document_ids(parser: argparse.ArgumentParser) -> None:
    """Add `--document_ids`."""
    parser.add_argument(
        "--document_ids",
        metavar="PATTERN",
        help="files with the document id of each line of --parallel or --tsv, for --context, e.g. "
        "'data/{split}.ids'; '{pair}' stands for a language pair",
    )


def add_separator(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Add `--separator`; its default is None."""
    parser.add_argument("--separator", metavar="TEXT", help=purpose)


def add_context(parser: argparse.ArgumentParser) -> None:
    """Add the flags of tasks whose examples are chunks of documents."""
    add_document_ids(parser)
    parser.add_argument(
        "--context",
        metavar="LIST",
        help="also write tasks whose examples are chunks of consecutive sentences of a document, "
        "of at most so many source pieces, e.g. 64,128; needs document ids",
    )
    purpose = f"separator of the sentences of a chunk, for --context; default: {SEPARATOR}"
    add_separator(parser, purpose)


def add_trained_context(parser: argparse.ArgumentParser) -> None:
    """Add `--context`, the context that a model was trained with."""
    parser.add_argument(
        "--context",
        nargs="?",
        type=int,
        const=LONGEST,
        metavar="N",
        help="translate sentences together with the others of their document, in chunks of at "
        "most N pieces as in training; without N, in the longest chunks of the training",
    )


def parse_contexts(arguments: argparse.Namespace, corpus: Corpus) -> list[Context]:
    """Return the contexts of `mnmt cache`: one for each number of `--context`.

    Raises:
        UserError: if a number or the separator is invalid, a flag is missing or conflicts, or the
            corpus has no document ids.
    """
    numbers = list_of("--context", arguments.context)
    if not numbers:
        if arguments.separator or arguments.document_ids:
            flag = "separator" if arguments.separator else "document_ids"
            raise UserError(f"--{flag} needs --context, such as --context=64,128")
        return []
    if invalid := [number for number in numbers if not number.isdecimal()]:
        raise UserError(f"--context: {invalid[0]!r} must be a number of pieces, such as 128")
    pieces = list(map(int, numbers))
    check_distinct("--context", pieces)
    if arguments.monolingual or arguments.text:
        flag = "monolingual" if arguments.monolingual else "text"
        raise UserError(f"--context is for pairs of languages; leave it or --{flag} out")
    if corpus.document_ids is None:
        raise UserError("--context needs --document_ids, the files with the document of each line")
    if arguments.share is not None:
        raise UserError("--context needs whole documents; leave --share out")
    return [Context(number, arguments.separator or SEPARATOR) for number in pieces]
