"""Add a language to a trained run: write a new run at step 0 with its language tag and pieces.

A SentencePiece model is trained on text of the language, and those of its pieces that are missing
in the run's vocabulary are appended. Translations of the old languages do not change. To translate
the new language, train the new run on it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands.bridge_flags import DIRECTION_FLAGS
from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_method_import,
    add_step,
    import_modules,
)
from mnmt_jax.commands.corpus_flags import FILE_FLAGS, add_corpus_flags, refuse_flags
from mnmt_jax.commands.vocabulary import (
    TRAINING_FLAGS,
    add_training_options,
    training_options,
)
from mnmt_jax.errors import UserError, docs_page
from mnmt_jax.vocabulary.language_codes import check_new_code, find_code

if TYPE_CHECKING:
    from mnmt_jax.vocabulary.vocabulary import Vocabulary

_TEXT_FLAGS = ("mixture", "parallel", "tsv", "bitext", "text")
_CORPUS_FLAGS = (*_TEXT_FLAGS, "monolingual", "name", *DIRECTION_FLAGS, *FILE_FLAGS)


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(
        description=__doc__,
        epilog=f"To train the new language: {docs_page('finetuning.md')}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", required=True, metavar="RUN", help="trained or imported run")
    add_step(parser)
    add_method_import(parser)
    parser.add_argument(
        "--language", required=True, metavar="CODE", help="code of the new language"
    )
    parser.add_argument("--output", required=True, metavar="RUN", help="run directory to write")
    add_corpus_flags(parser).required = False
    parser.add_argument(
        "--keep_pieces",
        action="store_true",
        help="append no pieces: encode the language with the existing ones; needs no text",
    )
    add_training_options(parser, uncounted="language tags and the run's byte pieces and symbols")
    parser.add_argument(
        "--noise",
        type=float,
        help="scale of the noise that is added to the mean of the existing embedding rows to "
        "initialize the new ones, in units of embed ** -0.5; default: 0.1",
    )
    parser.add_argument(
        "--noise_law",
        choices=("normal", "uniform"),
        help="distribution of the noise; default: normal",
    )
    return parser


def main() -> None:
    """Make the run and print a summary as JSON on stdout."""
    arguments = make_parser().parse_args()
    from mnmt_jax.files.atomic_write import check_output
    from mnmt_jax.runs.new_language import NewRows, add_language, check_language_trains
    from mnmt_jax.runs.run_directory import RunDirectory

    if arguments.noise is not None and not 0 <= arguments.noise <= 100:
        raise UserError(f"--noise={arguments.noise:g} must be at least 0 and at most 100")
    check_output(Path(arguments.output))
    settings = {
        "noise": arguments.noise,
        "distribution": arguments.noise_law,
        "seed": arguments.seed,
    }
    rows = NewRows(**{name: value for name, value in settings.items() if value is not None})
    import_modules(arguments.module_import)
    run = RunDirectory.open(arguments.run)
    run.config()  # raises an error if it is not a run
    old_vocabulary = run.load_vocabulary()
    language = check_new_code(arguments.language, old_vocabulary.languages, "--language")
    arguments.language = language
    check_language_trains(run, language, step=arguments.step)  # training pieces takes minutes
    vocabulary = old_vocabulary.with_language(language, _model(arguments, old_vocabulary))
    add_language(run, arguments.output, vocabulary, rows=rows, step=arguments.step)
    summary: dict[str, Any] = {
        "output": arguments.output,
        "languages": list(vocabulary.languages),
        "size_before": old_vocabulary.size,
        "size": vocabulary.size,
        "new_pieces": len(vocabulary.added_pieces) - len(old_vocabulary.added_pieces),
    }
    print(json.dumps(summary, indent=2))


def _model(arguments: argparse.Namespace, old_vocabulary: Vocabulary) -> bytes | None:
    """Train the language's SentencePiece model; None uses the pieces of the other languages.

    Raises:
        UserError: if there is no text, or too little of it.
    """
    if arguments.keep_pieces:
        flags = (*_CORPUS_FLAGS, *(flag for flag in TRAINING_FLAGS if flag != "seed"))
        refuse_flags(arguments, flags, "--keep_pieces, which trains no pieces")
        return None
    from mnmt_jax.commands.corpus_flags import corpus_and_directions
    from mnmt_jax.data.mixtures import check_training_text, language_lines
    from mnmt_jax.vocabulary.sentencepiece_training import train_model
    from mnmt_jax.vocabulary.user_defined_symbols import user_defined_symbols

    language = arguments.language
    if not any(getattr(arguments, flag) for flag in _TEXT_FLAGS):
        raise UserError(
            f"no text in '{language}': give --text, --parallel, --tsv, --bitext or --mixture, or "
            "--keep_pieces to encode it with the existing pieces"
        )
    options = training_options(arguments, TRAINING_FLAGS)
    corpus, directions = corpus_and_directions(arguments)
    corpus_code = find_code(language, corpus.languages, "--language")
    language_directions = [direction for direction in directions if corpus_code in direction]
    if corpus_code is None or not language_directions:
        raise UserError(
            f"--language={language}: corpus '{corpus.name}' has no training text in this language; "
            f"it has {' '.join(corpus.languages)}"
        )
    check_training_text(corpus, language_directions)
    print(f"training {options.vocab_size} pieces on '{language}'", file=sys.stderr)
    text = {language: language_lines(corpus, language_directions)[corpus_code]}
    options = dataclasses.replace(
        options,
        byte_fallback=bool(old_vocabulary.byte_values),
        text_normalization=old_vocabulary.normalization,
        symbols=user_defined_symbols(old_vocabulary),  # the separator of chunks, for example
    )
    return train_model(
        text,
        options,
        space_first=old_vocabulary.space_first,
        uncounted_pieces=len(old_vocabulary.byte_values) + len(options.symbols),
    )
