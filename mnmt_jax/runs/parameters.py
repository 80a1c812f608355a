"""Parameters of a run: read, written and placed without its training."""

from __future__ import annotations

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
from mnmt_jax.runs.checkpoint_files import (
    AVERAGED,
    LOSS,
    MARK,
    METRICS,
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


def load_params(
    run_dir: str | Path | RunDirectory,
    step: int | str | None = None,
    transfer: Place = lambda params: params,
    *,
    averaged: bool = True,
) -> tuple[Any, int]:
    """Read the parameters of a run into the host's memory; needs nothing but the run directory.

    Args:
        run_dir: the run.
        step: a number, "best" (by `Train.best_by`), "average" (the result of `mnmt average`), or
            None for the newest.
        transfer: function applied to them before the fingerprint is verified.
        averaged: whether to prefer the average of the parameters, if the checkpoint has one.

    Returns:
        The parameters, float32, and their step (the newest one for an average). If the run keeps
        an average of its parameters (`Optimizer.ema_decay`), it is that of the step.

    Raises:
        UserError: if there is no such checkpoint or it is damaged.
    """
    run = RunDirectory.open(run_dir)
    if step == AVERAGE:
        folder = absolute_path(run.average)
        if not (folder / "facts.json").is_file():
            raise UserError(f"{folder}: no average yet; run 'mnmt average'")
        remedy = "run 'mnmt average' again"
        facts = read_object(folder / "facts.json", "fingerprint", "step", remedy=remedy)
        return read_numpy(folder / "params", facts["fingerprint"], transfer), facts["step"]
    chosen_step = best_steps(run, 1)[0] if step == BEST else choose_step(run.checkpoints, step)
    params = read_step(run.checkpoints, chosen_step, transfer, averaged=averaged)
    return params, chosen_step


def write_params(run_dir: str | Path, params: Any) -> None:
    """Write step 0 of a run that starts from parameters made elsewhere, without training.

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
    for path in (folder / "params", folder):
        (path / MARK).touch()  # for a later copy to a bucket


def best_steps(run_dir: str | Path | RunDirectory, count: int) -> list[int]:
    """Return the steps with the lowest validation losses, best first, at most `count`.

    Raises:
        UserError: if no checkpoint of the run has a validation loss.
    """
    directory = RunDirectory.open(run_dir).checkpoints
    remedy = "name a step instead of the best"
    losses = {
        step: read_loss(directory, step, remedy=remedy) for step in available_steps(directory)
    }
    measured = {
        step: loss for step, loss in losses.items() if loss is not None and not math.isnan(loss)
    }
    if not measured:
        raise UserError(f"{directory}: no checkpoint has a validation loss; name a step instead")
    return sorted(measured, key=lambda step: measured[step])[:count]


def available_steps(directory: Path) -> list[int]:
    """Return the steps of the complete checkpoints in a folder, ascending.

    Orbax also counts folders such as `best_2500`, a copy by hand, as steps.
    """
    if not directory.is_dir():
        return []
    names = [path.name for path in ocp.utils.checkpoint_steps_paths(absolute_path(directory))]
    return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))


def choose_step(directory: Path, step: int | str | None) -> int:
    """Return the number of a step; None selects the newest.

    Raises:
        UserError: if there is no such checkpoint.
    """
    steps = available_steps(directory)
    if not steps:
        raise UserError(f"{directory}: no complete checkpoint; train first with 'mnmt train'")
    if step is None:
        return steps[-1]
    if step not in steps:
        names = f", '{BEST}' and '{AVERAGE}'" if isinstance(step, str) else ""
        raise UserError(f"{directory}: no checkpoint {step}; there are {steps}{names}")
    return int(step)


def read_loss(directory: Path, step: int, *, remedy: str) -> float | None:
    """Read the validation loss of a step; None if the step has none.

    Args:
        directory: folder of all steps.
        step: number of the step.
        remedy: what to do if the file is damaged.

    Raises:
        UserError: if the file is damaged.
    """
    path = directory / str(step) / METRICS / METRICS
    if not path.is_file():
        return None
    loss = read_object(path, LOSS, remedy=remedy)[LOSS]
    if not isinstance(loss, int | float):
        raise UserError(f"{path}: is damaged ('{LOSS}' is no number); {remedy}")
    return float(loss)


def read_step(
    directory: Path,
    step: int,
    transfer: Place = lambda params: params,
    *,
    averaged: bool = True,
) -> Any:
    """Read the parameters of a step into the host's memory; arguments as in `load_params`.

    Raises:
        UserError: if they are damaged.
    """
    folder = absolute_path(directory) / str(step)
    try:
        record = read_record(folder)
        fingerprints = record["fingerprints"]
        item = AVERAGED if averaged and AVERAGED in fingerprints else "params"
        return read_numpy(folder / item, fingerprints[item], transfer)
    except Exception as error:
        others = [other for other in available_steps(directory) if other != step]
        remedy = f"; choose another step, of {others}" if others else ""
        known = isinstance(error, UserError)
        message = str(error) if known else f"{folder} cannot be read ({one_line(error)})"
        raise UserError(message + remedy) from error


def place_params(
    params: Any,
    mesh: jax.sharding.Mesh | None,
    extra_axes: Mapping[str, tuple[str, ...]] | None = None,
) -> Any:
    """Put parameters on devices, one array at a time.

    Args:
        params: NumPy arrays in nested dictionaries. Arrays are removed from them and freed, so that
            memory hardly exceeds that of the parameters.
        mesh: mesh to shard them over, by the rule table; None places them on the first device.
        extra_axes: axes of the plan's own parameters (`mnmt_jax.design.plan.Plan.param_axes`).
    """
    single_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return _place_sequentially(
        params, tree_sharding(mesh, params, extra_axes or {}) if mesh else single_device
    )


def _place_sequentially(params: Any, shardings: Any) -> Any:
    if not isinstance(params, dict):
        return jax.block_until_ready(jax.device_put(params, shardings))
    has_tree = isinstance(shardings, dict)
    return {
        name: _place_sequentially(params.pop(name), shardings[name] if has_tree else shardings)
        for name in list(params)
    }


def check_parameters(run: RunDirectory, config: Model, vocab_size: int, params: Any) -> None:
    """Check that the parameters of a run have the shapes and dtypes of its model.

    Args:
        run: the run, named in errors.
        config: configuration of the model.
        vocab_size: size of the vocabulary.
        params: the parameters.

    Raises:
        UserError: for the first array that differs, because the configuration was edited.
    """
    shapes = parameter_shapes(config, vocab_size)
    check_arrays(run.checkpoints, array_types(params), array_types(shapes))
