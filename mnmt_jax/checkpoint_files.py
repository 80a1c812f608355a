"""Reads the parts of a checkpoint's folder, in this process alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from mnmt_jax.errors import UserError
from mnmt_jax.fingerprint import tree_fingerprint
from mnmt_jax.storage import one_line

MARK = "commit_success.txt"  # Orbax's, in every part of a checkpoint that is complete


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


def read_numpy(folder: Path, fingerprint: int) -> Any:
    """Reads an item into the host's memory and compares it with its fingerprint.

    Raises:
        UserError: if it cannot be read or is not what was saved.
    """
    try:
        params = load_numpy(folder)
    except Exception as error:
        raise UserError(f"{folder} cannot be read ({one_line(error)})") from error
    if tree_fingerprint(params) != fingerprint:
        raise UserError(f"{folder} is damaged: its content differs from what was saved")
    return params


def load_numpy(folder: Path) -> Any:
    """Reads an item into the host's memory, whatever structure it has."""
    with _reader(ocp.PyTreeCheckpointHandler) as reader:
        shapes = reader.metadata(folder).item_metadata.tree
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
