"""t5x checkpoints of this project's models, read and written without t5x.

MODEL_DIR/checkpoint_N/state   Orbax tree: `target` (parameters), `state` (step, optimizer)
MODEL_DIR/mnmt_jax/            configuration and vocabulary, as in a run directory
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import traverse_util

from mnmt_jax.config.loading import save_config
from mnmt_jax.config.sections import Config
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.runs.orbax_cleanup import event_loops_that_drain
from mnmt_jax.runs.params_writer import lazy_arrays
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.language_codes import find_code
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_FOLDER = re.compile(r"checkpoint_(\d+)")
_STATE = "state"


def run_beside(model_dir: str | Path) -> RunDirectory:
    """Open the folder of configuration and vocabulary in t5x's model directory or bucket."""
    return RunDirectory.open(f"{model_dir}/mnmt_jax")


def write_run_beside(model_dir: str | Path, config: Config, vocabulary: Vocabulary) -> None:
    """Write configuration and vocabulary into t5x's model directory, which may be in a bucket.

    Args:
        model_dir: output folder of t5x.
        config: configuration of the training.
        vocabulary: vocabulary of its tasks.

    Raises:
        UserError: if the folder holds a training with another configuration or vocabulary.
    """
    run = run_beside(model_dir)
    continues = run.config_file.is_file()
    run.check(config, vocabulary, has_checkpoint=continues)
    run.prepare(config, vocabulary, has_checkpoint=continues)
    run.publish()
    run.close()


def open_t5x(
    path: Path, vocabulary: str | Path | None = None
) -> tuple[Config, Vocabulary, dict[str, Any]]:
    """Read a checkpoint that t5x wrote of one of the project's models.

    Args:
        path: `MODEL_DIR`, which means its newest checkpoint, or `MODEL_DIR/checkpoint_N`.
        vocabulary: folder of a saved `Vocabulary`; None takes the one in `MODEL_DIR`.

    Returns:
        Configuration, vocabulary, and parameters as a tree of `LazyArray`.

    Raises:
        UserError: if something is missing, or the parameters do not match the
            configured model.
    """
    folder = _checkpoint_folder(path)
    run = run_beside(folder.parent)
    if not run.config_file.is_file():
        raise UserError(
            f"{run.config_file}: no such file; gin_configs/t5x/train.gin makes t5x write it, copy "
            "it there together with the vocabulary"
        )
    loaded_vocabulary = Vocabulary.load(vocabulary) if vocabulary else run.load_vocabulary()
    config = run.config().bind_languages(loaded_vocabulary.languages, find_code)
    params = _read_params(folder)
    _check_shapes(folder, config, loaded_vocabulary, params)
    return config, loaded_vocabulary, jax.tree.map(LazyArray.of, params)


def export_t5x(config: Config, params: Any, vocabulary: Vocabulary, directory: Path) -> None:
    """Write parameters to `directory/checkpoint_0`, for training or translating with t5x.

    Args:
        config: configuration of the run.
        params: tree of `LazyArray`, with LoRA merged.
        vocabulary: vocabulary of the run.
        directory: existing folder to write to.
    """
    run = run_beside(directory)
    run.path.mkdir()
    merged = dataclasses.replace(config, model=dataclasses.replace(config.model, lora_rank=0))
    save_config(merged, run.config_file)
    vocabulary.save(run.vocabulary)
    step = LazyArray.of(np.zeros((), np.int32))
    arguments = ocp.args.Composite(
        **{_STATE: ocp.args.PyTreeSave({"target": params, _STATE: {"step": step}})}
    )
    state_handler = ocp.PyTreeCheckpointHandler(type_handler_registry=lazy_arrays())
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler(**{_STATE: state_handler})) as writer:
        writer.save((directory / "checkpoint_0").absolute(), arguments)


def _checkpoint_folder(path: Path) -> Path:
    """Return the folder of the checkpoint, the newest one of a model directory."""
    if _FOLDER.fullmatch(path.name) and (path / _STATE).is_dir():
        return path.absolute()
    steps = [
        int(match[1])
        for folder in path.glob("checkpoint_*")
        if (match := _FOLDER.fullmatch(folder.name)) and (folder / _STATE).is_dir()
    ]
    if not steps:
        raise UserError(f"{path}: no checkpoint_N of t5x there, with a folder '{_STATE}'")
    return (path / f"checkpoint_{max(steps)}").absolute()


def _read_params(folder: Path) -> dict[str, Any]:
    """Read the parameters without the optimizer state."""
    try:
        with event_loops_that_drain(), ocp.PyTreeCheckpointer() as reader:
            shapes = reader.metadata(folder / _STATE).item_metadata.tree["target"]
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), shapes)
            restore_arguments = ocp.args.PyTreeRestore(
                item={"target": shapes}, restore_args={"target": as_numpy}, partial_restore=True
            )
            return reader.restore(folder / _STATE, args=restore_arguments)["target"]
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise UserError(f"{folder}: cannot be read as a checkpoint of t5x ({text})") from error


def _check_shapes(folder: Path, config: Config, vocabulary: Vocabulary, params: Any) -> None:
    shapes = parameter_shapes(config.model, vocabulary.size)
    expected, stored = (
        {name: leaf.shape for name, leaf in traverse_util.flatten_dict(tree, sep="/").items()}
        for tree in (shapes, params)
    )
    differing = [
        f"{name} is {stored.get(name, 'absent')}, expected {expected.get(name, 'absent')}"
        for name in sorted(expected.keys() | stored.keys())
        if expected.get(name) != stored.get(name)
    ]
    if differing:
        raise UserError(
            f"{folder}: not the parameters of the model in {run_beside(folder.parent).config_file}:"
            f" {join_names(differing, separator='; ')}"
        )
