"""The parameters of a run, read and written without its training."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from mnmt_jax.config.sections import Model
from mnmt_jax.distributed.sharding import tree_sharding
from mnmt_jax.errors import UserError
from mnmt_jax.files.bucket import absolute_path
from mnmt_jax.files.json_objects import read_object
from mnmt_jax.files.storage_errors import one_line
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.model.sublayers import param_axes
from mnmt_jax.runs.checkpoint_files import (
    LOSS,
    MARK,
    array_types,
    check_arrays,
    read_numpy,
    read_record,
)
from mnmt_jax.runs.params_writer import write_lazily
from mnmt_jax.runs.run_directory import RunDirectory

Place = Callable[[Any], Any]
AVERAGE = "average"


BEST = "best"


def restore_params(
    run_dir: str | Path | RunDirectory,
    step: int | str | None = None,
    *,
    mesh: jax.sharding.Mesh | None = None,
) -> tuple[Any, int]:
    """Reads the parameters of a run; needs nothing but the run directory.

    Args:
        run_dir: the run.
        step: a number, "best" (by supervised validation loss), "average" (what
            `mnmt average` wrote), or None for the newest.
        mesh: where to put them, sharded by the rule table; None gives them to the first device.

    Returns:
        The parameters, float32, and the step they are of (the newest one for an average).

    Raises:
        UserError: if there is no such checkpoint or it is damaged.
    """
    run = RunDirectory.open(run_dir)
    axes = param_axes(run.config().model) if mesh else {}
    return load_params(run, step, functools.partial(place_params, mesh=mesh, extra_axes=axes))


def load_params(
    run_dir: str | Path | RunDirectory,
    step: int | str | None = None,
    place: Place = lambda params: params,
) -> tuple[Any, int]:
    """Reads the parameters of a run into the host's memory; see `restore_params`.

    Args:
        run_dir: the run.
        step: as there.
        place: what to do with them before they are compared with their fingerprint.
    """
    run = RunDirectory.open(run_dir)
    if step == AVERAGE:
        folder = absolute_path(run.average)
        if not (folder / "facts.json").is_file():
            raise UserError(f"{folder}: no average yet; run 'mnmt average'")
        remedy = "run 'mnmt average' again"
        facts = read_object(folder / "facts.json", "fingerprint", "step", remedy=remedy)
        return read_numpy(folder / "params", facts["fingerprint"], place), facts["step"]
    found = best_steps(run, 1)[0] if step == BEST else choose_step(run.checkpoints, step)
    return read_step(run.checkpoints, found, place), found


def write_params(run_dir: str | Path, params: Any) -> None:
    """Writes step 0 of a run that starts from parameters made elsewhere, without any training.

    Args:
        run_dir: the run.
        params: tree of `LazyArray`; one of them is in memory at a time.
    """
    folder = RunDirectory(Path(run_dir)).checkpoints.absolute() / "0"
    folder.mkdir(parents=True)
    record = {
        "extra": {},
        "fingerprints": {"params": write_lazily(folder / "params", params)},
        "arrays": {"params": array_types(params)},
    }
    with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as writer:
        writer.save(folder / "extra", args=ocp.args.JsonSave(record))
    for part in (folder / "params", folder):
        (part / MARK).touch()  # if it is copied to a bucket


def best_steps(run_dir: str | Path | RunDirectory, count: int) -> list[int]:
    """Returns the steps of the checkpoints of lowest validation loss, best first, at most `count`.

    Raises:
        UserError: if no checkpoint of the run has a validation loss.
    """
    directory = RunDirectory.open(run_dir).checkpoints
    losses = {step: _loss(directory, step) for step in available_steps(directory)}
    measured = {step: loss for step, loss in losses.items() if loss is not None}
    if not measured:
        raise UserError(f"{directory}: no checkpoint has a validation loss; name a step instead")
    return sorted(measured, key=lambda step: measured[step])[:count]


def available_steps(directory: Path) -> list[int]:
    """Returns the steps of the complete checkpoints in a folder, ascending."""
    if not directory.is_dir():
        return []
    return sorted(ocp.utils.checkpoint_steps(absolute_path(directory)))


def choose_step(directory: Path, step: int | str | None) -> int:
    """Returns the number of the step asked for; None asks for the newest.

    Raises:
        UserError: if there is no such checkpoint.
    """
    steps = available_steps(directory)
    if not steps:
        raise UserError(f"{directory}: no complete checkpoint; train first with 'mnmt train'")
    if step is None:
        return steps[-1]
    if step not in steps:
        raise UserError(f"{directory}: no checkpoint {step}; there are {steps}")
    return int(step)


def _loss(directory: Path, step: int) -> float | None:
    path = directory / str(step) / "metrics" / "metrics"
    if not path.is_file():
        return None
    loss = read_object(path, LOSS, remedy="name a step instead of the best")[LOSS]
    return float(loss) if isinstance(loss, int | float) else math.inf


def read_step(directory: Path, step: int, place: Place = lambda params: params) -> Any:
    """Reads the parameters of a step into the host's memory; `place` as in `load_params`.

    Raises:
        UserError: if they are damaged.
    """
    folder = absolute_path(directory) / str(step)
    try:
        record = read_record(folder)
        return read_numpy(folder / "params", record["fingerprints"]["params"], place)
    except Exception as error:
        others = [other for other in available_steps(directory) if other != step]
        remedy = f"; choose another --step of {others}" if others else ""
        known = isinstance(error, UserError)
        told = str(error) if known else f"{folder} cannot be read ({one_line(error)})"
        raise UserError(told + remedy) from error


def place_params(
    params: Any,
    mesh: jax.sharding.Mesh | None,
    extra_axes: Mapping[str, tuple[str, ...]] | None = None,
) -> Any:
    """Puts parameters on devices, as `restore_params` does, one array after the other.

    Args:
        params: NumPy arrays in dictionaries, each of which is taken out and let go, so that hardly
            more than the parameters is in memory at a time.
        mesh: as there.
        extra_axes: axes of the plan's own parameters (`mnmt_jax.design.plan.Plan.param_axes`).
    """
    one = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return _in_turn(params, tree_sharding(mesh, params, extra_axes or {}) if mesh else one)


def _in_turn(params: Any, shardings: Any) -> Any:
    if not isinstance(params, dict):
        return jax.block_until_ready(jax.device_put(params, shardings))
    several = isinstance(shardings, dict)
    return {
        name: _in_turn(params.pop(name), shardings[name] if several else shardings)
        for name in list(params)
    }


def check_parameters(run: RunDirectory, config: Model, vocab_size: int, params: Any) -> None:
    """Checks that the parameters of a run are those of its model.

    Args:
        run: names the checkpoints in an error.
        config: of the model.
        vocab_size: entries of the vocabulary.
        params: what was read.

    Raises:
        UserError: with the first array that differs: somebody changed the configuration.
    """
    shapes = parameter_shapes(config, vocab_size)
    check_arrays(run.checkpoints, array_types(params), array_types(shapes))
