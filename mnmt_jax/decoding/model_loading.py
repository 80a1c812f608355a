"""Loading a run for inference: configuration, vocabulary and placed parameters.

Imports Orbax, which is slow; `PretrainedModel.load` imports this module when it is called.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from mnmt_jax.config.sections import Config, Model
from mnmt_jax.config.sections import Mesh as MeshConfig
from mnmt_jax.data.document_context import Context
from mnmt_jax.decoding.ensemble import check_member
from mnmt_jax.distributed.local import local_mesh
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.model.sublayers import param_axes
from mnmt_jax.runs.checkpoint_files import array_types
from mnmt_jax.runs.parameters import check_parameters, load_params, place_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.language_codes import find_code
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_CHECKPOINT = re.compile(r"(.+)@(\d+|best|average)")  # RUN@STEP
MeshChoice = jax.sharding.Mesh | MeshConfig | list[jax.Device] | Literal["local"] | None


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run in memory.

    Attributes:
        config: configuration, with the changes of files and bindings.
        vocabulary: vocabulary of the run.
        params: parameters, float32, on the devices of `mesh`.
        run: path of the run.
        step: step of the checkpoint.
        mesh: mesh of the parameters; None is one device.
        contexts: document contexts of the training.
    """

    config: Config
    vocabulary: Vocabulary
    params: Any
    run: str
    step: int
    mesh: jax.sharding.Mesh | None
    contexts: tuple[Context, ...]


def load_run(
    run: str | Path | RunDirectory,
    step: int | str | None,
    *,
    gin_files: Sequence[str],
    bindings: Sequence[str],
    mesh: MeshChoice,
) -> LoadedRun:
    """Read a run; arguments and errors as in `PretrainedModel.load`."""
    folder = RunDirectory.open(run)
    config = folder.config(gin_files, bindings, ignored_sections=("Mesh",))
    vocabulary = folder.load_vocabulary()
    shapes = parameter_shapes(config.model, vocabulary.size)
    devices = _choose_mesh(mesh, config, shapes)
    transfer = functools.partial(_place_fitting, config=config.model, shapes=shapes, mesh=devices)
    params, loaded_step = load_params(folder, step, transfer, averaged=config.decode.averaged)
    check_parameters(folder, config.model, vocabulary.size, params)
    return LoadedRun(
        config,
        vocabulary,
        params,
        run=str(folder.location),
        step=loaded_step,
        mesh=devices,
        contexts=tuple(folder.trained_contexts().values()),
    )


def load_members(first: LoadedRun, mesh: MeshChoice) -> list[tuple[Model, Any]]:
    """Return configurations and parameters of the runs of `Decode.ensemble`.

    Args:
        first: the model that they complete to an ensemble.
        mesh: as in `PretrainedModel.load`.

    Raises:
        UserError: if one cannot be loaded, or does not fit the first.
    """
    members = []
    for name in first.config.decode.ensemble:
        match = _CHECKPOINT.fullmatch(name)
        run, step = match.groups() if match else (name, None)
        checkpoint = int(step) if step and step.isdigit() else step
        averaged = f"Decode.averaged={first.config.decode.averaged}"
        loaded = load_run(run, checkpoint, gin_files=(), bindings=(averaged,), mesh=mesh)
        check_member(name, loaded.config, loaded.vocabulary, first.config, first.vocabulary)
        config = loaded.config.bind_languages(loaded.vocabulary.languages, find_code)
        members.append((config.model, loaded.params))
    return members


def _choose_mesh(mesh: MeshChoice, config: Config, shapes: Any) -> jax.sharding.Mesh | None:
    """Return the mesh that a choice names, given the shapes of the parameters."""
    devices = mesh if isinstance(mesh, list) else None
    if mesh == "local" or isinstance(mesh, list):
        mesh = config.mesh
    if not isinstance(mesh, MeshConfig):
        return mesh
    return decoding_mesh(config.model, shapes, mesh, devices)


def decoding_mesh(
    config: Model,
    params: Any,
    sizes: MeshConfig,
    devices: list[jax.Device] | None = None,
    *,
    count_used_memory: bool = False,
) -> jax.sharding.Mesh | None:
    """Arrange devices of this process for a model, as `local_mesh`.

    Args:
        config: configuration of the model.
        params: its parameters, or their shapes.
        sizes: as in `local_mesh`, like the other arguments.
        devices: the devices.
        count_used_memory: whether memory that is in use now is not available.
    """
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    splittable = (config.heads, *config.mlp_widths)
    return local_mesh(sizes, splittable, size, devices, count_used_memory=count_used_memory)


def _place_fitting(
    params: Any, *, config: Model, shapes: Any, mesh: jax.sharding.Mesh | None
) -> Any:
    """Place parameters on a mesh if their shapes are those of the model.

    Others stay on the host, and `check_parameters` names the first that differs.
    """
    if array_types(params) != array_types(shapes):
        return params
    return place_params(params, mesh, param_axes(config))
