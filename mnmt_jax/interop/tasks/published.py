"""seqio tasks and mixtures of the published corpora (`mnmt_jax.data.published_corpora`).

One task per direction, `{corpus}_{source}_{target}`. They can be registered without the files;
missing files are reported when a task is first used.

| mixture | directions |
|---|---|
| `ted19`, `ted19_zero_shot` | 36 with English; the 306 others |
| `opus100`, `opus100_zero_shot` | 188 with English; 30 |
| `opus100_all`, `opus100_all_zero_shot` | 198 with English; 30 |
| `ec40`, `ec40_zero_shot` | 80 with English; 1560 |
| `nllb_bridge`, `nllb_bridge_zero_shot` | MITRE's 194, tested on Flores+; the 358 others |
| `flores_finetune_5`, `_25`, `_100` | MITRE's fine-tuning directions: trains on dev |
| `multi30k`, `multi30k_zero_shot` | 6 with English; 6 |
| `ted20`, `ted20_zero_shot` | 38 with English; 342 |
| `iwslt17`, `iwslt17_zero_shot` | 6 with English; 6 |
| `iwslt17_circle`, `iwslt17_circle_90k`, and with `_zero_shot` | 9; 3 |
| `iwslt17_de`, `iwslt17_de_zero_shot` | 2, en with de; 6, de with it, ro, nl |
| `europarl_triangle`, `europarl_square`, and with `_zero_shot` | 3 and 8; 3 and 4 |
| `multiun`, `multiun_zero_shot` | 6 with English; 6 |
| `europarl_centric`, `europarl_centric_zero_shot` | 4 with English; 2 |
| `ted30` | 60 with English |
| `ted30_transfer_de`, `wmt14_transfer_de`, and with `_zero_shot` | de-en; fr-en |
| `ted30_transfer_fr`, `wmt14_transfer_fr`, and with `_zero_shot` | fr-en; de-en |
| `newscrawl` | 45 languages, each with an empty source |
| `libreoffice_help`, `libreoffice_help_disjoint`, and with `_zero_shot` | 12 with English; 30 |
| `flores`, `ntrex` | test sets: all 552 of MITRE's languages |

The mixtures `wmt14_en_de` and `wmt14_en_fr` are single tasks. Zero-shot mixtures and test sets have
no training text. A vocabulary is read from the directory in the environment variable
`MNMT_JAX_{NAME}_VOCABULARY`, or from `vocabularies/{name}` beside the corpora. The vocabulary of
`ted30` is named `newscrawl`; those of `nllb`, `flores` and `ntrex` are named `mitre`.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import seqio

from mnmt_jax.data.mixtures import MIXTURES, task_name
from mnmt_jax.data.published_corpora import (
    PUBLISHED,
    PublishedCorpus,
    data_folder,
    published_corpus,
)
from mnmt_jax.errors import UserError
from mnmt_jax.interop.seqio.tasks import add_mixture, add_named_corpus
from mnmt_jax.interop.seqio.vocabulary import PieceVocabulary
from mnmt_jax.vocabulary.vocabulary import Vocabulary


def vocabulary_folder(row: PublishedCorpus) -> Path:
    """Return the directory of a corpus's vocabulary."""
    name = row.vocabulary or row.name
    override = os.environ.get(f"MNMT_JAX_{name.upper()}_VOCABULARY")
    return Path(override) if override else data_folder() / "vocabularies" / name


def load_vocabulary(row: PublishedCorpus) -> Vocabulary:
    """Read a corpus's vocabulary.

    Raises:
        UserError: if it does not exist; the message says how to create it.
    """
    folder = vocabulary_folder(row)
    if not folder.is_dir():
        raise UserError(
            f"the vocabulary of corpus '{row.name}' is not in {folder}: make it with "
            f"'mnmt vocabulary' --output {folder} and --mixture NAME, or --sentencepiece "
            f"MODEL --languages {','.join(row.languages)}"
        )
    return Vocabulary.load(folder)


def _register(row: PublishedCorpus) -> None:
    vocabulary = PieceVocabulary(functools.cache(functools.partial(load_vocabulary, row)))
    load = functools.cache(functools.partial(published_corpus, row.name))
    directions = (*row.supervised, *row.zero_shot)
    add_named_corpus(row.name, load, directions=directions, vocabulary=vocabulary)
    zero_shot = [task_name(row.name, direction) for direction in row.zero_shot]
    for mixture in MIXTURES.values():
        names = [task_name(row.name, direction) for direction in mixture.directions]
        if mixture.corpus == row.name and names != [mixture.name]:
            held_out = mixture.zero_shot
            held_out_names = [task_name(row.name, direction) for direction in held_out or ()]
            held_out_names = zero_shot if held_out is None else held_out_names
            add_mixture(
                mixture.name, names, temperature=mixture.temperature, zero_shot=held_out_names
            )
    if zero_shot and not row.supervised:
        seqio.MixtureRegistry.add(row.name, zero_shot, default_rate=1.0)


for _row in PUBLISHED.values():
    _register(_row)
