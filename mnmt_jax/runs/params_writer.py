"""Writer of parameter checkpoints that holds only one array in memory at a time.

Orbax accepts a custom handler for a type of leaf. The handler here reads a lazy array, passes it to
Orbax's own handler of arrays, and frees it before the next.
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
    """Handler that writes lazy arrays as NumPy arrays, one after the other."""

    def __init__(self) -> None:
        super().__init__(deepcopy_host_arrays=False)

    async def serialize(
        self,
        values: Sequence[Any],
        infos: Sequence[Any],
        args: Sequence[Any] | None = None,
    ) -> Sequence[Any]:
        """Write all arrays before returning."""
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
    """Write a parameter tree as an item that looks to Orbax's readers like one of plain arrays.

    Args:
        folder: absolute path of the folder to create.
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
