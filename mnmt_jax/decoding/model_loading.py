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


def load_runs(
    run: str | Path | RunDirectory,
    step: int | str | None,
    *,
    gin_files: Sequence[str],
    bindings: Sequence[str],
    mesh: MeshChoice,
) -> tuple[LoadedRun, list[tuple[Model, Any]]]:
    """Read a run and those of `Decode.ensemble`; arguments and errors as in `PretrainedModel.load`.

    Files, bindings and the mesh apply to all of them. A mesh that is chosen here has room for the
    parameters of all.

    Returns:
        The run, and configurations and parameters of the others.

    Raises:
        UserError: if one cannot be loaded, or does not fit the first.
    """
    first = _open(run, step, gin_files, bindings)
    members = [
        _open_member(name, first, gin_files, bindings) for name in first.config.decode.ensemble
    ]
    devices = _choose_mesh(mesh, [first, *members])
    averaged = first.config.decode.averaged
    params, loaded_step = first.load(devices, averaged=averaged)
    loaded = LoadedRun(
        first.config,
        first.vocabulary,
        params,
        run=str(first.folder.location),
        step=loaded_step,
        mesh=devices,
        contexts=tuple(first.folder.trained_contexts().values()),
    )
    return loaded, [
        (
            one.config.bind_languages(one.vocabulary.languages, find_code).model,
            one.load(devices, averaged=averaged)[0],
        )
        for one in members
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class _OpenedRun:
    """A run whose parameters are not read yet.

    Attributes:
        folder: its directory.
        step: step of the checkpoint, as in `PretrainedModel.load`.
        config: configuration, with the changes of files and bindings.
        vocabulary: its vocabulary.
    """

    folder: RunDirectory
    step: int | str | None
    config: Config
    vocabulary: Vocabulary

    @property
    def shapes(self) -> Any:
        """Shapes of the parameters."""
        return parameter_shapes(self.config.model, self.vocabulary.size)

    def load(self, mesh: jax.sharding.Mesh | None, *, averaged: bool) -> tuple[Any, int]:
        """Return the parameters on a mesh, and the step of their checkpoint."""
        model = self.config.model
        transfer = functools.partial(_place_fitting, config=model, shapes=self.shapes, mesh=mesh)
        params, step = load_params(self.folder, self.step, transfer, averaged=averaged)
        check_parameters(self.folder, model, self.vocabulary.size, params)
        return params, step


def _open(
    run: str | Path | RunDirectory,
    step: int | str | None,
    gin_files: Sequence[str],
    bindings: Sequence[str],
) -> _OpenedRun:
    folder = RunDirectory.open(run)
    config = folder.config(gin_files, bindings, ignored_sections=("Mesh",))
    return _OpenedRun(folder, step, config, folder.load_vocabulary())


def _open_member(
    name: str, first: _OpenedRun, gin_files: Sequence[str], bindings: Sequence[str]
) -> _OpenedRun:
    """Open a run of `Decode.ensemble`, and check that it fits the first."""
    match = _CHECKPOINT.fullmatch(name)
    run, step = match.groups() if match else (name, None)
    member = _open(run, int(step) if step and step.isdecimal() else step, gin_files, bindings)
    check_member(name, member.config, member.vocabulary, first.config, first.vocabulary)
    return member


def _choose_mesh(mesh: MeshChoice, runs: Sequence[_OpenedRun]) -> jax.sharding.Mesh | None:
    """Return the mesh that a choice names, for models that are in memory together."""
    devices = mesh if isinstance(mesh, list) else None
    if mesh == "local" or isinstance(mesh, list):
        mesh = runs[0].config.mesh
    if not isinstance(mesh, MeshConfig):
        return mesh
    splittable = [size for run in runs for size in _splittable(run.config.model)]
    return local_mesh(mesh, splittable, sum(_size(run.shapes) for run in runs), devices)


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
    splittable, size = _splittable(config), _size(params)
    return local_mesh(sizes, splittable, size, devices, count_used_memory=count_used_memory)


def _splittable(config: Model) -> tuple[int, ...]:
    """Return the dimensions of a model that the number of tensor shards must divide."""
    return config.heads, *config.mlp_widths


def _size(params: Any) -> int:
    """Return the bytes of parameters, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))


def _place_fitting(
    params: Any, *, config: Model, shapes: Any, mesh: jax.sharding.Mesh | None
) -> Any:
    """Place parameters on a mesh if their shapes are those of the model.

    Others stay on the host, and `check_parameters` names the first that differs.
    """
    if array_types(params) != array_types(shapes):
        return params
    return place_params(params, mesh, param_axes(config))
