"""Order of the devices in a mesh: slices along `data`, the other axes within a slice."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import jax
import numpy as np

from mnmt_jax.errors import UserError


def slices_of(devices: Sequence[jax.Device]) -> list[list[jax.Device]]:
    """Group TPUs by slice: the chips of one are connected by a fast network of their own.

    Args:
        devices: of one platform.

    Returns:
        The slices in the order of their numbers. Devices that are no TPUs form one group: JAX
        numbers hosts with GPUs as slices too, but parameters may be split over several hosts.
    """
    return _by_slice(devices) if devices[0].platform == "tpu" else [[*devices]]


def _by_slice(devices: Sequence[jax.Device]) -> list[list[jax.Device]]:
    """Group devices by the number that JAX calls their slice, on any platform."""
    groups: dict[int, list[jax.Device]] = collections.defaultdict(list)
    for device in devices:
        groups[getattr(device, "slice_index", 0)].append(device)
    return [groups[number] for number in sorted(groups)]


def arrange(shape: tuple[int, int, int], devices: Sequence[jax.Device]) -> np.ndarray:
    """Arrange devices as (data, fsdp, tensor).

    TPU slices are joined along `data`, whose only exchange is the sum of the gradient: the
    data-centre network between slices is much slower than the one within.

    Args:
        shape: sizes of the axes; their product is the number of devices.
        devices: of the mesh.

    Raises:
        UserError: if `fsdp` or `tensor` would connect TPU slices, or do not fit their topology.
    """
    groups = slices_of(devices)
    if len(groups) == 1:
        return _within_slice(shape, devices)
    size = check_within_slices(shape, groups)
    rows = size // (shape[1] * shape[2])
    return np.concatenate([_within_slice((rows, *shape[1:]), group) for group in groups])


def check_within_slices(shape: tuple[int, int, int], groups: Sequence[Sequence[jax.Device]]) -> int:
    """Check that `fsdp` and `tensor` stay within a slice; return its number of devices.

    Args:
        shape: sizes of the axes (data, fsdp, tensor).
        groups: devices of each slice.

    Raises:
        UserError: if they would connect slices, or if the slices have different sizes.
    """
    sizes = sorted({len(group) for group in groups})
    _, fsdp, tensor = shape
    if len(sizes) > 1:
        raise UserError(
            f"the {len(groups)} TPU slices have {sizes[0]} to {sizes[-1]} devices; use slices of "
            "one size"
        )
    if sizes[0] % (fsdp * tensor):
        raise UserError(
            f"Mesh.fsdp={fsdp} x Mesh.tensor={tensor} would connect the {len(groups)} TPU slices "
            f"of {sizes[0]} devices over the slow network between them; choose a product that "
            f"divides {sizes[0]}"
        )
    return sizes[0]


def _within_slice(shape: tuple[int, int, int], devices: Sequence[jax.Device]) -> np.ndarray:
    """Arrange devices by their topology; GPUs of several hosts in the order of their numbers."""
    if len(_by_slice(devices)) > 1:  # jax.make_mesh refuses them
        in_order = sorted(devices, key=lambda device: device.id)
        return np.array(in_order, dtype=object).reshape(shape)
    try:
        return jax.make_mesh(shape, ("data", "fsdp", "tensor"), devices=devices).devices
    except NotImplementedError as error:  # the topology is a torus that does not allow these sizes
        raise UserError(
            f"Mesh.fsdp={shape[1]} x Mesh.tensor={shape[2]} does not follow the axes of the "
            "chips' topology; choose products of its sizes, for instance of 4 x 4 x 4"
        ) from error
