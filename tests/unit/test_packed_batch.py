"""A packed batch reaches a program as one array and has the same contents there."""

import jax
import numpy as np

from mnmt_jax.decoding import continuous_batching
from mnmt_jax.decoding.packed_batch import pack_batch, unpack_batch
from mnmt_jax.decoding.translation_job import TranslationJob
from tests.unit.made_translator import LINES, made_translator

BATCH = {
    "source_tokens": np.arange(6, dtype=np.int32).reshape(2, 3),
    "source_lang": np.array([[4], [-1]], np.int32),
    "register_tokens": np.arange(8, dtype=np.int32).reshape(2, 4),
}


def test_a_batch_is_unpacked_in_a_program():
    packed = pack_batch(BATCH)
    assert [array.shape for array in jax.tree.leaves(packed)] == [(16,)]
    unpacked = jax.jit(unpack_batch)(packed)
    assert jax.tree.map(np.ndarray.tolist, jax.device_get(unpacked)) == {
        name: array.tolist() for name, array in BATCH.items()
    }
    assert unpack_batch(BATCH) is BATCH


def test_sentences_reach_a_search_in_one_array(monkeypatch):
    translator = made_translator(beam_size=1, batch=4)
    arguments = []
    for name in ("search_batch", "_admit_and_search"):
        whole = getattr(continuous_batching, name)

        def record(params, batch, *others, whole=whole, **static):
            arguments.append(jax.tree.leaves(batch))
            return whole(params, batch, *others, **static)

        monkeypatch.setattr(continuous_batching, name, record)
    lines = TranslationJob.create(translator).number_lines(LINES, source="en", target="de")
    translator.translate([line.text for line in lines], source="en", target="de")
    translator.translate(LINES[:2], source="en", target="de")
    assert len(arguments) > 2 and all(len(arrays) == 1 for arrays in arguments)
