"""Readers and checks of the files of a checkpoint, in this process alone."""

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

ITEMS = ("params", "training")  # the items of every checkpoint that hold arrays
AVERAGED = "averaged_params"  # a further one, in runs with an average of their parameters
METRICS = "metrics"  # Orbax's folder of a step's metrics, and its file there
LOSS = "loss"  # name of a step's metric
_LEAST_SLICE = 1 << 20  # bytes of an array that a replica writes beside other replicas
MARK = "commit_success.txt"  # written by Orbax into all folders of a complete checkpoint


class _HarmlessFilter(logging.Filter):
    """Drop warnings of Orbax about omitted files, and errors that we report ourselves."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        harmless_texts = (
            "Metadata file does not exist",
            "Failed to get item metadata",
            "`tracked_metric`",
            "Save Finalize thread",
            "_SignalingThread.run()",
            "Failed to run",
        )
        return not any(harmless in text for harmless in harmless_texts)


logging.getLogger("absl").addFilter(_HarmlessFilter())


class DamagedError(Exception):
    """Files of a checkpoint are missing, corrupt or not what was saved."""


def read_record(folder: Path) -> dict[str, Any]:
    """Return the JSON record that `save` wrote with the arrays of a step.

    Raises:
        ValueError: if it has no fingerprints.
    """
    with _reader(ocp.JsonCheckpointHandler) as reader:
        record = reader.restore(folder / "extra")
    if not isinstance(record, dict) or not isinstance(record.get("fingerprints"), dict):
        raise ValueError("its record has no 'fingerprints'")
    return record


def _reader(handler: Callable[..., ocp.CheckpointHandler]) -> ocp.Checkpointer:
    """Open a checkpointer for this process alone: other processes need not read along."""
    process = jax.process_index()
    options = ocp.options.MultiprocessingOptions(
        primary_host=process,
        active_processes={process},
        barrier_sync_key_prefix=f"process_{process}",
    )
    return ocp.Checkpointer(
        handler(multiprocessing_options=options), multiprocessing_options=options
    )


def array_handler(**options: Any) -> ocp.PyTreeCheckpointHandler:
    """Return Orbax's handler of array trees, without compression.

    Compression shrinks trained float32 numbers by less than a tenth, and took most of a save's
    processor seconds (docs/performance.md). Small arrays are written by one of their replicas: to
    divide one among replicas, each of them compiles a program.
    """
    divided = ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=_LEAST_SLICE)
    registry = ocp.type_handlers.create_type_handler_registry(
        *((number, ocp.type_handlers.ScalarHandler()) for number in (int, float, np.number)),
        (np.ndarray, ocp.type_handlers.NumpyHandler()),
        (jax.Array, divided),
    )
    options = {"type_handler_registry": registry, **options}
    return ocp.PyTreeCheckpointHandler(use_compression=False, **options)


def read_numpy(
    folder: Path, fingerprint: int, transfer: Callable[[Any], Any] = lambda arrays: arrays
) -> Any:
    """Read an item into the host's memory and verify its fingerprint.

    Args:
        folder: folder of the item.
        fingerprint: fingerprint of what was saved.
        transfer: function applied to the arrays before, such as a transfer to devices.

    Raises:
        UserError: if it cannot be read or is not what was saved.
    """
    try:
        params = load_numpy(folder)
    except Exception as error:
        raise UserError(f"{folder} cannot be read ({one_line(error)})") from error
    params = transfer(params)
    if tree_fingerprint(params) != fingerprint:
        raise UserError(f"{folder} is damaged: its content differs from what was saved")
    return params


def load_numpy(folder: Path) -> Any:
    """Read an item of any structure into the host's memory."""
    handler = functools.partial(ocp.PyTreeCheckpointHandler, type_handler_registry=mapped_arrays())
    with event_loops_that_drain(), _reader(handler) as reader:
        metadata = reader.metadata(folder).item_metadata
        if metadata is None:
            raise ValueError("files are missing or damaged")
        shapes = metadata.tree
        arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), shapes)
        return reader.restore(folder, restore_args=arguments)


def check_marks(directory: Path) -> None:
    """Check that Orbax would not mistake a complete checkpoint in a bucket for an unfinished one.

    Raises:
        UserError: if a checkpoint looks complete but has no completion mark.
    """
    for folder in directory.iterdir() if directory.exists() else ():
        if not folder.name.isdecimal() or (folder / MARK).exists():
            continue
        if _looks_complete(folder) and (folder / "extra" / "metadata").exists():
            raise UserError(
                f"{folder} has no {MARK}, which marks a checkpoint in a bucket as complete; if it "
                "was copied completely, put an empty file of this name into it and its folders"
            )


def _looks_complete(folder: Path) -> bool:
    """Return whether Orbax's record of a step, if it has one, says when the step was completed."""
    metadata = folder / "_CHECKPOINT_METADATA"
    if not metadata.exists():
        return True
    try:
        return bool(json.loads(metadata.read_text())["commit_timestamp_nsecs"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{metadata} is damaged; copy {folder} again, or remove it") from None


def array_types(tree: Any) -> dict[str, str]:
    """Return dtype and shape of every array by its path, e.g. `float32[64, 16]`."""
    return {
        param_path(path): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def check_arrays(folder: Path, stored: Mapping[str, str], model: Mapping[str, str]) -> None:
    """Compare the `array_types` of a step with those of the model.

    Raises:
        UserError: for the first array that differs.
    """
    for name in sorted(stored.keys() | model.keys()):
        saved, expected = stored.get(name, "absent"), model.get(name, "absent")
        if saved != expected:
            raise UserError(
                f"{folder} was written with another configuration or version: '{name}' is {saved} "
                f"there, {expected} now; restore the configuration or choose another run"
            )


def check_readable(folder: Path) -> None:
    """Read the arrays of a step again, without devices, to find out whether the files are at fault.

    Raises:
        DamagedError: if the files are at fault.
        Exception: any other error that prevented reading.
    """
    for name in read_record(folder)["fingerprints"]:
        try:
            load_numpy(folder / name)
        except Exception as error:
            raise as_damaged_error(error) from error


def as_damaged_error(error: Exception) -> Exception:
    """Return a `DamagedError`, or the error itself if the machine is at fault."""
    return error if is_machine_error(error) else DamagedError(one_line(error))
