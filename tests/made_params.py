"""Parameter trees for tests of import and export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from mnmt_jax.config.sections import Config, Data, Decode, Mesh, Model, Optimizer, Train
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.interop.names import FAIRSEQ, parameter_entries, read_params
from mnmt_jax.interop.token_table import SPECIAL_IDS
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.runs.fingerprint import param_path
from mnmt_jax.runs.new_run import write_run
from mnmt_jax.runs.parameters import write_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests.made_foreign import random_tensors
from tests.made_run import make_config
from tests.unit import made_text


def plain_rows(size: int) -> np.ndarray:
    """Return fairseq's id of each of our ids, [size]; only the order of specials differs."""
    rows = np.arange(size)
    rows[: len(SPECIAL_IDS)] = SPECIAL_IDS
    return rows


def read_all(tree: Any) -> Any:
    """Read every lazy array of a tree."""
    if isinstance(tree, LazyArray):
        return tree.read()
    return {key: read_all(branch) for key, branch in tree.items()}


def zeros_of(model: Model, vocab_size: int) -> Any:
    """Return lazy zero parameters of a model."""
    shapes = parameter_shapes(model, vocab_size)
    return jax.tree.map(lambda leaf: LazyArray.of(np.zeros(leaf.shape, leaf.dtype)), shapes)


def write_zero_run(run: Path) -> Path:
    """Write a run at step 0, with LoRA so that adapters open it too."""
    config = make_config(Path("nowhere"), model={"lora_rank": 2})
    vocabulary = made_text.vocabulary()
    params = zeros_of(config.model, vocabulary.size)
    write_run(run, config, vocabulary, params, origin=("nobody", "zeros"))
    return run


def config_with(model: Model) -> Config:
    return Config(Data(), model, Optimizer(), Train(), Decode(), Mesh())


def random_params(model: Model, size: int, seed: int = 0) -> dict:
    """Return random parameters without building the model."""
    layout = get_layout(model.layout, model.stage_layers)
    tensors = random_tensors(model, FAIRSEQ, size, seed)
    lazy = {name: LazyArray.of(value) for name, value in tensors.items()}
    return read_params(lazy, parameter_entries(model, layout, FAIRSEQ, plain_rows(size)))


def write_random_run(
    folder: Path,
    model: Model,
    seed: int = 0,
    vocabulary: Vocabulary | None = None,
    config: Config | None = None,
) -> dict:
    """Write a run at step 0, with the model's or a whole configuration; return its parameters."""
    vocabulary = vocabulary or made_text.vocabulary()
    params = random_params(model, vocabulary.size, seed)
    config = config or config_with(model)
    RunDirectory(folder).prepare(config, vocabulary, has_checkpoint=False)
    write_params(folder, params)
    return read_all(params)


def flat(tree: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a tree by path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {param_path(path): np.asarray(leaf) for path, leaf in leaves}


def assert_same(actual: Any, expected: Any) -> None:
    """Assert that two trees are bit-identical."""
    assert actual.keys() == expected.keys() and actual
    for key, value in expected.items():
        if isinstance(value, dict):
            assert_same(actual[key], value)
        else:
            np.testing.assert_array_equal(np.asarray(actual[key]), np.asarray(value), err_msg=key)
            assert np.asarray(actual[key]).dtype == np.asarray(value).dtype
