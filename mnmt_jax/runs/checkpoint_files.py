"""Reads and checks the parts of a checkpoint's folder, in this process alone."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from mnmt_jax.errors import UserError
from mnmt_jax.files.storage_errors import is_machine_error, one_line
from mnmt_jax.runs.fingerprint import param_path, tree_fingerprint
from mnmt_jax.runs.orbax_cleanup import event_loops_that_drain
from mnmt_jax.runs.params_reader import mapped_arrays

ITEMS = ("params", "training")  # the parts of a checkpoint that hold arrays
LOSS = "loss"  # the metric of a step
MARK = "commit_success.txt"  # Orbax's, in every part of a checkpoint that is complete


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


class DamagedError(Exception):
    """Says that the files of a checkpoint are missing, corrupt or not what was saved."""


def read_record(folder: Path) -> dict[str, Any]:
    """Returns what `save` wrote beside the arrays of a step."""
    with _reader(ocp.JsonCheckpointHandler) as reader:
        return reader.restore(folder / "extra")


def _reader(handler: Callable[..., ocp.CheckpointHandler]) -> ocp.Checkpointer:
    """Opens a checkpointer of this process alone: the others need not read at the same time."""
    own = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"process_{own}"
    )
    return ocp.Checkpointer(handler(multiprocessing_options=alone), multiprocessing_options=alone)


def array_handler(**options: Any) -> ocp.PyTreeCheckpointHandler:
    """Returns Orbax's handler of trees of arrays, which writes them as they lie.

    Trained float32 numbers shrink by less than a tenth, and compressing them took most of a save's
    processor seconds (docs/performance.md).
    """
    return ocp.PyTreeCheckpointHandler(use_compression=False, **options)


def read_numpy(
    folder: Path, fingerprint: int, place: Callable[[Any], Any] = lambda arrays: arrays
) -> Any:
    """Reads an item into the host's memory and compares it with its fingerprint.

    Args:
        folder: of the item.
        fingerprint: of what was saved.
        place: what to do with the arrays before, such as to put them on devices.

    Raises:
        UserError: if it cannot be read or is not what was saved.
    """
    try:
        params = load_numpy(folder)
    except Exception as error:
        raise UserError(f"{folder} cannot be read ({one_line(error)})") from error
    params = place(params)
    if tree_fingerprint(params) != fingerprint:
        raise UserError(f"{folder} is damaged: its content differs from what was saved")
    return params


def load_numpy(folder: Path) -> Any:
    """Reads an item into the host's memory, whatever structure it has."""
    handler = functools.partial(ocp.PyTreeCheckpointHandler, type_handler_registry=mapped_arrays())
    with event_loops_that_drain(), _reader(handler) as reader:
        metadata = reader.metadata(folder).item_metadata
        if metadata is None:
            raise ValueError("files are missing or damaged")
        shapes = metadata.tree
        arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), shapes)
        return reader.restore(folder, restore_args=arguments)


def check_marks(directory: Path) -> None:
    """Refuses to open a bucket's folder where Orbax would take a whole checkpoint for half of one.

    Raises:
        UserError: if a checkpoint looks complete and has no mark that says so.
    """
    for folder in directory.iterdir() if directory.exists() else ():
        facts = folder / "_CHECKPOINT_METADATA"
        if not folder.name.isdigit() or (folder / MARK).exists():
            continue
        whole = not facts.exists() or json.loads(facts.read_text())["commit_timestamp_nsecs"]
        if whole and (folder / "extra" / "metadata").exists():
            raise UserError(
                f"{folder} has no {MARK}, which makes a checkpoint in a bucket complete; if it "
                "was copied here whole, put an empty file of this name into it and its folders"
            )


def array_types(tree: Any) -> dict[str, str]:
    """Returns dtype and shape of every array by its path, e.g. `float32[64, 16]`."""
    return {
        param_path(path): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def check_arrays(folder: Path, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Compares the `array_types` of a step with those of the model.

    Raises:
        UserError: with the first array that differs.
    """
    for name in sorted(found.keys() | wanted.keys()):
        there, here = found.get(name, "absent"), wanted.get(name, "absent")
        if there != here:
            raise UserError(
                f"{folder} was written with another configuration or version: '{name}' is {there} "
                f"there, {here} now; restore the configuration or choose another run"
            )


def check_readable(folder: Path) -> None:
    """Reads the arrays of a step once more, without devices, to tell bad files from a bad moment.

    Raises:
        DamagedError: if the files are at fault.
        Exception: what else kept them from being read.
    """
    for name in ITEMS:
        try:
            load_numpy(folder / name)
        except Exception as error:
            raise as_damaged_error(error) from error


def as_damaged_error(error: Exception) -> Exception:
    """Returns the error itself if the machine is at fault, and `DamagedError` if the files are."""
    return error if is_machine_error(error) else DamagedError(one_line(error))
