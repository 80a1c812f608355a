"""Checkpoints: written in the background by Orbax, verified when read.

A step's folder holds `params` (the master weights alone, all that translation needs), `training`
(optimizer, step, metric sums) and `extra` (JSON: position in the data, fingerprints, shapes). Orbax
gives a folder its name only when it is complete, so a process may die at any moment. The
fingerprints catch what a file system may do to it later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from mnmt_jax.distributed.processes import is_first, told_by_first, wait_for_all
from mnmt_jax.errors import UserError
from mnmt_jax.files.bucket import absolute_path, is_bucket, move_folder
from mnmt_jax.files.storage_errors import (
    is_machine_error,
    one_line,
    storage_error_reason,
    write_refusal,
)
from mnmt_jax.runs.checkpoint_files import (
    ITEMS,
    LOSS,
    DamagedError,
    array_handler,
    array_types,
    as_damaged_error,
    check_arrays,
    check_marks,
    check_readable,
    read_numpy,
    read_record,
)
from mnmt_jax.runs.fingerprint import tree_fingerprint
from mnmt_jax.runs.orbax_cleanup import event_loops_that_drain
from mnmt_jax.training.state import TrainState


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
        keep_every: int = 0,
        report: Callable[[str], None] | None = None,
    ) -> None:
        """Opens the folder, creating it if needed, and removes what an interrupted save left.

        Args:
            directory: of all steps.
            keep_last: newest steps kept, at least 1.
            keep_best: steps kept besides, by validation loss.
            keep_every: multiples of it are kept besides; 0 keeps none.
            report: takes lines for the person watching; None prints them to stderr.
        """
        if keep_last < 1 or keep_best < 0:
            raise UserError(
                f"Train.keep_last={keep_last}, Train.keep_best={keep_best}: at least 1 and 0 needed"
            )
        self.directory = absolute_path(directory)
        self._report = report or functools.partial(print, file=sys.stderr)
        self._options = _options(keep_last, keep_best, keep_every)
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
        if why := write_refusal(self.directory, size) if looks else "":
            self._could_not_write(why)
        if told_by_first([bool(why)])[0]:
            return
        record = {
            "extra": dict(extra),
            "fingerprints": {name: tree_fingerprint(tree) for name, tree in trees.items()},
            "arrays": {name: array_types(tree) for name, tree in trees.items()},
        }
        items = ocp.args.Composite(
            **{name: ocp.args.PyTreeSave(tree) for name, tree in trees.items()},
            extra=ocp.args.JsonSave(record),
        )
        metrics = None if loss is None else {LOSS: float(loss)}
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
        trouble = storage_error_reason(error)
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
            if not storage_error_reason(error):
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
        handlers: dict[str, ocp.CheckpointHandler] = {name: array_handler() for name in ITEMS}
        handlers["extra"] = ocp.JsonCheckpointHandler()
        return ocp.CheckpointManager(self.directory, options=options, item_handlers=handlers)

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
                if is_machine_error(error):
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
            raise as_damaged_error(error) from error
        if "training" not in record["fingerprints"]:
            raise UserError(
                f"{folder} holds parameters but no training to continue; start one with another "
                f"--workdir and --initialize_from={self.directory.parent}"
            )
        for name, tree in wanted.items():
            check_arrays(folder, record.get("arrays", {}).get(name, {}), array_types(tree))
        arguments = {
            name: ocp.args.PyTreeRestore(tree, ocp.checkpoint_utils.construct_restore_args(tree))
            for name, tree in wanted.items()
        }
        try:
            with event_loops_that_drain():
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


def _options(keep_last: int, keep_best: int, keep_every: int) -> ocp.CheckpointManagerOptions:
    def loss(metrics: Mapping[str, float]) -> float:
        return metrics[LOSS]

    best = checkpoint_managers.BestN(
        get_metric_fn=loss, reverse=True, n=keep_best, keep_checkpoints_without_metrics=False
    )
    kept: list[checkpoint_managers.PreservationPolicy] = [
        checkpoint_managers.LatestN(keep_last),
        best,
    ]
    if keep_every:
        kept.append(checkpoint_managers.EveryNSteps(keep_every))
    return ocp.CheckpointManagerOptions(
        preservation_policy=checkpoint_managers.AnyPreservationPolicy(kept),
        best_fn=loss,
        best_mode="min",
    )


def _trees(state: TrainState) -> dict[str, Any]:
    """Splits a state, or its abstract form, into the items of a checkpoint."""
    return dict(zip(ITEMS, (state.params, dataclasses.replace(state, params={})), strict=True))
