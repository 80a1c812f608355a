"""Checkpoints: written in the background by Orbax, verified when read, averaged.

A step's folder holds `params` (the master weights alone, all that translation needs), `training`
(optimizer, step, metric sums) and `extra` (JSON: position in the data, fingerprints, shapes). Orbax
gives a folder its name only when it is complete, so a process may die at any moment. The
fingerprints catch what a file system may do to it later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from mnmt_jax.bucket import absolute, is_bucket, move_folder
from mnmt_jax.checkpoint_files import (
    ITEMS,
    MARK,
    DamagedError,
    array_types,
    check_arrays,
    check_marks,
    check_readable,
    damage_or,
    read_numpy,
    read_record,
)
from mnmt_jax.errors import UserError
from mnmt_jax.fingerprint import tree_fingerprint
from mnmt_jax.json_files import read_object
from mnmt_jax.params_writer import write_lazily
from mnmt_jax.patient_loop import patient_loops
from mnmt_jax.processes import is_first, told_by_first, wait_for_all
from mnmt_jax.run_directory import RunDirectory
from mnmt_jax.sharding import tree_sharding
from mnmt_jax.storage import is_machine_trouble, one_line, refusal, storage_trouble
from mnmt_jax.train_state import TrainState


class _Harmless(logging.Filter):
    """Drops warnings of Orbax about files left out on purpose, and errors that we report."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        dropped = (
            "Metadata file does not exist",
            "Failed to get item metadata",
            "`tracked_metric`",
            "Save Finalize thread",
            "_SignalingThread.run()",
            "Failed to run",
        )
        return not any(part in text for part in dropped)


logging.getLogger("absl").addFilter(_Harmless())

AVERAGE = "average"
BEST = "best"
_LOSS = "loss"


class Restored(NamedTuple):
    """What a checkpoint gives back.

    Attributes:
        state: the train state.
        extra: what `save` was given.
    """

    state: TrainState
    extra: dict[str, Any]


class Checkpoints:
    """The checkpoints of a run that trains."""

    def __init__(
        self,
        directory: Path,
        *,
        keep_last: int = 5,
        keep_best: int = 1,
        report: Callable[[str], None] | None = None,
    ) -> None:
        """Opens the folder, creating it if needed, and removes what an interrupted save left.

        Args:
            directory: of all steps.
            keep_last: newest steps kept, at least 1.
            keep_best: steps kept besides, by validation loss.
            report: takes lines for the person watching; None prints them to stderr.
        """
        if keep_last < 1 or keep_best < 0:
            raise UserError(
                f"Train.keep_last={keep_last}, Train.keep_best={keep_best}: at least 1 and 0 needed"
            )
        self.directory = absolute(directory)
        self._report = report or functools.partial(print, file=sys.stderr)
        self._options = _options(keep_last, keep_best)
        self._manager = self._open()
        self._saving: int | None = None
        self._failed = ""  # why the newest state is not on disk

    def steps(self) -> list[int]:
        """Returns the steps of complete checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, state: TrainState, extra: Mapping[str, Any], loss: float | None = None) -> None:
        """Starts writing a checkpoint; the state may be donated as soon as this returns.

        What full or read-only storage refuses is reported, and later saves are tried all the same;
        one process of several cannot go on without the others, so there it is an error.

        Args:
            state: what to write.
            extra: JSON values to write beside it.
            loss: validation loss at this step, for choosing the best; None if not measured here.

        Raises:
            UserError: in one of several processes, if the storage refused.
        """
        self.wait()
        step, trees = int(state.step), _trees(state)
        self._saving = step
        if self._failed:
            self._remove_unfinished()  # what was written since
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        looks = is_first() and not is_bucket(self.directory)
        if why := refusal(self.directory, size) if looks else "":
            self._could_not_write(why)
        if told_by_first([bool(why)])[0]:
            return
        record = {
            "extra": dict(extra),
            "fingerprints": {name: tree_fingerprint(tree) for name, tree in trees.items()},
            "arrays": {name: array_types(tree) for name, tree in trees.items()},
        }
        items = ocp.args.Composite(
            **{name: ocp.args.StandardSave(tree) for name, tree in trees.items()},
            extra=ocp.args.JsonSave(record),
        )
        metrics = None if loss is None else {_LOSS: float(loss)}
        try:
            self._manager.save(step, args=items, metrics=metrics, force=True)
        except Exception as error:
            self._refused(error)

    def restore(self, like: TrainState) -> Restored | None:
        """Reads the newest checkpoint that is whole, setting aside newer ones that are not.

        Args:
            like: shapes, types and shardings wanted, from `abstract_state`.

        Returns:
            None if there is no checkpoint.

        Raises:
            UserError: if there are checkpoints but all are damaged, or one is of another model.
            Exception: what the machine raised, such as being out of memory; nothing is moved then.
        """
        steps = told_by_first(self.steps()[::-1])
        failed = []
        for step in steps:
            try:
                restored = self._read_agreed(step, like)
            except DamagedError as error:
                failed.append(step)
                self._report(f"checkpoint {step} cannot be read ({error})")
                continue
            self._set_aside(failed)
            return restored
        if steps:
            raise UserError(
                f"{self.directory}: none of the checkpoints {sorted(steps)} can be read; move the "
                "folder away to start again"
            )
        return None

    def is_saving(self) -> bool:
        """Returns whether what was given to `save` is still being written."""
        return bool(self._manager.is_saving_in_progress())

    def wait(self) -> None:
        """Waits until everything given to `save` is on disk, or refused.

        Raises:
            Exception: what else went wrong in the background.
        """
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            self._refused(error)
        else:
            if self._saving in self._manager.all_steps():
                self._failed = ""

    def close(self, *, complain: bool = True) -> None:
        """Waits and lets go of the folder.

        Args:
            complain: whether to raise; another error, on its way already, says more.

        Raises:
            UserError: if the newest state given to `save` was refused.
        """
        if self._failed and jax.process_count() > 1:
            return  # the others do not come to this place
        self.wait()
        self._manager.close()
        if self._failed and complain:
            raise UserError(f"{self._failed}; start the same command again: it continues there")

    def _refused(self, error: Exception) -> None:
        """Reports that the storage did not take a checkpoint; other errors are raised again."""
        trouble = storage_trouble(error)
        if not trouble:
            raise error
        if jax.process_count() == 1:  # of several, the others do not come to this place
            self._reopen()
        self._could_not_write(trouble)

    def _reopen(self) -> None:
        """Looks at the folder anew; the old view of it serves while the folder is out of reach."""
        try:
            manager = self._open(cleanup=False)
        except Exception as error:
            if not storage_trouble(error):
                raise
            return
        with contextlib.suppress(Exception):  # it has nothing more to say
            self._manager.close()
        self._manager = manager
        self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        """Frees what a refused save took; threads of Orbax may be writing there still.

        What they add meanwhile is left to the next save, and in a bucket all to the next start.
        """
        if is_bucket(self.directory):
            return
        for folder in self.directory.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def _could_not_write(self, why: str) -> None:
        good = self.steps()
        self._failed = (
            f"checkpoint {self._saving} could not be written ({why}); make room at "
            f"{self.directory}; the last good one is {good[-1] if good else 'none'}"
        )
        if jax.process_count() > 1:
            raise UserError(self._failed)
        self._report(self._failed)

    def _open(self, *, cleanup: bool = True) -> ocp.CheckpointManager:
        if is_bucket(self.directory):
            check_marks(self.directory)
        options = dataclasses.replace(self._options, cleanup_tmp_directories=cleanup)
        return ocp.CheckpointManager(self.directory, options=options)

    def _read_agreed(self, step: int, like: TrainState) -> Restored:
        """Reads a step; process 0 of several reads it first, so that all agree that it is whole.

        Raises:
            DamagedError: in every process, if it is not.
            UserError: if one process finds otherwise than process 0.
        """
        if jax.process_count() == 1:
            return self._read(step, like)
        found: Exception | None = None
        if is_first():
            try:
                fingerprints = read_record(self.directory / str(step))["fingerprints"]
                for name, fingerprint in fingerprints.items():
                    read_numpy(self.directory / str(step) / name, fingerprint)
            except Exception as error:
                if is_machine_trouble(error):
                    raise
                found = error
        if told_by_first([found is not None])[0]:
            raise DamagedError(one_line(found) if found else "says process 0")
        try:
            return self._read(step, like)
        except DamagedError as error:
            raise UserError(
                f"{self.directory / str(step)} is whole for process 0: {error}"
            ) from error

    def _read(self, step: int, like: TrainState) -> Restored:
        folder, wanted = self.directory / str(step), _trees(like)
        try:
            record = read_record(folder)
        except Exception as error:
            raise damage_or(error) from error
        if "training" not in record["fingerprints"]:
            raise UserError(
                f"{folder} holds parameters but no training to continue; start one with another "
                f"--workdir and --initialize_from={self.directory.parent}"
            )
        for name, tree in wanted.items():
            check_arrays(folder, record.get("arrays", {}).get(name, {}), array_types(tree))
        arguments = {name: ocp.args.StandardRestore(tree) for name, tree in wanted.items()}
        try:
            with patient_loops():
                items = self._manager.restore(step, args=ocp.args.Composite(**arguments))
        except Exception:
            check_readable(folder)
            raise  # the files are fine: the error is not theirs
        for name in ITEMS:
            if tree_fingerprint(items[name]) != record["fingerprints"][name]:
                raise DamagedError(f"'{name}' differs from what was saved")
        return Restored(dataclasses.replace(items.training, params=items.params), record["extra"])

    def _set_aside(self, steps: Sequence[int]) -> None:
        """Moves damaged checkpoints out of the way of the ones to come."""
        if not steps:
            return
        self._manager.close()
        aside = self.directory.with_name(f"{self.directory.name}_damaged")
        aside.mkdir(exist_ok=True)
        for step in steps if is_first() else ():
            move_folder(self.directory / str(step), aside / str(step))
            self._report(f"checkpoint {step} was moved to {aside / str(step)}")
        wait_for_all("set aside")
        self._manager = self._open()


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
            `scripts/average_checkpoints.py` wrote), or None for the newest.
        mesh: where to put them, sharded by the rule table; None gives them to the first device.

    Returns:
        The parameters, float32, and the step they are of (the newest one for an average).

    Raises:
        UserError: if there is no such checkpoint or it is damaged.
    """
    params, found = load_params(run_dir, step)
    return _place(params, mesh), found


def load_params(
    run_dir: str | Path | RunDirectory, step: int | str | None = None
) -> tuple[Any, int]:
    """Reads the parameters of a run into the host's memory; see `restore_params`."""
    run = RunDirectory.open(run_dir)
    if step == AVERAGE:
        folder = absolute(run.average)
        if not (folder / "facts.json").is_file():
            raise UserError(f"{folder}: no average yet; run scripts/average_checkpoints.py")
        remedy = "run scripts/average_checkpoints.py again"
        facts = read_object(folder / "facts.json", "fingerprint", "step", remedy=remedy)
        return read_numpy(folder / "params", facts["fingerprint"]), facts["step"]
    found = best_steps(run, 1)[0] if step == BEST else choose_step(run.checkpoints, step)
    return read_step(run.checkpoints, found), found


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
    return sorted(ocp.utils.checkpoint_steps(absolute(directory)))


def _options(keep_last: int, keep_best: int) -> ocp.CheckpointManagerOptions:
    def loss(metrics: Mapping[str, float]) -> float:
        return metrics[_LOSS]

    best = checkpoint_managers.BestN(
        get_metric_fn=loss, reverse=True, n=keep_best, keep_checkpoints_without_metrics=False
    )
    policy = checkpoint_managers.AnyPreservationPolicy(
        [checkpoint_managers.LatestN(keep_last), best]
    )
    return ocp.CheckpointManagerOptions(
        preservation_policy=policy,
        best_fn=loss,
        best_mode="min",
    )


def choose_step(directory: Path, step: int | str | None) -> int:
    """Returns the number of the step asked for; None asks for the newest.

    Raises:
        UserError: if there is no such checkpoint.
    """
    steps = available_steps(directory)
    if not steps:
        raise UserError(f"{directory}: no complete checkpoint; train first with scripts/train.py")
    if step is None:
        return steps[-1]
    if step not in steps:
        raise UserError(f"{directory}: no checkpoint {step}; there are {steps}")
    return int(step)


def _loss(directory: Path, step: int) -> float | None:
    path = directory / str(step) / "metrics" / "metrics"
    if not path.is_file():
        return None
    loss = read_object(path, _LOSS, remedy="name a step instead of the best")[_LOSS]
    return float(loss) if isinstance(loss, int | float) else math.inf


def read_step(directory: Path, step: int) -> Any:
    """Reads the parameters of a step into the host's memory.

    Raises:
        UserError: if they are damaged.
    """
    folder = absolute(directory) / str(step)
    try:
        record = read_record(folder)
        return read_numpy(folder / "params", record["fingerprints"]["params"])
    except Exception as error:
        others = [other for other in available_steps(directory) if other != step]
        remedy = f"; choose another --step of {others}" if others else ""
        known = isinstance(error, UserError)
        told = str(error) if known else f"{folder} cannot be read ({one_line(error)})"
        raise UserError(told + remedy) from error


def _trees(state: TrainState) -> dict[str, Any]:
    """Splits a state, or its abstract form, into the items of a checkpoint."""
    return dict(zip(ITEMS, (state.params, dataclasses.replace(state, params={})), strict=True))


def _place(params: Any, mesh: jax.sharding.Mesh | None) -> Any:
    if mesh is None:
        return jax.device_put(params, jax.devices()[0])
    return jax.device_put(params, tree_sharding(mesh, params))
