"""Attention over role spans: pure functions, one signature, `dense` the oracle of the others.

An implementation is a module with two functions:

    make_masks(stage, segment_ids) -> masks                      once per stage
    attend(stage, masks, queries, keys, values, dropout) -> outputs  once per layer

where `segment_ids` and the rest are dictionaries from role to array.
"""

from __future__ import annotations

from types import ModuleType

from mnmt_jax.model.attention import dense, fused, split

IMPLEMENTATIONS: dict[str, ModuleType] = {"dense": dense, "split": split, "fused": fused}
