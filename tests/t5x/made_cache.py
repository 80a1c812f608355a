"""Writer of seqio's offline cache format. Needs no t5x."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import seqio
import tensorflow as tf


def write_cache(folder: Path, splits: Mapping[str, Sequence[dict]]) -> None:
    """Write a task's examples in seqio's format; its own writer needs Apache Beam."""
    folder.mkdir(parents=True)
    (folder / "COMPLETED").touch()
    for split, examples in splits.items():
        features = {
            name: {"shape": [] if isinstance(value, bytes) else [None], "dtype": _dtype(value)}
            for name, value in examples[0].items()
        }
        info = {"num_shards": 1, "features": features, "seqio_version": seqio.__version__}
        Path(seqio.get_cached_info_path(str(folder), split)).write_text(json.dumps(info))
        counts = json.dumps({"examples": len(examples)})
        Path(seqio.get_cached_stats_path(str(folder), split)).write_text(counts)
        prefix = seqio.get_cached_tfrecord_prefix(str(folder), split)
        with tf.io.TFRecordWriter(f"{prefix}-00000-of-00001") as writer:
            for example in examples:
                writer.write(seqio.dict_to_tfexample(example).SerializeToString())


def _dtype(value) -> str:
    return "string" if isinstance(value, bytes) else str(value.dtype)
