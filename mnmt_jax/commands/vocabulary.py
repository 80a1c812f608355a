"""Trains a SentencePiece vocabulary on a corpus, or adopts an existing SentencePiece model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands.arguments import CommandParser, positive
from mnmt_jax.commands.corpus_arguments import (
    FILE_FLAGS,
    add_corpus_arguments,
    refuse_flags,
    split_list,
)
from mnmt_jax.errors import UserError

if TYPE_CHECKING:
    from mnmt_jax.vocabulary.pieces import Vocabulary

# Flags of the training itself: their types, and what they say.
_OPTIONS: dict[str, tuple[Callable[[str], Any], str]] = {
    "vocab_size": (positive, "pieces without tags (8000)"),
    "character_coverage": (float, "(1.0)"),
    "normalization": (str, "identity (default), nmt_nfkc, nfkc, ..."),
    "sentences": (positive, "drawn at most (1000000)"),
    "temperature": (float, "flattens languages' shares (5)"),
    "seed": (int, "of the draw (0)"),
}


def make_parser() -> CommandParser:
    """Makes the parser of the command line."""
    parser = CommandParser(description=__doc__)
    which = add_corpus_arguments(parser)
    which.add_argument(
        "--sentencepiece", metavar="MODEL", help="adopt this .model file; needs --languages"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to write to")
    for flag, (kind, text) in _OPTIONS.items():
        parser.add_argument(f"--{flag}", type=kind, help=text)
    parser.add_argument("--model_type", choices=("unigram", "bpe"), help="(unigram)")
    return parser


def main() -> None:
    """Writes the vocabulary and prints a summary as JSON on stdout."""
    arguments = make_parser().parse_args()
    from mnmt_jax.vocabulary.pieces import check_vocabulary_folder

    check_vocabulary_folder(arguments.output)
    make = _adopt if arguments.sentencepiece else _train
    vocabulary = make(arguments, [*_OPTIONS, "model_type"])
    summary = {
        "output": arguments.output,
        "size": vocabulary.size,
        "languages": list(vocabulary.languages),
        "fingerprint": vocabulary.fingerprint,
    }
    print(json.dumps(summary, indent=2))


def _adopt(arguments: argparse.Namespace, options: list[str]) -> Vocabulary:
    """Wraps a model that is there."""
    from mnmt_jax.vocabulary.pieces import Vocabulary

    others = [flag for flag in FILE_FLAGS if flag != "languages"]
    refuse_flags(arguments, ("name", "directions", *others, *options), "--sentencepiece")
    languages = split_list(arguments.languages)
    if not languages:
        raise UserError("--sentencepiece needs --languages, the order of the tags: en,de,fr")
    vocabulary = Vocabulary.from_sentencepiece(arguments.sentencepiece, languages)
    vocabulary.save(arguments.output)
    return vocabulary


def _train(arguments: argparse.Namespace, options: list[str]) -> Vocabulary:
    """Trains a model on a corpus."""
    from mnmt_jax.commands.corpus_arguments import corpus_and_directions
    from mnmt_jax.data.mixtures import language_text
    from mnmt_jax.vocabulary.pieces import SentencePieceOptions, train_sentencepiece

    given = {name: getattr(arguments, name) for name in options}
    chosen = SentencePieceOptions(**{n: value for n, value in given.items() if value is not None})
    corpus, directions = corpus_and_directions(arguments)
    print(f"reading {corpus.name}", file=sys.stderr)
    text = language_text(corpus, directions, chosen.sentences)
    print(f"training {chosen.vocab_size} pieces", file=sys.stderr)
    return train_sentencepiece(text, arguments.output, options=chosen)
