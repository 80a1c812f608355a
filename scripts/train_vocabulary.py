"""Trains a SentencePiece vocabulary on a corpus, or adopts an existing SentencePiece model."""

from __future__ import annotations

import json
import sys

from mnmt_jax.cli import CommandParser
from mnmt_jax.data.corpus_arguments import add_corpus_arguments
from mnmt_jax.errors import UserError, run_command


def main() -> None:
    """Writes the vocabulary and prints a summary as JSON on stdout."""
    parser = CommandParser(description=__doc__)
    which = add_corpus_arguments(parser)
    which.add_argument(
        "--sentencepiece", metavar="MODEL", help="adopt this .model file; needs --languages"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to write to")
    parser.add_argument("--vocab_size", type=int, default=8000, help="pieces without tags (8000)")
    parser.add_argument("--model_type", default="unigram", choices=("unigram", "bpe"))
    parser.add_argument("--character_coverage", type=float, default=1.0, help="(1.0)")
    parser.add_argument(
        "--normalization", default="identity", help="identity (default), nmt_nfkc, nfkc, ..."
    )
    parser.add_argument("--sentences", type=int, default=1_000_000, help="drawn at most (1000000)")
    parser.add_argument(
        "--temperature", type=float, default=5.0, help="flattens the languages' shares (5)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    arguments = parser.parse_args()

    from mnmt_jax.data.corpus_arguments import corpus_and_directions, split_list
    from mnmt_jax.data.mixtures import language_text
    from mnmt_jax.vocabulary import SentencePieceOptions, Vocabulary, train_sentencepiece

    if arguments.sentencepiece:
        languages = split_list(arguments.languages)
        if not languages:
            raise UserError("--sentencepiece needs --languages, the order of the tags: en,de,fr")
        vocabulary = Vocabulary.from_sentencepiece(arguments.sentencepiece, languages)
        vocabulary.save(arguments.output)
    else:
        options = SentencePieceOptions(
            vocab_size=arguments.vocab_size,
            model_type=arguments.model_type,
            character_coverage=arguments.character_coverage,
            normalization=arguments.normalization,
            sentences=arguments.sentences,
            temperature=arguments.temperature,
            seed=arguments.seed,
        )
        corpus, directions = corpus_and_directions(arguments)
        print(f"reading {corpus.name}", file=sys.stderr)
        text = language_text(corpus, directions, options.sentences)
        print(f"training {options.vocab_size} pieces", file=sys.stderr)
        vocabulary = train_sentencepiece(text, arguments.output, options=options)
    summary = {
        "output": arguments.output,
        "size": vocabulary.size,
        "languages": list(vocabulary.languages),
        "fingerprint": vocabulary.fingerprint,
    }
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    run_command(main)
