"""`split`, with the softmax of a role in one TPU kernel: its scores never lie in the chip's memory.

Where the kernel does not fit (no TPU, another type than bfloat16, dropout by the device's
generator, spans whose lengths are no multiples of 16 or too long, rows or heads that the mesh does
not divide) a role is computed as `split` does. Both drop the same weights and agree but for
rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mnmt_jax.attention import split
from mnmt_jax.attention.core import Dropout
from mnmt_jax.design.layout import Stage
from mnmt_jax.distributed.drawn import Drawn, hashed_words
from mnmt_jax.distributed.own_rows import by_rows_and_heads, splits_rows_and_heads
from mnmt_jax.distributed.sharding import platform

Spans = Mapping[str, Array]

# What a kernel states of a call, for `mnmt_jax.cost`: cycles if it never waited for memory, and
# bytes between the chip's memory and the core's.
KERNEL_METADATA = "core_cycles", "moved_bytes"


_TYPE = jnp.bfloat16  # of states, which the kernel is made for


class Masks(NamedTuple):
    """What may attend to what.

    Attributes:
        of_roles: from `split.make_masks`; the compiler drops those that no role is computed with.
        segment_ids: role -> int32 [batch, length].
    """

    of_roles: Mapping[str, Array]
    segment_ids: Spans


def make_masks(stage: Stage, segment_ids: Spans) -> Masks:
    """Returns what `attend` takes, once per stage."""
    return Masks(split.make_masks(stage, segment_ids), dict(segment_ids))


def attend(
    stage: Stage,
    masks: Masks,
    queries: Spans,
    keys: Spans,
    values: Spans,
    *,
    dropout: Dropout,
) -> dict[str, Array]:
    """Attends role by role, by the kernel where it fits.

    Args and result as in `dense.attend`, `masks` from this module's `make_masks`.
    """
    outputs = {}
    for query in stage.roles:
        drawn, roles = dropout(), stage.key_roles(query)
        asked, read = queries[query], [(keys[r], values[r], masks.segment_ids[r]) for r in roles]
        if _fits(asked, [own for own, _, _ in read], drawn):
            sees = "".join(stage.visibility(query, role).value for role in roles)
            outputs[query] = _by_kernel(sees, drawn, asked, masks.segment_ids[query], read)
        else:
            mask = masks.of_roles[query]
            outputs[query] = split.attend_role(mask, asked, read, dropout=lambda: drawn)  # noqa: B023
    return outputs


def _fits(queries: Array, keys: list[Array], drawn: Drawn) -> bool:
    if platform() != "tpu" or queries.dtype != _TYPE or drawn.by_device:
        return False
    if not splits_rows_and_heads(queries):
        return False
    from mnmt_jax.attention.tpu_kernel import fits

    return fits(queries.shape[3], queries.shape[1], [own.shape[1] for own in keys])


def _by_kernel(sees: str, drawn: Drawn, queries: Array, query_ids: Array, read: Any) -> Array:
    """Computes one role on the mesh, every device its own rows and heads."""
    from mnmt_jax.attention.tpu_kernel import Reading
    from mnmt_jax.attention.tpu_kernel import attend as attend_by_kernel

    reading = Reading(sees, queries.shape[2], 1 - drawn.rate)
    words = hashed_words(drawn.rng) if drawn.rng is not None else [jnp.zeros((), jnp.uint32)] * 2
    key = jax.lax.bitcast_convert_type(jnp.stack([words[0], words[-1]]), jnp.int32)

    def local(key: Array, first: Array, heads: Any, ids: Any) -> Array:
        queries, keys, values = jax.tree.map(lambda x: x.transpose(0, 2, 3, 1), heads)
        numbers = jnp.concatenate([key, first])
        found = attend_by_kernel(reading, numbers, queries, ids[0], keys, values, ids[1])
        return found.transpose(0, 3, 1, 2)

    keys, values, key_ids = (tuple(each) for each in zip(*read, strict=True))
    run: Callable[..., Array] = by_rows_and_heads(local, queries)
    return run(key, (queries, keys, values), (query_ids, key_ids))
