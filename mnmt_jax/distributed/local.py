"""Decoding meshes over the devices of one process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax

from mnmt_jax.distributed.sharding import MeshSizes, make_mesh

_PARAM_SHARE = 0.5  # of a device's memory; decoding caches need the other half


class _Sizes(NamedTuple):
    fsdp: int = 1
    tensor: int = 1


def local_devices() -> list[jax.Device]:
    """Return the devices of this process."""
    return jax.local_devices()


def local_mesh(sizes: MeshSizes, splittable: Sequence[int], size: int) -> jax.sharding.Mesh | None:
    """Arrange the devices of this process for decoding.

    Args:
        sizes: of the mesh. If both are 1 the layout is chosen here: every device holds all
            parameters and some rows of a batch. If the parameters take more than half of a device's
            memory, they are sharded over as few devices as necessary, by heads.
        splittable: dimensions that must be divisible by the number of tensor shards: heads and
            feed-forward width.
        size: bytes of the parameters.

    Returns:
        None for one device.

    Raises:
        UserError: if the sizes do not divide the devices.
    """
    devices = local_devices()
    is_default = (sizes.fsdp, sizes.tensor) == _Sizes()
    if not is_default:
        return make_mesh(sizes, devices)
    if len(devices) == 1:
        return None
    shards = _tensor_shards(size, _room(devices[0]), math.gcd(len(devices), *splittable))
    return make_mesh(_Sizes(tensor=shards), devices)


def _tensor_shards(size: int, room: float, max_shards: int) -> int:
    """Return the fewest shards, a divisor of `max_shards`, that fit in `room` bytes, or all."""
    divisors = [count for count in range(1, max_shards + 1) if max_shards % count == 0]
    return next((count for count in divisors if size <= count * room), max_shards)


def _room(device: jax.Device) -> float:
    """Return the bytes available for parameters on a device; infinite if it does not report any."""
    stats = device.memory_stats() or {}
    return _PARAM_SHARE * stats.get("bytes_limit", math.inf)
