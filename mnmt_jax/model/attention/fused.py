"""Fused attention: `split` with one kernel per role that keeps scores out of device memory.

A role is computed as in `split` where no kernel applies: no TPU and no NVIDIA GPU from Ampere on, a
type other than bfloat16, dropout by the device's generator, rows or heads that the mesh does not
divide, on TPU spans that are too long or whose length is no multiple of 16, on GPU a head width
other than 16, 32, 64 or 128. All paths drop the same weights and agree up to rounding.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mnmt_jax.design.layout import Stage
from mnmt_jax.distributed.dropout_mask import DropoutMask, hash_key_words
from mnmt_jax.distributed.per_device import can_shard_rows_and_heads, shard_map_rows_and_heads
from mnmt_jax.distributed.sharding import platform
from mnmt_jax.model.attention import split
from mnmt_jax.model.attention.core import Dropout, Spans, attend_by_role
from mnmt_jax.model.attention.kernel_parts import KernelSettings

# Metadata of a TPU kernel call for `mnmt_jax.cost`: cycles without waiting for memory, and bytes
# moved between the chip's memory and the core's.
KERNEL_METADATA = "core_cycles", "moved_bytes"

_KERNELS = {"tpu": "tpu_kernel", "gpu": "gpu_kernel"}  # modules of this package
_TYPE = jnp.bfloat16  # of the states that the kernels support


class Masks(NamedTuple):
    """Visibility masks of a stage.

    Attributes:
        by_role: from `split.make_masks`; the compiler drops those of roles that a kernel computes.
        segment_ids: role -> int32 [batch, length].
    """

    by_role: Mapping[str, Array]
    segment_ids: Spans


def kernel_unsupported_reason(dtype: str) -> str:
    """Return why no role can be computed by a kernel here; empty if some may be.

    Args:
        dtype: that the model computes in.
    """
    if platform() not in _KERNELS:
        return f"there is no kernel for a {platform().upper()}"
    if dtype != _TYPE.dtype.name:
        return f"its kernel computes in {_TYPE.dtype.name}, Model.dtype is {dtype}"
    return ""


def make_masks(stage: Stage, segment_ids: Spans) -> Masks:
    """Return the masks that `attend` takes, once per stage."""
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
    """Attend role by role, with a kernel where one applies.

    Arguments and result as in `dense.attend`, with `masks` from this module's `make_masks`.
    """

    def attend_one(role: str, role_queries: Array, *keys_values: list[Array]) -> Array:
        dropout_mask, roles = dropout(), stage.key_roles(role)
        kernel = _kernel(role_queries, keys_values[0], dropout_mask)
        if kernel is None:
            mask = masks.by_role[role]
            return split.attend_role(mask, role_queries, *keys_values, dropout=lambda: dropout_mask)
        sees = "".join(stage.visibility(role, key).value for key in roles)
        ids = masks.segment_ids[role], tuple(masks.segment_ids[key] for key in roles)
        return _by_kernel(kernel, sees, dropout_mask, (role_queries, *map(tuple, keys_values)), ids)

    return attend_by_role(stage, attend_one, queries, keys, values)


def _kernel(queries: Array, keys: Sequence[Array], dropout_mask: DropoutMask) -> Any:
    """Return the kernel module that can compute a role, or None."""
    name = _KERNELS.get(platform())
    if name is None or queries.dtype != _TYPE or dropout_mask.by_device:
        return None
    if not can_shard_rows_and_heads(queries):
        return None
    # Imported here because it imports Pallas.
    module = importlib.import_module(f"mnmt_jax.model.attention.{name}")
    lengths = [array.shape[1] for array in keys]
    return module if module.fits(queries.shape[3], queries.shape[1], lengths) else None


def _by_kernel(
    kernel: Any, sees: str, dropout_mask: DropoutMask, states: tuple[Any, ...], ids: tuple[Any, ...]
) -> Array:
    """Compute one role on the mesh, each device its rows and heads.

    Args:
        kernel: module of the kernels.
        sees: a letter of `Sees` for each visible role.
        dropout_mask: the dropout mask.
        states: queries, then the keys and the values of the visible roles.
        ids: segments of the queries and of the keys.
    """
    settings = KernelSettings(sees, states[0].shape[2], 1 - dropout_mask.rate)
    words = (
        hash_key_words(dropout_mask.rng)
        if dropout_mask.rng is not None
        else [jnp.zeros((), jnp.uint32)] * 2
    )
    key = jax.lax.bitcast_convert_type(jnp.stack([words[0], words[-1]]), jnp.int32)

    def local(key: Array, offsets: Array, states: Any, ids: Any) -> Array:
        return kernel.attend(settings, jnp.concatenate([key, offsets]), states, ids)

    run: Callable[..., Array] = shard_map_rows_and_heads(local, states[0])
    return run(key, states, ids)
