"""Meshes over several TPU slices and over several hosts with GPUs, on devices without hardware."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mnmt_jax.config.sections import Mesh
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class FakeDevice:
    """The attributes of a device that decide its place in a mesh."""

    id: int
    slice_index: int
    coords: tuple[int, int, int]
    process_index: int = 0
    core_on_chip: int = 0
    platform: str = "tpu"
    device_kind: str = "TPU v5 lite"


def tpus(slices: int, side: int = 2) -> list[FakeDevice]:
    """Return slices of side x side chips, with the last slice first."""
    return [
        FakeDevice(number * side * side + y * side + x, number, (x, y, 0))
        for number in reversed(range(slices))
        for y in range(side)
        for x in range(side)
    ]


def gpus(hosts: int, count: int = 4) -> list[FakeDevice]:
    """Return GPUs, which JAX numbers a slice per host."""
    return [
        FakeDevice(host * count + number, host, (0, 0, 0), host, 0, "gpu", "NVIDIA H100")
        for host in range(hosts)
        for number in range(count)
    ]


def slices_along(mesh, axis: int) -> list[set[int]]:
    """Return the slices of the devices that differ only in an axis."""
    lines = np.moveaxis(mesh.devices, axis, -1).reshape(-1, mesh.devices.shape[axis])
    return [{device.slice_index for device in line} for line in lines]


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (Mesh(), (12, 1, 1)),
        (Mesh(fsdp=4), (3, 4, 1)),
        (Mesh(fsdp=-1), (3, 4, 1)),
        (Mesh(fsdp=2, tensor=2), (3, 2, 2)),
        (Mesh(fsdp=-1, tensor=2), (3, 2, 2)),
        (Mesh(tensor=2), (6, 1, 2)),
    ],
)
def test_only_data_joins_slices(config, sizes):
    mesh = make_mesh(config, tpus(3))
    assert mesh.devices.shape == sizes
    assert len({device.id for device in mesh.devices.flat}) == 12
    for axis in (1, 2):
        assert all(len(slices) == 1 for slices in slices_along(mesh, axis))
    assert all(slices == {0, 1, 2} for slices in slices_along(mesh, 0))
    in_order = [device.slice_index for device in mesh.devices.flat]
    assert in_order == sorted(in_order)  # the shards of a slice are neighbours


def test_parameters_split_over_slices_are_refused():
    with pytest.raises(UserError, match=r"Mesh.fsdp=8 x Mesh.tensor=1 would connect the 2 TPU"):
        make_mesh(Mesh(fsdp=8), tpus(2))
    with pytest.raises(UserError, match="choose a product that divides 4"):
        make_mesh(Mesh(fsdp=2, tensor=4), tpus(2))


def test_slices_of_different_sizes_are_refused():
    with pytest.raises(UserError, match="the 2 TPU slices have 3 to 4 devices"):
        make_mesh(Mesh(), tpus(2)[:-1])


def test_gpus_of_several_hosts_keep_neighbours_together():
    """`jax.make_mesh` refuses them; `fsdp` may connect hosts."""
    mesh = make_mesh(Mesh(fsdp=2, tensor=2), gpus(2)[::-1])
    assert [device.id for device in mesh.devices.flat] == [*range(8)]
    assert all(len(slices) == 1 for slices in slices_along(mesh, 1))
    assert make_mesh(Mesh(fsdp=-1), gpus(2)).devices.shape == (1, 8, 1)
