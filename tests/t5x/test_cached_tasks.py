"""Offline caches of `seqio.cache_tasks` are read instead of the source. Needs no t5x."""

from __future__ import annotations

import seqio
import tensorflow as tf

from mnmt_jax.interop.seqio.tasks import add_task
from mnmt_jax.interop.seqio.vocabulary import PieceVocabulary
from tests.t5x.made_cache import write_cache
from tests.unit import made_text


def test_an_offline_cache_replaces_the_source(tmp_path):
    def text(split, shuffle_files, seed=None):
        return tf.data.Dataset.from_tensors({"inputs": "drei Haus", "targets": "three house"})

    source = seqio.FunctionDataSource(text, splits=["train"], num_input_examples={"train": 1})
    vocabulary = PieceVocabulary(made_text.vocabulary)
    task = add_task("t5x_cached", source, direction=("de", "en"), vocabulary=vocabulary)
    streamed = next(task.get_dataset(None, "train", shuffle=False).as_numpy_iterator())
    assert set(streamed) >= {"inputs", "targets", "source_lang", "target_lang"}
    other = {**streamed, "inputs": streamed["inputs"][:1]}
    write_cache(tmp_path / "t5x_cached", {"train": [other]})
    before = seqio.utils.get_global_cache_dirs()
    seqio.set_global_cache_dirs([str(tmp_path)])
    dataset = task.get_dataset(None, "train", shuffle=False, use_cached=True)
    seqio.set_global_cache_dirs(before)
    cached = next(dataset.as_numpy_iterator())
    assert cached["inputs"].tolist() == streamed["inputs"][:1].tolist()  # the file, not the source
    for name in ("targets", "source_lang", "target_lang"):
        assert cached[name].dtype == streamed[name].dtype
        assert cached[name].tolist() == streamed[name].tolist()
