"""Averages of a run's checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import new_folder, write_errors
from mnmt_jax.files.bucket import absolute_path, is_bucket, remove_folder
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.runs.parameters import available_steps, choose_step, read_step
from mnmt_jax.runs.params_writer import write_lazily
from mnmt_jax.runs.run_directory import RunDirectory


def average_checkpoints(run_dir: str | Path | RunDirectory, steps: Sequence[int]) -> None:
    """Average the parameters of checkpoints and write RUN/average, replacing an older one.

    An element that is equal in all checkpoints stays as it is: the float32 sum of n equal numbers,
    divided by n, may differ from them. Frozen parameters thus keep their fingerprint.

    Args:
        run_dir: the run.
        steps: steps of the checkpoints, e.g. from `newest_steps` or `best_steps`.

    Raises:
        UserError: if one of them does not exist or is damaged, or RUN/average is not an average;
            nothing is written then.

    Source: MITRE spec 6.7, fairseq's `average_checkpoints`: the mean in float32.
    """
    run = RunDirectory.open(run_dir)
    if run.average.exists() and not (run.average / "params").exists():
        raise UserError(
            f"{run.average}: already exists and is not an average of checkpoints; move it"
        )
    chosen = sorted({choose_step(run.checkpoints, step) for step in steps})
    first = read_step(run.checkpoints, chosen[0])
    total = jax.tree.map(np.array, first)
    is_equal = jax.tree.map(lambda array: np.ones(array.shape, bool), first)
    for step in chosen[1:]:
        jax.tree.map(_add, total, is_equal, first, read_step(run.checkpoints, step))
    mean = jax.tree.map(
        lambda array, equal, sums: np.where(equal, array, sums / np.float32(len(chosen))),
        first,
        is_equal,
        total,
    )
    _write_average(absolute_path(run.average), mean, chosen)


def _add(total: np.ndarray, is_equal: np.ndarray, first: np.ndarray, array: np.ndarray) -> None:
    """Add an array to `total`, and clear `is_equal` where it differs from the first, in place."""
    np.add(total, array, out=total)
    np.logical_and(is_equal, first == array, out=is_equal)


def newest_steps(run_dir: str | Path | RunDirectory, count: int) -> list[int]:
    """Return the steps of the newest checkpoints of a run, at most `count`, at least one.

    Raises:
        UserError: if the run has no checkpoint.
    """
    directory = RunDirectory.open(run_dir).checkpoints
    choose_step(directory, None)
    return available_steps(directory)[-count:]


def _write_average(folder: Path, params: Any, steps: list[int]) -> None:
    if not is_bucket(folder):
        with new_folder(folder, overwrite=True, flag="") as partial:
            _write_files(partial, params, steps)
        return
    # A bucket has no renames. `facts.json` is written last: without it there is no average.
    with write_errors(folder, flag=""):
        remove_folder(folder)
        folder.mkdir()
        _write_files(folder, params, steps)


def _write_files(folder: Path, params: Any, steps: list[int]) -> None:
    fingerprint = write_lazily(folder / "params", jax.tree.map(LazyArray.of, params))
    facts = {"steps": steps, "step": steps[-1], "fingerprint": fingerprint}
    (folder / "facts.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
