"""What sublayers hand out for objectives and analyses to read."""

from __future__ import annotations

from typing import Any

from jax import Array

from mnmt_jax.design.objective import Intermediate
from mnmt_jax.model.context import PositionInfo

INTERMEDIATES = "taps"  # Flax's collection of what sublayers hand out
QUERIES, KEYS = "queries", "keys"  # of attention, [batch, length, heads, head_dim]
ENTERED = "entered"  # states that enter a feed-forward with branches


def record(module: Any, place: PositionInfo, name: str, value: Array) -> None:
    """Lets objectives and analyses read a value as a `Intermediate`; costs nothing when none does.

    Args:
        module: the Flax module that a `Kind` was given.
        place: that it was given.
        name: last part of the tap's path.
        value: any array.
    """
    if not module.is_initializing():
        own = _name(name, "_".join(place.roles))
        module.sow(INTERMEDIATES, own, value, init_fn=lambda: None, reduce_fn=lambda _, new: new)


def is_requested(module: Any) -> bool:
    """Returns whether to make what is handed out alone: it is read, or its parameters are drawn."""
    return module.is_initializing() or module.is_mutable_collection(INTERMEDIATES)


def recorded(taps: Any, tap: Intermediate) -> Array:
    """Returns what was handed out.

    Args:
        taps: Flax's collection `INTERMEDIATES` after a pass.
        tap: which.

    Raises:
        KeyError: if no sublayer handed it out.
    """
    *modules, name = tap.path.split("/")
    for module in modules:
        taps = taps[module]
    return taps[_name(name, tap.role)]


def _name(name: str, role: str) -> str:
    return f"{name}_of_{role}"
