"""Checkpoints of a training run: written in the background by Orbax, verified when read.

A step's folder has `params` (the master weights), `training` (optimizer, step, metric sums),
`extra` (JSON: position in the data, fingerprints, shapes), and in runs with an average of their
parameters `averaged_params`. Translation needs the average, or else the master weights. Orbax
gives a folder its final name only when it is complete, so a process may die at any time. The
fingerprints detect later damage by the file system.
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

from mnmt_jax.distributed.processes import broadcast_from_first, is_first, wait_for_all
from mnmt_jax.errors import UserError
from mnmt_jax.files.bucket import absolute_path, is_bucket, move_folder, remove_folder
from mnmt_jax.files.storage_errors import (
    is_machine_error,
    one_line,
    storage_error_reason,
    write_refusal,
    write_remedy,
)
from mnmt_jax.runs.checkpoint_files import (
    AVERAGED,
    ITEMS,
    LOSS,
    METRICS,
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
from mnmt_jax.runs.parameters import available_steps, read_loss
from mnmt_jax.training.state import TrainState

# Checkpoints that may be of a stop: the newest, and one that a dying process did not remove.
_LATEST = 2


class RestoredCheckpoint(NamedTuple):
    """A restored checkpoint.

    Attributes:
        state: the train state.
        extra: the JSON values passed to `save`.
    """

    state: TrainState
    extra: dict[str, Any]


class Checkpoints:
    """The checkpoints of a training run."""

    def __init__(
        self,
        directory: Path,
        *,
        keep_last: int = 5,
        keep_best: int = 1,
        keep_every: int = 0,
        required: Sequence[str] = (),
        report: Callable[[str], None] | None = None,
    ) -> None:
        """Open the folder, create it if needed, and remove leftovers of an interrupted save.

        Args:
            directory: folder of all steps.
            keep_last: number of newest regular steps to keep, at least 1.
            keep_best: number of further steps to keep, by validation loss.
            keep_every: multiples of this step are kept, too; 0 keeps none.
            required: keys of JSON objects among the values passed to `save`; a checkpoint without
                one of them is damaged.
            report: receives messages for the user; None prints them to stderr.
        """
        if keep_last < 1 or keep_best < 0:
            raise UserError(
                f"Train.keep_last={keep_last}, Train.keep_best={keep_best}: at least 1 and 0 needed"
            )
        self.directory = absolute_path(directory)
        self._required = tuple(required)
        self._report = report or functools.partial(print, file=sys.stderr)
        self._interim: set[int] = set()
        self._options = _options(keep_last, keep_best, keep_every, self._interim)
        self._manager = self._open()
        self._saving: int | None = None
        self._failed = ""  # reason why the newest state is not on disk

    def steps(self) -> list[int]:
        """Return the steps of complete checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def save(
        self,
        state: TrainState,
        extra: Mapping[str, Any],
        loss: float | None = None,
        averaged_params: Any = None,
        *,
        is_interim: bool = False,
    ) -> None:
        """Start writing a checkpoint; the state may be donated as soon as this returns.

        If storage is full or read-only, this is reported, and later saves are still tried. With
        several processes it is an error, because one cannot continue without the others.

        Args:
            state: state to write.
            extra: JSON values to write with it.
            loss: validation loss at this step, for choosing the best; None if not measured here.
            averaged_params: average of the parameters for translation; None if there is none.
            is_interim: whether it is for a stop between two regular ones. It is kept until there is
                a newer one and displaces none, so that interruptions do not change what is kept.

        Raises:
            UserError: with several processes, if the storage refused.
        """
        self.wait()
        step, trees = int(state.step), _trees(state, averaged_params)
        if is_interim:
            self._interim.add(step)
        self._saving = step
        if self._failed:
            self._remove_unfinished()  # leftovers of failed saves
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(trees))
        checks_storage = is_first() and not is_bucket(self.directory)
        if refusal := write_refusal(self.directory, size) if checks_storage else "":
            self._record_failure(refusal)
        if broadcast_from_first([bool(refusal)])[0]:
            return
        record = {
            "extra": dict(extra),
            "fingerprints": {name: tree_fingerprint(tree) for name, tree in trees.items()},
            "arrays": {name: array_types(tree) for name, tree in trees.items()},
            "is_interim": is_interim,
        }
        items = ocp.args.Composite(
            **{name: ocp.args.PyTreeSave(tree) for name, tree in trees.items()},
            extra=ocp.args.JsonSave(record),
        )
        metrics = None if loss is None else {LOSS: float(loss)}
        try:
            self._manager.save(step, args=items, metrics=metrics, force=True)
        except Exception as error:
            self._handle_refusal(error)

    def restore(self, abstract_state: TrainState) -> RestoredCheckpoint | None:
        """Read the newest intact checkpoint and move newer, damaged ones out of the way.

        Args:
            abstract_state: shapes, types and shardings wanted, from `abstract_state`.

        Returns:
            None if there is no checkpoint.

        Raises:
            UserError: if there are checkpoints but all are damaged, or one is of another model.
            Exception: an error of the machine, such as lack of memory; nothing is moved then.
        """
        steps = broadcast_from_first(self.steps()[::-1])
        damaged_steps = []
        for step in steps:
            try:
                restored = self._read_on_all(step, abstract_state)
            except DamagedError as error:
                damaged_steps.append(step)
                self._report(f"checkpoint {step} cannot be read ({error})")
                continue
            self._move_damaged(damaged_steps)
            intact = [step for step in steps if step not in damaged_steps]
            self._interim |= set(filter(self._is_interim, intact[:_LATEST]))
            return restored
        if steps:
            raise UserError(
                f"{self.directory}: none of the checkpoints {sorted(steps)} can be read; move the "
                "folder away to start again"
            )
        return None

    def is_saving(self) -> bool:
        """Return whether a save is still in progress."""
        return bool(self._manager.is_saving_in_progress())

    def wait(self) -> None:
        """Wait until all saves are on disk, or refused by the storage.

        Raises:
            Exception: any other error of the background save.
        """
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            self._handle_refusal(error)
        else:
            if self._saving in self._manager.all_steps():
                self._failed = ""

    def close(self, *, raise_errors: bool = True) -> None:
        """Wait for saves and close the folder.

        Args:
            raise_errors: whether to raise; False if another error is already being raised.

        Raises:
            UserError: if the storage refused the newest state.
        """
        if self._failed and jax.process_count() > 1:
            return  # the other processes do not get here
        self.wait()
        self._manager.close()
        if self._failed and raise_errors:
            raise UserError(f"{self._failed}; start the same command again: it continues there")

    def _handle_refusal(self, error: Exception) -> None:
        """Report that the storage refused a checkpoint; raise other errors again."""
        reason = storage_error_reason(error)
        if not reason:
            raise error
        if jax.process_count() == 1:  # with several, the others do not get here
            self._reopen()
        self._record_failure(reason)

    def _reopen(self) -> None:
        """Open the folder again; keep the old manager while the folder is out of reach."""
        try:
            manager = self._open(cleanup=False)
        except Exception as error:
            if not storage_error_reason(error):
                raise
            return
        with contextlib.suppress(Exception):  # its errors are already reported
            self._manager.close()
        self._manager = manager
        self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        """Free the space of a refused save; threads of Orbax may still be writing there.

        Files that they add later are removed at the next save, and in a bucket at the next start.
        """
        if is_bucket(self.directory):
            return
        for folder in self.directory.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def _record_failure(self, reason: str) -> None:
        steps = self.steps()
        self._failed = (
            f"checkpoint {self._saving} could not be written ({reason}); "
            f"{write_remedy(reason)} at {self.directory}; "
            f"the last good one is {steps[-1] if steps else 'none'}"
        )
        if jax.process_count() > 1:
            raise UserError(self._failed)
        self._report(self._failed)

    def _open(self, *, cleanup: bool = True) -> ocp.CheckpointManager:
        if is_bucket(self.directory):
            check_marks(self.directory)
        self._remove_damaged_metrics()
        options = dataclasses.replace(self._options, cleanup_tmp_directories=cleanup)
        handlers: dict[str, ocp.CheckpointHandler] = {
            name: array_handler() for name in (*ITEMS, AVERAGED)
        }
        handlers["extra"] = ocp.JsonCheckpointHandler()
        return ocp.CheckpointManager(self.directory, options=options, item_handlers=handlers)

    def _remove_damaged_metrics(self) -> None:
        """Remove validation losses that cannot be read, because Orbax reads those of all steps."""
        for step in available_steps(self.directory) if is_first() else ():
            remedy = f"removed, so that checkpoint {step} counts as not validated"
            try:
                read_loss(self.directory, step, remedy=remedy)
            except UserError as error:
                remove_folder(self.directory / str(step) / METRICS)
                self._report(str(error))
        wait_for_all("metrics checked")

    def _read_on_all(self, step: int, abstract_state: TrainState) -> RestoredCheckpoint:
        """Read a step; with several processes, process 0 verifies it first, so that all agree.

        Raises:
            DamagedError: in every process, if the step is damaged.
            UserError: if another process disagrees with process 0.
        """
        if jax.process_count() == 1:
            return self._read(step, abstract_state)
        damage: Exception | None = None
        if is_first():
            try:
                record = self._read_record(step)
                for name, fingerprint in record["fingerprints"].items():
                    read_numpy(self.directory / str(step) / name, fingerprint)
            except Exception as error:
                if is_machine_error(error):
                    raise
                damage = error
        if broadcast_from_first([damage is not None])[0]:
            raise DamagedError(one_line(damage) if damage else "says process 0")
        try:
            return self._read(step, abstract_state)
        except DamagedError as error:
            raise UserError(
                f"{self.directory / str(step)} is complete for process 0: {error}"
            ) from error

    def _read_record(self, step: int) -> dict[str, Any]:
        """Read the record of a step.

        Raises:
            DamagedError: if it cannot be read, or lacks something.
        """
        try:
            record = read_record(self.directory / str(step))
        except Exception as error:
            raise as_damaged_error(error) from error
        extra = record.get("extra")
        values = extra if isinstance(extra, dict) else {}
        missing = [
            key for key in self._required if not (isinstance(values.get(key), dict) and values[key])
        ]
        if missing and "training" in record["fingerprints"]:
            raise DamagedError(f"its record has no '{missing[0]}'")
        return record

    def _is_interim(self, step: int) -> bool:
        """Return whether a step was saved for a stop; one that cannot be read was not."""
        with contextlib.suppress(DamagedError):
            return bool(self._read_record(step).get("is_interim"))
        return False

    def _read(self, step: int, abstract_state: TrainState) -> RestoredCheckpoint:
        folder = self.directory / str(step)
        wanted = _trees(abstract_state, abstract_state.average or None)
        record = self._read_record(step)
        if "training" not in record["fingerprints"]:
            raise UserError(
                f"{folder} has parameters but no training state; start a new run from it with "
                f"another --workdir and --initialize_from={self.directory.parent}"
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
            raise  # the files are intact: the error has another cause
        for name in wanted:
            if tree_fingerprint(items[name]) != record["fingerprints"].get(name):
                raise DamagedError(f"'{name}' differs from what was saved")
        average = items[AVERAGED] if abstract_state.average else {}
        state = TrainState(**(items.training | {"params": items.params}), average=average)
        return RestoredCheckpoint(state, record["extra"])

    def _move_damaged(self, steps: Sequence[int]) -> None:
        """Move damaged checkpoints out of the way of later ones."""
        if not steps:
            return
        self._manager.close()
        damaged_folder = self.directory.with_name(f"{self.directory.name}_damaged")
        damaged_folder.mkdir(exist_ok=True)
        for step in steps if is_first() else ():
            source, target = self.directory / str(step), damaged_folder / str(step)
            try:
                move_folder(source, target)
            except OSError as error:
                raise UserError(
                    f"{source}: is damaged and cannot be moved to {target} ({one_line(error)}); "
                    "move it away"
                ) from error
            self._report(f"checkpoint {step} was moved to {target}")
        wait_for_all("set aside")
        self._manager = self._open()


class _BestN(checkpoint_managers.BestN):
    """The best checkpoints, the earliest among equals, as in `ValidationHistory`."""

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Return whether each checkpoint is kept."""
        return super().should_preserve(checkpoints[::-1], context=context)[::-1]


@dataclasses.dataclass
class _RegularOrNewest(checkpoint_managers.AnyPreservationPolicy):
    """The newest checkpoint, and of the regular ones those that a policy keeps."""

    interim: set[int]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Return whether each checkpoint is kept."""
        regular = [item for item in checkpoints if item.step not in self.interim]
        decisions = super().should_preserve(regular, context=context) if regular else []
        kept = {item.step for item, keeps in zip(regular, decisions, strict=True) if keeps}
        return [item.step in kept or item is checkpoints[-1] for item in checkpoints]


def _options(
    keep_last: int, keep_best: int, keep_every: int, interim: set[int]
) -> ocp.CheckpointManagerOptions:
    def loss(metrics: Mapping[str, float]) -> float:
        return metrics[LOSS]

    best = _BestN(
        get_metric_fn=loss, reverse=True, n=keep_best, keep_checkpoints_without_metrics=False
    )
    policies: list[checkpoint_managers.PreservationPolicy] = [
        checkpoint_managers.LatestN(keep_last),
        best,
    ]
    if keep_every:
        policies.append(checkpoint_managers.EveryNSteps(keep_every))
    return ocp.CheckpointManagerOptions(
        preservation_policy=_RegularOrNewest(policies, interim),
        best_fn=loss,
        best_mode="min",
    )


def _trees(state: TrainState, averaged_params: Any = None) -> dict[str, Any]:
    """Split a state, or its abstract form, into the items of a checkpoint."""
    training = {"step": state.step, "params": {}, "opt_state": state.opt_state}
    training["window"] = state.window
    items = dict(zip(ITEMS, (state.params, training), strict=True))
    return items if averaged_params is None else items | {AVERAGED: averaged_params}
