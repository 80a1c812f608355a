"""Files as `seqio.cache_tasks` writes them are read instead of the source. Needs no t5x."""

from __future__ import annotations

import json
from pathlib import Path

import seqio
import tensorflow as tf

from mnmt_jax.seqio_tasks import add_task
from mnmt_jax.seqio_vocabulary import PieceVocabulary
from tests.unit import made_text


def test_an_offline_cache_is_read_in_place_of_the_source(tmp_path):
    def text(split, shuffle_files, seed=None):
        return tf.data.Dataset.from_tensors({"inputs": "drei Haus", "targets": "three house"})

    source = seqio.FunctionDataSource(text, splits=["train"], num_input_examples={"train": 1})
    vocabulary = PieceVocabulary(made_text.vocabulary)
    task = add_task("t5x_cached", source, direction=("de", "en"), vocabulary=vocabulary)
    streamed = next(task.get_dataset(None, "train", shuffle=False).as_numpy_iterator())
    assert set(streamed) >= {"inputs", "targets", "source_lang", "target_lang"}
    write_cache(tmp_path / "t5x_cached", {**streamed, "inputs": streamed["inputs"][:1]})
    before = seqio.utils.get_global_cache_dirs()
    seqio.set_global_cache_dirs([str(tmp_path)])
    dataset = task.get_dataset(None, "train", shuffle=False, use_cached=True)
    seqio.set_global_cache_dirs(before)
    cached = next(dataset.as_numpy_iterator())
    assert cached["inputs"].tolist() == streamed["inputs"][:1].tolist()  # the file, not the source
    for name in ("targets", "source_lang", "target_lang"):
        assert cached[name].dtype == streamed[name].dtype
        assert cached[name].tolist() == streamed[name].tolist()


def write_cache(folder: Path, example: dict) -> None:
    """Writes one example of `train` in seqio's format; its own writer needs Apache Beam."""
    folder.mkdir()
    (folder / "COMPLETED").touch()
    features = {
        name: {"shape": [] if isinstance(value, bytes) else [None], "dtype": _dtype(value)}
        for name, value in example.items()
    }
    info = {"num_shards": 1, "features": features, "seqio_version": seqio.__version__}
    Path(seqio.get_cached_info_path(str(folder), "train")).write_text(json.dumps(info))
    Path(seqio.get_cached_stats_path(str(folder), "train")).write_text('{"examples": 1}')
    prefix = seqio.get_cached_tfrecord_prefix(str(folder), "train")
    with tf.io.TFRecordWriter(f"{prefix}-00000-of-00001") as writer:
        writer.write(seqio.dict_to_tfexample(example).SerializeToString())


def _dtype(value) -> str:
    return "string" if isinstance(value, bytes) else str(value.dtype)
