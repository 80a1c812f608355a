"""Example of a user's task module: registers a small mixture with seqio."""

from __future__ import annotations

import itertools

import seqio
import tensorflow as tf

from mnmt_jax.interop.seqio.tasks import add_mixture, add_task
from mnmt_jax.interop.seqio.vocabulary import PieceVocabulary
from tests.unit import made_text

SPLITS = {"train": (1, 60), "validation": (100, 9), "test": (200, 9)}


def source(source: str, target: str) -> seqio.FunctionDataSource:
    def text(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        start, count = SPLITS[split]
        sides = [made_text.sentences(code, count, start) for code in (source, target)]
        data = tf.data.Dataset.from_tensor_slices(tuple(sides))
        return data.map(lambda one, other: {"inputs": one, "targets": other})

    sizes = {split: count for split, (_, count) in SPLITS.items()}
    return seqio.FunctionDataSource(text, splits=list(SPLITS), num_input_examples=sizes)


VOCABULARY = PieceVocabulary(made_text.vocabulary)
NAMES = [
    add_task(
        f"t5x_made_{one}_{other}",
        source(one, other),
        direction=(one, other),
        vocabulary=VOCABULARY,
    ).name
    for one, other in itertools.permutations(("en", "de"))
]
add_mixture("t5x_made", NAMES, temperature=1.0)
