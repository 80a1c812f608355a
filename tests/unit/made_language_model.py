"""Language models of random parameters, and their log-probabilities on the slow path."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from mnmt_jax.config.sections import Config, Data, Decode, Mesh, Model, Optimizer, Train
from mnmt_jax.data.converter import Converter, Example, Lengths, segments_from_rows
from mnmt_jax.data.instruction import INSTRUCTIONS
from mnmt_jax.decoding.language_model import LanguageModel
from mnmt_jax.decoding.pretrained import PretrainedModel
from mnmt_jax.design.layouts import LANGUAGE_MODELS
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.model.network import build_model
from mnmt_jax.runs.parameters import write_params
from mnmt_jax.runs.run_directory import RunDirectory
from tests.unit.made_text import vocabulary

BUCKETS = (9, 14)
LONGEST = 32  # positions of the slow path


@functools.cache
def _params(layout: str):
    model = Model(layout=layout, stage_layers=(2,), embed=16, mlp=24, heads=2)
    network = build_model(model, vocabulary().size)
    roles = LANGUAGE_MODELS[layout].embedded_roles()
    converter = Converter(vocabulary(), INSTRUCTIONS["3"], roles, Lengths(8, 8))
    example = Example(np.array([5, 6]), np.array([7]), 0, 0)
    batch = converter.batch(segments_from_rows([[example]]), 1)
    params = jax.jit(network.init)(jax.random.key(0), batch)["params"]
    return model, jax.tree.map(lambda array: 1.5 * array, params)


@functools.cache
def made_language_model(
    layout: str = "causal_lm", instruction: str = "3", **decode
) -> LanguageModel:
    """Return a small random model; `decode` are fields of `Decode`."""
    model, params = _params(layout)
    decode = {"batch": 4, "max_length": 11, "buckets": BUCKETS} | decode
    data = Data(instruction=instruction)
    config = Config(data, model, Optimizer(), Train(), Decode(**decode), Mesh())
    return LanguageModel(config, vocabulary(), params)


def write_made_run(folder: Path, model: PretrainedModel) -> Path:
    """Write a model as a run at step 0."""
    RunDirectory(folder).prepare(model.config, model.vocabulary, has_checkpoint=False)
    arrays = jax.tree.map(
        lambda array: LazyArray.of(np.asarray(array)), model.inference_model.params
    )
    write_params(folder, arrays)
    return folder


def logits_of(model: LanguageModel, rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Return float64 logits [rows, LONGEST, vocab] of tokens, one forward pass, laid out here."""
    role = model.inference_model.model.layout.generated
    tokens = np.zeros((len(rows), LONGEST), np.int32)
    present = np.zeros_like(tokens)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
        present[number, : len(row)] = 1
    positions = np.arange(LONGEST, dtype=np.int32)[None] * present
    batch = {"tokens": tokens, "positions": positions, "segment_ids": present}
    batch = {f"{role}_{name}": array for name, array in batch.items()}
    actual = _logits(model.inference_model.model, model.inference_model.params, batch)
    return np.asarray(actual, np.float64)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return log-probabilities, float64."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@functools.partial(jax.jit, static_argnums=0)
def _logits(network, params, batch):
    return network.apply({"params": params}, batch)
