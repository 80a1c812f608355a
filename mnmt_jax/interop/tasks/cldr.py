"""seqio tasks and mixtures of the embedded CLDR corpus in the 24 languages of MITRE.

One task per direction, `cldr_{source}_{target}`, with training, validation and test splits.

Mixtures:

| mixture | directions |
|---|---|
| `cldr_english_centric`, `cldr_english_centric_zero_shot` | 46 with English; the 506 others |
| `cldr_bridge`, `cldr_bridge_zero_shot` | MITRE's 194; the 358 others |
| `cldr_many_to_many` | all 552 |

A zero-shot mixture is for validation and test: its tasks have a training split only because
`cldr_many_to_many` trains on them. A token cache of `cldr_bridge` has their validation splits.

The vocabulary is read from the directory in the environment variable `MNMT_JAX_CLDR_VOCABULARY`. If
that is not set, it is trained on first use and cached under `~/.cache/mnmt_jax`, in a folder named
by a hash of everything that it depends on.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import os
import shutil
from pathlib import Path

from mnmt_jax.data.mixtures import MIXTURES, language_text, task_name, zero_shot_directions
from mnmt_jax.data.parallel_corpora import CldrPhrases, Corpus, get_corpus
from mnmt_jax.files.atomic_write import partial_path
from mnmt_jax.files.file_digest import short_digest
from mnmt_jax.interop.seqio.tasks import add_corpus, add_mixture
from mnmt_jax.interop.seqio.vocabulary import PieceVocabulary
from mnmt_jax.runtime.user_cache import user_cache_folder
from mnmt_jax.vocabulary.languages import (
    MITRE_LANGUAGES,
    english_centric_directions,
    many_to_many_directions,
)
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import train_sentencepiece
from mnmt_jax.vocabulary.vocabulary import Vocabulary

CORPUS = "cldr"
VOCABULARY_VARIABLE = "MNMT_JAX_CLDR_VOCABULARY"
VOCABULARY_OPTIONS = SentencePieceOptions(vocab_size=8000)
_SENTENCES_PER_LANGUAGE = 10_000


def load_vocabulary() -> Vocabulary:
    """Read the vocabulary of these tasks; train and cache it on first use."""
    override = os.environ.get(VOCABULARY_VARIABLE)
    if override:
        return Vocabulary.load(override)
    directory = cached_directory(user_cache_folder())
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        partial = partial_path(directory)  # removes leftovers of killed processes
        try:
            _rename_unless_exists(_train(partial), directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return Vocabulary.load(directory)


def cached_directory(parent: Path) -> Path:
    """Return the cache folder for the current text, options and SentencePiece version."""
    corpus = get_corpus(CORPUS)
    assert isinstance(corpus, CldrPhrases)
    key = {
        "corpus": corpus.cldr.describe(),
        "size": corpus.size("train", ("en", "de")),
        "options": dataclasses.asdict(VOCABULARY_OPTIONS),
        "sentences": _SENTENCES_PER_LANGUAGE,
        "sentencepiece": importlib.metadata.version("sentencepiece"),
    }
    digest = short_digest(json.dumps(key, sort_keys=True))
    return parent / f"{CORPUS}-{VOCABULARY_OPTIONS.vocab_size}-{digest}"


def _rename_unless_exists(source: Path, directory: Path) -> None:
    """Rename a folder unless another process has already created an identical one."""
    try:
        source.rename(directory)
    except OSError:
        if not directory.exists():
            raise


def _train(directory: Path) -> Path:
    directions = english_centric_directions(MITRE_LANGUAGES)
    text = language_text(get_corpus(CORPUS), directions, _SENTENCES_PER_LANGUAGE)
    train_sentencepiece(text, directory, options=VOCABULARY_OPTIONS)
    return directory


def _register(corpus: Corpus) -> None:
    vocabulary = PieceVocabulary(functools.cache(load_vocabulary))
    add_corpus(corpus, directions=many_to_many_directions(corpus.languages), vocabulary=vocabulary)
    for kind in ("english_centric", "bridge", "many_to_many"):
        mixture = MIXTURES[f"{CORPUS}_{kind}"]
        trained, zero_shot = (
            [task_name(CORPUS, direction) for direction in directions]
            for directions in (
                mixture.directions,
                zero_shot_directions(corpus, mixture.directions),
            )
        )
        add_mixture(mixture.name, trained, temperature=mixture.temperature, zero_shot=zero_shot)


_register(get_corpus(CORPUS))
