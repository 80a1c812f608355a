"""Intermediates: values that sublayers record for objectives and analyses."""

from __future__ import annotations

from typing import Any

import jax
from jax import Array

from mnmt_jax.design.objective import Intermediate
from mnmt_jax.errors import UserError, join_names, suggest
from mnmt_jax.model.context import PositionInfo

INTERMEDIATES = "intermediates"  # name of the Flax collection
QUERIES, KEYS = "queries", "keys"  # names in attention, [batch, length, heads, head_dim]
BRANCH_INPUT = "branch_input"  # input states of a feed-forward with branches


def record(module: Any, info: PositionInfo, name: str, value: Array) -> None:
    """Record a value as an `Intermediate`; free if no objective or analysis requests it.

    Args:
        module: the sublayer, a `Kind`.
        info: the position info passed to it.
        name: last part of the intermediate's path.
        value: any array.
    """
    if not module.is_initializing():
        full_name = _name(name, "_".join(info.roles))
        module.sow(
            INTERMEDIATES, full_name, value, init_fn=lambda: None, reduce_fn=lambda _, new: new
        )


def is_requested(module: Any) -> bool:
    """Return whether to compute values that are only recorded: on request and at initialisation."""
    return module.is_initializing() or module.is_mutable_collection(INTERMEDIATES)


def recorded(collection: Any, intermediate: Intermediate) -> Array:
    """Return a recorded value.

    Args:
        collection: Flax's collection `INTERMEDIATES` after a pass.
        intermediate: which value.

    Raises:
        UserError: if no sublayer recorded it.
    """
    leaves = jax.tree_util.tree_leaves_with_path(collection)
    by_path = {jax.tree_util.keystr(p, simple=True, separator="/"): leaf for p, leaf in leaves}
    full_path = _name(intermediate.path, intermediate.role)
    if full_path not in by_path:
        suffix = _name("", intermediate.role)
        paths = [path.removesuffix(suffix) for path in by_path if path.endswith(suffix)]
        raise UserError(
            f"Intermediate('{intermediate.path}', '{intermediate.role}'): no sublayer records it; "
            f"{suggest(intermediate.path, paths)}of role '{intermediate.role}' there are "
            f"{join_names(paths) or 'none'}"
        )
    return by_path[full_path]


def _name(name: str, role: str) -> str:
    return f"{name}_of_{role}"
