"""Persistent cache entries shared by processes that have different numbers of devices.

Both changes are to JAX's own rules for the cache, which are made for accelerators and for storage
that many hosts write to. Importing this module makes them, for speed alone: a JAX whose cache has
other internals keeps its own rules.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np
from jax._src import cache_key, compiler, distributed

_hash_topology = getattr(cache_key, "_hash_accelerator_config", None)


def hash_devices(hash_obj: Any, devices: np.ndarray) -> None:
    """Hash the devices of a program without the other devices of a single process.

    The tests have eight CPU devices, the commands that they start have one, and a program for one
    device is the same in both.

    Args:
        hash_obj: hash that is updated.
        devices: devices of the program.
    """
    client = devices.flat[0].client
    is_alone = client.device_count() == client.local_device_count()
    (cache_key._hash_devices if is_alone else _hash_topology)(hash_obj, devices)


class _First:
    """The distributed state, with the number of the process that writes cache entries."""

    process_id = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(distributed.global_state, name)


def use() -> None:
    """Share programs of one device, and cache the programs of every process of a run."""
    cache_key._hash_accelerator_config = hash_devices
    compiler.distributed = types.SimpleNamespace(global_state=_First())


if _hash_topology and hasattr(cache_key, "_hash_devices") and hasattr(compiler, "distributed"):
    use()
