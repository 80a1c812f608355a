"""Cost of byte fallback: pieces of held-out text with and without the 256 byte pieces.

    python benchmarks/byte_fallback.py --mixture cldr_quickstart --vocab_size 1500

Prints a row per vocabulary size: pieces of the validation text, and the increase in per cent.
"""

from __future__ import annotations

import argparse

from mnmt_jax.data.mixtures import get_mixture, language_text, mixture_corpus
from mnmt_jax.data.parallel_corpora import Corpus
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import train_model
from mnmt_jax.vocabulary.vocabulary import Vocabulary


def main() -> None:
    """Train the vocabularies and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mixture", default="cldr_quickstart")
    parser.add_argument("--vocab_size", type=int, nargs="+", default=[1500])
    parser.add_argument(
        "--sentences", type=int, default=1_000_000, help="maximum number to train on"
    )
    flags = parser.parse_args()
    mixture = get_mixture(flags.mixture)
    corpus = mixture_corpus(mixture)
    text = language_text(corpus, mixture.directions, flags.sentences)
    print(
        "| vocabulary size | without bytes | with bytes | increase |\n| ---: | ---: | ---: | ---: |"
    )
    for size in flags.vocab_size:
        counts = []
        for byte_fallback in (False, True):
            options = SentencePieceOptions(
                vocab_size=size, byte_fallback=byte_fallback, sentences=flags.sentences
            )
            vocabulary = Vocabulary(train_model(text, options), tuple(text), normalization="nfc")
            counts.append(_pieces(corpus, mixture.directions, vocabulary))
        increase = 100 * (counts[1] / counts[0] - 1)
        print(f"| {size:,} | {counts[0]:,} | {counts[1]:,} | {increase:.1f} % |", flush=True)


def _pieces(corpus: Corpus, directions: tuple, vocabulary: Vocabulary) -> int:
    """Return the number of pieces of the validation text, both sides."""
    return sum(
        len(ids)
        for direction in directions
        for pair in corpus.pairs("validation", direction)
        for ids in vocabulary.encode_lines(pair)
    )


if __name__ == "__main__":
    main()
