"""Phrases in four languages for tests of benchmarks and evaluations."""

from mnmt_jax.data.parallel_corpora import CldrPhrases
from mnmt_jax.vocabulary.languages import english_centric_directions

LANGUAGES = ("en", "de", "fr", "cs")
SENTENCES = 60
SUPERVISED = frozenset(english_centric_directions(LANGUAGES))


def make_corpus() -> CldrPhrases:
    return CldrPhrases(LANGUAGES, sizes={"test": SENTENCES}, name="phrases")
