"""Attention implementations over role spans: `dense`, `split` and `fused`, with one signature.

`dense` is the reference that the others are tested against. An implementation is a module of pure
functions:

    make_masks(stage, segment_ids) -> masks                      once per stage
    attend(stage, masks, queries, keys, values, dropout) -> outputs  once per layer

where `segment_ids`, `queries`, `keys`, `values` and `outputs` are dictionaries from role to array.
"""

from __future__ import annotations

from types import ModuleType

from mnmt_jax.model.attention import dense, fused, split

IMPLEMENTATIONS: dict[str, ModuleType] = {"dense": dense, "split": split, "fused": fused}
