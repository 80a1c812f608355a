"""Tasks and mixtures of the embedded corpus in the 24 languages of MITRE.

One task per direction, `cldr_{source}_{target}`, with training, validation and test splits.

Mixtures:

| mixture | directions |
|---|---|
| `cldr_english_centric`, `cldr_english_centric_zero_shot` | 46 with English; the 506 others |
| `cldr_bridge`, `cldr_bridge_zero_shot` | MITRE's 194; the 358 others |
| `cldr_many_to_many` | all 552 |

A zero-shot mixture is for validation and test: its tasks have a training split only because
`cldr_many_to_many` trains on them.

The vocabulary is read from the directory in the environment variable `MNMT_JAX_CLDR_VOCABULARY`, or
else trained when first needed and kept under `~/.cache/mnmt_jax`.
"""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

from mnmt_jax.data.corpora import Corpus, get_corpus
from mnmt_jax.data.mixtures import MIXTURES, language_text, task_name, zero_shot_directions
from mnmt_jax.languages import MITRE_LANGUAGES, english_centric, many_to_many
from mnmt_jax.seqio_tasks import add_corpus, add_mixture
from mnmt_jax.seqio_vocabulary import PieceVocabulary
from mnmt_jax.vocabulary import SentencePieceOptions, Vocabulary, train_sentencepiece

CORPUS = "cldr"
VOCABULARY_VARIABLE = "MNMT_JAX_CLDR_VOCABULARY"
VOCABULARY_OPTIONS = SentencePieceOptions(vocab_size=8000)
_SENTENCES_PER_LANGUAGE = 10_000


def load_vocabulary() -> Vocabulary:
    """Reads the vocabulary of these tasks, or trains it the first time."""
    chosen = os.environ.get(VOCABULARY_VARIABLE)
    if chosen:
        return Vocabulary.load(chosen)
    directory = Path.home() / ".cache" / "mnmt_jax" / f"cldr-{VOCABULARY_OPTIONS.vocab_size}"
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent) as partial:
            _train(Path(partial) / "vocabulary").rename(directory)
    return Vocabulary.load(directory)


def _train(directory: Path) -> Path:
    directions = english_centric(MITRE_LANGUAGES)
    text = language_text(get_corpus(CORPUS), directions, _SENTENCES_PER_LANGUAGE)
    train_sentencepiece(text, directory, options=VOCABULARY_OPTIONS)
    return directory


def _register(corpus: Corpus) -> None:
    vocabulary = PieceVocabulary(functools.cache(load_vocabulary))
    add_corpus(corpus, directions=many_to_many(corpus.languages), vocabulary=vocabulary)
    for kind in ("english_centric", "bridge", "many_to_many"):
        mixture = MIXTURES[f"{CORPUS}_{kind}"]
        groups = {
            mixture.name: mixture.directions,
            f"{mixture.name}_zero_shot": zero_shot_directions(corpus, mixture.directions),
        }
        for name, directions in groups.items():
            if directions:
                tasks = [task_name(CORPUS, direction) for direction in directions]
                add_mixture(name, tasks, temperature=mixture.temperature)


_register(get_corpus(CORPUS))
