"""Small made corpora and vocabularies for tests of the data path."""

from __future__ import annotations

import functools
import tempfile

from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import train_sentencepiece
from mnmt_jax.vocabulary.vocabulary import Vocabulary

LANGUAGES = ("en", "de", "fr")
_WORDS = {
    "en": ("one", "two", "three", "house", "river", "green", "small", "and", "runs", "behind"),
    "de": ("eins", "zwei", "drei", "Haus", "Fluss", "grün", "klein", "und", "läuft", "hinter"),
    "fr": ("un", "deux", "trois", "maison", "rivière", "vert", "petit", "et", "court", "derrière"),
}


def sentence(number: int, language: str) -> str:
    """Return the words at the digits of a number, so that languages are parallel."""
    return " ".join(_WORDS[language][int(digit)] for digit in str(number * 7919))


def sentences(language: str, count: int, start: int = 1) -> list[str]:
    """Return `count` sentences of a language."""
    return [sentence(number, language) for number in range(start, start + count)]


@functools.cache
def vocabulary() -> Vocabulary:
    """Return one small vocabulary of the three languages, trained once per test run."""
    text = {language: sentences(language, 300) for language in LANGUAGES}
    options = SentencePieceOptions(vocab_size=60, byte_fallback=False)
    with tempfile.TemporaryDirectory() as directory:
        return train_sentencepiece(text, directory, options=options)
