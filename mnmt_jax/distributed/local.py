"""Decoding meshes over the devices of one process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax

from mnmt_jax.distributed.sharding import MeshSizes, make_mesh
from mnmt_jax.errors import UserError, pluralize

_PARAM_SHARE = 0.5  # of a device's memory; decoding caches need the other half


class _Sizes(NamedTuple):
    fsdp: int = 1
    tensor: int = 1


def local_devices() -> list[jax.Device]:
    """Return the devices of this process."""
    return jax.local_devices()


def device_sets(count: int) -> list[list[jax.Device]]:
    """Divide the devices of this process into equal sets.

    Args:
        count: number of sets, from `--replicas`.

    Raises:
        UserError: if it does not divide the number of devices.
    """
    devices = local_devices()
    if count < 1 or len(devices) % count:
        noun = pluralize(len(devices), "device")
        raise UserError(f"--replicas={count} must divide the {noun} of this process")
    size = len(devices) // count
    return [devices[start : start + size] for start in range(0, len(devices), size)]


def local_mesh(
    sizes: MeshSizes,
    splittable: Sequence[int],
    size: int,
    devices: Sequence[jax.Device] | None = None,
    *,
    count_used_memory: bool = False,
) -> jax.sharding.Mesh | None:
    """Arrange devices for decoding.

    Args:
        sizes: of the mesh. If both are 1 the layout is chosen here: every device holds all
            parameters and some rows of a batch. If the parameters take more than half of a device's
            memory, they are sharded over as few devices as necessary, by heads.
        splittable: dimensions that must be divisible by the number of tensor shards: heads and
            feed-forward width.
        size: bytes of the parameters.
        devices: the devices; None uses all of this process.
        count_used_memory: whether memory that is in use now is not available, because its arrays
            stay.

    Returns:
        None if this process has one device.

    Raises:
        UserError: if the sizes do not divide the devices.
    """
    devices = local_devices() if devices is None else devices
    is_default = (sizes.fsdp, sizes.tensor) == _Sizes()
    if not is_default:
        return make_mesh(sizes, devices)
    if len(devices) == 1:
        return None if len(local_devices()) == 1 else make_mesh(_Sizes(), devices)
    room = _room(devices[0], count_used_memory=count_used_memory)
    shards = _tensor_shards(size, room, math.gcd(len(devices), *splittable))
    return make_mesh(_Sizes(tensor=shards), devices)


def _tensor_shards(size: int, room: float, max_shards: int) -> int:
    """Return the fewest shards, a divisor of `max_shards`, that fit in `room` bytes, or all."""
    divisors = [count for count in range(1, max_shards + 1) if max_shards % count == 0]
    return next((count for count in divisors if size <= count * room), max_shards)


def _room(device: jax.Device, *, count_used_memory: bool) -> float:
    """Return the bytes available for parameters on a device; infinite if it does not report any."""
    stats = device.memory_stats() or {}
    used = stats.get("bytes_in_use", 0) if count_used_memory else 0
    return _PARAM_SHARE * (stats.get("bytes_limit", math.inf) - used)
