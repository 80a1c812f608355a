"""Train a SentencePiece vocabulary on a corpus, or adopt an existing SentencePiece model.

With --lavs, split the shared pieces of an existing vocabulary into language-specific copies.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands.bridge_flags import DIRECTION_FLAGS
from mnmt_jax.commands.common_flags import (
    CommandParser,
    list_of,
    positive_int,
    seed_value,
    split_list,
)
from mnmt_jax.commands.context_flags import add_separator
from mnmt_jax.commands.corpus_flags import FILE_FLAGS, add_corpus_flags, refuse_flags
from mnmt_jax.errors import UserError, join_names, warn
from mnmt_jax.vocabulary.language_codes import canonical_codes
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions

if TYPE_CHECKING:
    from mnmt_jax.vocabulary.lavs import PieceCounts, PiecesByLanguage
    from mnmt_jax.vocabulary.vocabulary import Vocabulary

    Made = tuple[Vocabulary, dict[str, Any]]

# Flags of the training itself: their types and help texts; defaults are those of the options.
_OPTIONS: dict[str, tuple[Callable[[str], Any], str]] = {
    "vocab_size": (positive_int, "pieces, without {uncounted}"),
    "character_coverage": (float, "fraction of characters covered by pieces"),
    "normalization": (str, "SentencePiece normalization rule, e.g. nmt_nfkc, nfkc"),
    "sentences": (positive_int, "maximum number of sampled sentences"),
    "temperature": (float, "sampling temperature over languages"),
    "seed": (seed_value, "random seed of the sample"),
}
TRAINING_FLAGS = (*_OPTIONS, "model_type")
"""Flags of each training of a SentencePiece model."""

_TRAINING_FLAGS = (*TRAINING_FLAGS, "byte_fallback", "text_normalization")
# The rule of --lavs that uses a flag.
_RULE_OF = {"lavs_threshold": "code", "lavs_copies": "code", "lavs_pairs": "paper"}
_THRESHOLD = 20  # rule of the authors' script


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__)
    which = add_corpus_flags(parser)
    which.add_argument(
        "--sentencepiece", metavar="MODEL", help="existing .model file to adopt; needs --languages"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="vocabulary folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing vocabulary")
    add_training_options(parser)
    add_byte_fallback(parser)
    parser.add_argument(
        "--text_normalization",
        choices=("nfc", "none"),
        help="normalization before encoding, stored with the vocabulary; nfc: Unicode NFC, "
        "uniform spaces, no zero-width spaces; default: nfc, or none with --sentencepiece",
    )
    add_separator(parser, "piece for the separator of sentences in chunks (mnmt cache --context)")
    parser.add_argument(
        "--english_from",
        metavar="LIST",
        help="read English in its pairs with these languages alone, e.g. ar,zh, and every other "
        "language in its pair with English; default: read all pairs",
    )
    group = parser.add_argument_group("language-aware vocabulary sharing")
    group.add_argument(
        "--lavs",
        choices=("code", "paper"),
        help="split pieces of --vocabulary shared by several languages, by the rule of the "
        "authors' code or of the paper; no training",
    )
    group.add_argument("--vocabulary", metavar="DIR", help="vocabulary to split")
    group.add_argument(
        "--lavs_threshold",
        type=positive_int,
        metavar="N",
        help="--lavs code: split a piece seen more than N times in at least two languages; "
        f"default: {_THRESHOLD}",
    )
    group.add_argument(
        "--lavs_copies",
        type=positive_int,
        metavar="N",
        help="--lavs code: choose the smallest threshold that makes at most N copies, e.g. 12500",
    )
    group.add_argument(
        "--lavs_pairs",
        type=positive_int,
        metavar="N",
        help="--lavs paper: number of (piece, language pair) items to split, most shared first",
    )
    return parser


def add_training_options(parser: argparse.ArgumentParser, uncounted: str = "language tags") -> None:
    """Add the flags for training a SentencePiece model.

    Args:
        parser: receives the flags.
        uncounted: what `--vocab_size` leaves out.
    """
    for flag, (kind, text) in _OPTIONS.items():
        parser.add_argument(
            f"--{flag}",
            type=kind,
            metavar="N" if kind is not str else "RULE",
            help=f"{text.format(uncounted=uncounted)}; default: {_default(flag)}",
        )
    parser.add_argument(
        "--model_type",
        choices=("unigram", "bpe"),
        help=f"default: {SentencePieceOptions.model_type}",
    )


def _default(flag: str) -> str:
    value = getattr(SentencePieceOptions, flag)
    return f"{value:g}" if isinstance(value, float) else str(value)


def add_byte_fallback(parser: argparse.ArgumentParser) -> None:
    """Add `--byte_fallback`, for training a SentencePiece model."""
    parser.add_argument(
        "--byte_fallback",
        action=argparse.BooleanOptionalAction,
        help="encode characters outside the vocabulary as bytes, with 256 byte pieces; default: on",
    )


def training_options(arguments: argparse.Namespace, flags: Sequence[str]) -> SentencePieceOptions:
    """Return the training options set by flags.

    Args:
        arguments: parsed arguments.
        flags: flags that the command has.

    Raises:
        UserError: if a value is invalid.
    """
    values = {name: getattr(arguments, name) for name in flags}
    return SentencePieceOptions(**{n: value for n, value in values.items() if value is not None})


def main() -> None:
    """Write the vocabulary and print a summary as JSON on stdout."""
    arguments = make_parser().parse_args()
    make = _split if arguments.lavs else _adopt if arguments.sentencepiece else _train
    if make is not _split:
        refuse_flags(arguments, ("vocabulary", *_RULE_OF), "a new vocabulary, without --lavs")
    if make is not _train:
        refuse_flags(arguments, ["english_from", "separator"], "an existing vocabulary")
    vocabulary, facts = make(arguments)
    summary = {
        "output": arguments.output,
        "size": vocabulary.size,
        "languages": list(vocabulary.languages),
        "fingerprint": vocabulary.fingerprint,
        **facts,
    }
    print(json.dumps(summary, indent=2))


def _check_output(arguments: argparse.Namespace, vocabulary: Vocabulary | None = None) -> None:
    """Check that --output may be written; it may already contain the same vocabulary.

    Raises:
        UserError: otherwise.
    """
    from mnmt_jax.vocabulary.vocabulary_files import check_vocabulary_folder

    fingerprint = None if vocabulary is None else vocabulary.fingerprint
    check_vocabulary_folder(
        arguments.output, overwrite=arguments.overwrite, fingerprint=fingerprint
    )


def _save(arguments: argparse.Namespace, vocabulary: Vocabulary) -> None:
    """Write the vocabulary to --output, replacing an earlier one or as a new folder.

    Raises:
        UserError: if it cannot be written, or another process has written there in the meantime.
    """
    from mnmt_jax.files.atomic_write import locked, new_folder
    from mnmt_jax.vocabulary.vocabulary_files import FACTS_FILE

    folder = Path(arguments.output)
    if (folder / FACTS_FILE).is_file():
        with locked(folder):
            _check_output(arguments, vocabulary)
            vocabulary.save(folder)
        return
    with new_folder(folder) as partial:
        vocabulary.save(partial)


def _adopt(arguments: argparse.Namespace) -> Made:
    """Create a vocabulary from an existing model."""
    from mnmt_jax.vocabulary.vocabulary import Vocabulary

    inapplicable = [flag for flag in FILE_FLAGS if flag != "languages"]
    training = [flag for flag in _TRAINING_FLAGS if flag != "text_normalization"]
    flags = ("name", "monolingual", *DIRECTION_FLAGS, *inapplicable, *training)
    refuse_flags(arguments, flags, "--sentencepiece")
    languages = canonical_codes(split_list(arguments.languages), "--languages")
    if not languages:
        raise UserError("--sentencepiece needs --languages, the order of the tags: en,de,fr")
    vocabulary = Vocabulary.from_sentencepiece(arguments.sentencepiece, languages)
    if arguments.text_normalization:
        vocabulary = dataclasses.replace(vocabulary, normalization=arguments.text_normalization)
    _check_output(arguments, vocabulary)
    _save(arguments, vocabulary)
    return vocabulary, {}


def _train(arguments: argparse.Namespace) -> Made:
    """Train a model on a corpus."""
    from mnmt_jax.commands.corpus_flags import corpus_and_directions
    from mnmt_jax.data.document_context import Context
    from mnmt_jax.data.mixtures import language_lines
    from mnmt_jax.vocabulary.sentencepiece_training import train_sentencepiece

    _check_output(arguments)
    options = training_options(arguments, _TRAINING_FLAGS)
    if arguments.separator is not None:
        symbols = (Context(1, arguments.separator).separator,)
        options = dataclasses.replace(options, symbols=symbols)
    if arguments.english_from and (arguments.monolingual or arguments.text):
        raise UserError("--english_from chooses pairs; omit it with text of single languages")
    corpus, directions = corpus_and_directions(arguments)
    english_from = canonical_codes(
        list_of("--english_from", arguments.english_from), "--english_from"
    )
    text = language_lines(corpus, directions, english_from)
    print(f"reading {corpus.name} to train {options.vocab_size} pieces", file=sys.stderr)
    vocabulary = train_sentencepiece(text, None, options=options)
    _save(arguments, vocabulary)
    return vocabulary, {}


def _split(arguments: argparse.Namespace) -> Made:
    """Split pieces shared by languages into language-specific copies."""
    from mnmt_jax.commands.corpus_flags import corpus_and_directions
    from mnmt_jax.data.mixtures import language_lines
    from mnmt_jax.vocabulary import lavs
    from mnmt_jax.vocabulary.vocabulary import Vocabulary

    _check_split(arguments)
    _check_output(arguments)
    base = Vocabulary.load(arguments.vocabulary)
    corpus, directions = corpus_and_directions(arguments)
    print(f"counting the pieces of {corpus.name}", file=sys.stderr)
    counts = lavs.count_pieces(base, language_lines(corpus, directions))
    if silent := [code for code in base.languages if code not in counts]:
        warn(f"no text in {join_names(silent)}: these languages get no copies")
    rule = _by_code if arguments.lavs == "code" else _by_paper
    flagged, split, setting = rule(arguments, counts, lavs.candidate_pieces(base))
    vocabulary = base.with_copies(lavs.language_copies(split))
    _save(arguments, vocabulary)
    distinct = [len(set().union(*pieces.values())) for pieces in (flagged, split)]
    facts = {
        "rule": arguments.lavs,
        **setting,
        "flagged_pieces": distinct[0],
        "left_shared_by_their_characters": distinct[0] - distinct[1],
        "split_pieces": distinct[1],
        "copies": len(vocabulary.copies),
        "size_before": base.size,
        "pieces_and_copies_in_text": lavs.count_used_pieces(counts, split),
    }
    return vocabulary, {"lavs": facts}


def _by_code(
    arguments: argparse.Namespace, counts: PieceCounts, pieces: Sequence[str]
) -> tuple[PiecesByLanguage, PiecesByLanguage, dict[str, int]]:
    """Return the pieces flagged by the code's rule, those that it splits, and its setting."""
    from mnmt_jax.vocabulary import lavs

    threshold = arguments.lavs_threshold or _THRESHOLD
    if arguments.lavs_copies:
        threshold = lavs.threshold_for(counts, pieces, arguments.lavs_copies)
    flagged = lavs.flag_by_threshold(counts, pieces, threshold)
    split = lavs.splittable_pieces(flagged)
    if not any(split.values()):
        remedy = "raise --lavs_copies" if arguments.lavs_copies else "lower --lavs_threshold"
        raise UserError(
            f"no piece that may be split occurs more than {threshold} times in the text of each of "
            f"two languages; {remedy} or give more text"
        )
    return flagged, split, {"threshold": threshold}


def _by_paper(
    arguments: argparse.Namespace, counts: PieceCounts, pieces: Sequence[str]
) -> tuple[PiecesByLanguage, PiecesByLanguage, dict[str, int]]:
    """Return the same as `_by_code` for the published rule, which splits all flagged pieces."""
    from mnmt_jax.vocabulary import lavs

    flagged = lavs.flag_by_sharing(counts, pieces, arguments.lavs_pairs)
    if not any(flagged.values()):
        raise UserError("no two languages share a piece; there is nothing to split")
    return flagged, flagged, {"pairs": arguments.lavs_pairs}


def _check_split(arguments: argparse.Namespace) -> None:
    """Check the flags that belong to `--lavs`.

    Raises:
        UserError: if one is missing, or belongs to another rule or to training.
    """
    flags = ("sentencepiece", *_TRAINING_FLAGS)
    refuse_flags(arguments, flags, "--lavs, which trains no pieces")
    inapplicable = [flag for flag, rule in _RULE_OF.items() if rule != arguments.lavs]
    refuse_flags(arguments, inapplicable, f"--lavs {arguments.lavs}")
    if arguments.lavs_threshold and arguments.lavs_copies:
        raise UserError("--lavs_copies chooses the threshold; omit --lavs_threshold")
    if not arguments.vocabulary:
        raise UserError("--lavs needs --vocabulary, a folder that 'mnmt vocabulary' wrote")
    if arguments.lavs == "paper" and not arguments.lavs_pairs:
        raise UserError("--lavs paper needs --lavs_pairs, e.g. 6000 for at most 12000 copies")
    if Path(arguments.vocabulary).resolve() == Path(arguments.output).resolve():
        raise UserError("--output: is the folder of --vocabulary; choose another")
