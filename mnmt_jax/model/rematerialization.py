"""Rematerialization: names of saved arrays, and the policy of checkpointing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from mnmt_jax.config.sections import Model

ATTENTION, MLP = "attention", "mlp"
"""Names of what may be saved: the products of attention and its result, and the states inside a
feed-forward layer."""
# `Model.remat` -> what is saved nevertheless.
_SAVED: Mapping[Any, tuple[str, ...]] = {"elementwise": (ATTENTION, MLP), "mlp": (ATTENTION,)}


def save_policy(config: Model) -> Any:
    """Return the policy of `jax.checkpoint` for `Model.remat`; None recomputes everything."""
    saved = _SAVED.get(config.remat, ())
    return jax.checkpoint_policies.save_only_these_names(*saved) if saved else None
