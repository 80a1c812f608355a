"""Writes a checkpoint of parameters that are read one by one, so that they never lie in memory.

Orbax lets a type of leaf bring its own handler; the one here reads a lazy array when its turn has
come, hands it to Orbax's own handler of arrays, and lets go of it before the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.runs.checkpoint_files import array_handler
from mnmt_jax.runs.fingerprint import array_fingerprint, combine_fingerprints, param_path


class _LazyHandler(ocp.type_handlers.NumpyHandler):
    """Writes lazy arrays as NumPy arrays, one after the other."""

    def __init__(self) -> None:
        super().__init__(deepcopy_host_arrays=False)

    async def serialize(
        self,
        values: Sequence[Any],
        infos: Sequence[Any],
        args: Sequence[Any] | None = None,
    ) -> Sequence[Any]:
        """Writes all of them before it returns."""
        options = args or [ocp.SaveArgs()] * len(values)
        for value, info, option in zip(values, infos, options, strict=True):
            for written in await super().serialize([value.read()], [info], [option]):
                written.result()
        return []


def lazy_arrays() -> Any:
    """Return Orbax's registry of type handlers for a tree of `LazyArray`."""
    return ocp.type_handlers.create_type_handler_registry(
        (LazyArray, _LazyHandler()),
        (jax.Array, ocp.type_handlers.ArrayHandler()),  # absent here, but Orbax warns without it
    )


def write_lazily(folder: Path, params: Any) -> int:
    """Writes a parameter tree as an item that Orbax's readers take for one of plain arrays.

    Args:
        folder: to make, absolute.
        params: tree of `LazyArray`.

    Returns:
        The fingerprint of what was written.
    """
    hashes: dict[str, int] = {}

    def recorded(path: Any, leaf: LazyArray) -> LazyArray:
        def record(array: np.ndarray) -> np.ndarray:
            hashes[param_path(path)] = int(array_fingerprint(array))
            return array

        return leaf.then(record, leaf.shape, leaf.dtype)

    leaves = jax.tree_util.tree_map_with_path(recorded, params)
    with ocp.Checkpointer(array_handler(type_handler_registry=lazy_arrays())) as writer:
        writer.save(folder, ocp.args.PyTreeSave(leaves))
    return combine_fingerprints(hashes)
