"""Which devices of a process share what it translates, and how."""

from __future__ import annotations

import math

import jax

from mnmt_jax.config.sections import Mesh, Model
from mnmt_jax.distributed.sharding import make_mesh

_SHARE = 0.5  # of a device's memory that parameters may take: the rest is what decoding remembers


def local_devices() -> list[jax.Device]:
    """Returns this process's devices."""
    return jax.local_devices()


def local_mesh(asked: Mesh, model: Model, size: int) -> jax.sharding.Mesh | None:
    """Arranges the devices of this process for decoding.

    Args:
        asked: sizes; those of the default leave the choice: each device has rows of a batch and all
            parameters, or where these take more than half of its memory as few as it takes have
            them together, each some heads.
        model: whose heads and width may be split.
        size: bytes of the parameters.

    Returns:
        None for one device.

    Raises:
        UserError: if what is asked for does not divide the devices.
    """
    devices = local_devices()
    if len(devices) == 1 and asked == Mesh():
        return None
    if asked == Mesh():
        asked = Mesh(tensor=_parts(size, _room(devices[0]), len(devices), model))
    return make_mesh(asked, devices)


def _parts(size: int, room: float, devices: int, model: Model) -> int:
    """Returns the fewest devices that have room together, or all that can share."""
    common = math.gcd(devices, model.heads, model.mlp)
    sizes = [parts for parts in range(1, common + 1) if common % parts == 0]
    return next((parts for parts in sizes if size <= parts * room), sizes[-1])


def _room(device: jax.Device) -> float:
    """Returns the bytes that parameters may take on a device; infinite where it does not say."""
    known = device.memory_stats() or {}
    return _SHARE * known.get("bytes_limit", math.inf)
