"""Checkpoints with random weights in the form of other toolkits, for tests and miniatures."""

from __future__ import annotations

import collections
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.config.sections import Model
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.interop.names import M2M100, Dialect, parameter_entries
from mnmt_jax.interop.safetensors import SHARD_BYTES, write_safetensors
from mnmt_jax.interop.torch_files import write_torch
from mnmt_jax.model.modules import FIRST_ROW

_SCALE = 0.3


def random_tensors(
    model: Model, dialect: Dialect, size: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return random weights under the names of another toolkit.

    Args:
        model: sizes.
        dialect: naming of the other toolkit.
        size: number of embedding rows.
        seed: seed of the weights.
    """
    rng = np.random.default_rng(seed)
    layout = get_layout(model.layout, model.stage_layers)
    tensors: dict[str, np.ndarray] = {}
    for entry in parameter_entries(model, layout, dialect, np.arange(size)):
        value = rng.normal(0, _SCALE, entry.other_shape).astype(np.float32)
        # What we do not have computes nothing there, and comes back as zeros.
        unused = FIRST_ROW if "positions" in str(entry.path) else 0
        value[: unused if entry.path else None] = 0
        tensors |= dict.fromkeys(entry.export_names, value)
    return tensors


def write_m2m100(
    folder: Path,
    model: Model,
    *,
    sentencepiece_model: bytes,
    size: int,
    seed: int = 0,
    shard_bytes: int = SHARD_BYTES,
) -> dict[str, np.ndarray]:
    """Write a directory of `transformers` for M2M-100 or NLLB, without lists of tokens.

    Args:
        folder: the directory; files that are there are replaced.
        model: sizes of an encoder-decoder.
        sentencepiece_model: serialised model with SentencePiece's default ids.
        size: number of embedding rows.
        seed: seed of the weights.
        shard_bytes: maximum size of a weights file.

    Returns:
        The weights by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = random_tensors(model, M2M100, size, seed)
    arrays = [(name, LazyArray.of(value)) for name, value in tensors.items()]
    write_safetensors(folder, arrays, shard_bytes=shard_bytes)
    values: dict[str, Any] = {"model_type": "m2m_100", "d_model": model.embed, "vocab_size": size}
    values |= {"scale_embedding": True, "pad_token_id": 1, "eos_token_id": 2}
    values |= {"decoder_start_token_id": 2}
    for side, layers in zip(("encoder", "decoder"), model.stage_layers, strict=True):
        values |= {f"{side}_layers": layers, f"{side}_ffn_dim": model.mlp}
        values[f"{side}_attention_heads"] = model.heads
    write_json(folder / "config.json", values)
    (folder / "sentencepiece.bpe.model").write_bytes(sentencepiece_model)
    return tensors


def write_fairseq(
    file: Path,
    tensors: Mapping[str, np.ndarray],
    settings: Mapping[str, Any],
    *,
    pieces: Sequence[str],
    languages: Sequence[str],
    sentencepiece_model: bytes,
) -> None:
    """Write a checkpoint of fairseq, and the files of its vocabulary beside it.

    Args:
        file: the checkpoint, a `.pt` file.
        tensors: weights by name, e.g. of `random_tensors`.
        settings: entries of the checkpoint besides the weights: `args` or `cfg`.
        pieces: pieces of its dictionary, without special tokens.
        languages: languages in the order of their tags.
        sentencepiece_model: serialised model.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    state: collections.OrderedDict[str, LazyArray] = collections.OrderedDict()
    for name, value in tensors.items():
        read = functools.partial(np.asarray, value)
        state[name] = LazyArray(value.shape, value.dtype, read, id(value))
    write_torch(file, {**settings, "model": state})
    lines = [f"{piece} {100 - number}" for number, piece in enumerate(pieces)]
    (file.parent / "dict.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (file.parent / "languages.txt").write_text(",".join(languages) + "\n", encoding="utf-8")
    (file.parent / "spm.model").write_bytes(sentencepiece_model)


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
