"""`split`, with the softmax of a role in one kernel: its scores never lie in the device's memory.

Where no kernel fits (no TPU and no GPU of NVIDIA's from Ampere on, another type than bfloat16,
dropout by the device's generator, on TPU spans whose lengths are no multiples of 16 or too long, on
GPU heads whose width is not 16, 32, 64 or 128, rows or heads that the mesh does not divide) a role
is computed as `split` does. All drop the same weights and agree but for rounding.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mnmt_jax.design.layout import Stage
from mnmt_jax.distributed.dropout_mask import DropoutMask, hashed_words
from mnmt_jax.distributed.per_device import by_rows_and_heads, splits_rows_and_heads
from mnmt_jax.distributed.sharding import platform
from mnmt_jax.model.attention import split
from mnmt_jax.model.attention.core import Dropout, Spans, by_role
from mnmt_jax.model.attention.kernel_parts import Reading

# What a TPU kernel states of a call, for `mnmt_jax.cost`: cycles if it never waited for memory, and
# bytes between the chip's memory and the core's.
KERNEL_METADATA = "core_cycles", "moved_bytes"

_KERNELS = {"tpu": "tpu_kernel", "gpu": "gpu_kernel"}  # modules beside this one
_TYPE = jnp.bfloat16  # of states, which the kernels are made for


class Masks(NamedTuple):
    """What may attend to what.

    Attributes:
        of_roles: from `split.make_masks`; the compiler drops those that no role is computed with.
        segment_ids: role -> int32 [batch, length].
    """

    of_roles: Mapping[str, Array]
    segment_ids: Spans


def without_kernel(dtype: str) -> str:
    """Says why no role at all is computed by a kernel here; empty if some may be.

    Args:
        dtype: that the model computes in.
    """
    if platform() not in _KERNELS:
        return f"there is no kernel for a {platform().upper()}"
    if dtype != _TYPE.dtype.name:
        return f"its kernel computes in {_TYPE.dtype.name}, Model.dtype is {dtype}"
    return ""


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
    """Attends role by role, by a kernel where one fits.

    Args and result as in `dense.attend`, `masks` from this module's `make_masks`.
    """

    def own(role: str, asked: Array, *read: list[Array]) -> Array:
        drawn, roles = dropout(), stage.key_roles(role)
        kernel = _kernel(asked, read[0], drawn)
        if kernel is None:
            mask = masks.of_roles[role]
            return split.attend_role(mask, asked, *read, dropout=lambda: drawn)
        sees = "".join(stage.visibility(role, key).value for key in roles)
        ids = masks.segment_ids[role], tuple(masks.segment_ids[key] for key in roles)
        return _by_kernel(kernel, sees, drawn, (asked, *map(tuple, read)), ids)

    return by_role(stage, own, queries, keys, values)


def _kernel(queries: Array, keys: Sequence[Array], drawn: DropoutMask) -> Any:
    """Returns the module of the kernels that take a role, None if there is none."""
    name = _KERNELS.get(platform())
    if name is None or queries.dtype != _TYPE or drawn.by_device:
        return None
    if not splits_rows_and_heads(queries):
        return None
    module = importlib.import_module(
        f"mnmt_jax.model.attention.{name}"
    )  # with Pallas: where needed
    lengths = [own.shape[1] for own in keys]
    return module if module.fits(queries.shape[3], queries.shape[1], lengths) else None


def _by_kernel(
    kernel: Any, sees: str, drawn: DropoutMask, states: tuple[Any, ...], ids: tuple[Any, ...]
) -> Array:
    """Computes one role on the mesh, every device its own rows and heads.

    Args:
        kernel: module of the kernels.
        sees: a letter of `Sees` for each role that is read.
        drawn: the dropout.
        states: queries, then keys and values of those roles.
        ids: segments of the queries and of the keys.
    """
    reading = Reading(sees, states[0].shape[2], 1 - drawn.rate)
    words = hashed_words(drawn.rng) if drawn.rng is not None else [jnp.zeros((), jnp.uint32)] * 2
    key = jax.lax.bitcast_convert_type(jnp.stack([words[0], words[-1]]), jnp.int32)

    def local(key: Array, first: Array, states: Any, ids: Any) -> Array:
        return kernel.attend(reading, jnp.concatenate([key, first]), states, ids)

    run: Callable[..., Array] = by_rows_and_heads(local, states[0])
    return run(key, states, ids)
