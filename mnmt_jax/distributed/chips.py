"""Accelerator specifications: peak FLOP/s and memory by device kind."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Chip:
    """Specification of one kind of accelerator.

    Attributes:
        kinds: prefixes of `jax.Device.device_kind`.
        peak_flops: dense bfloat16 FLOP/s, without sparsity.
        memory: bytes.
        clock: cycles per second of a TPU's matrix units at `peak_flops`; 0 for others.
        bandwidth: memory bandwidth of a TPU, bytes per second; 0 for others.
    """

    kinds: tuple[str, ...]
    peak_flops: float
    memory: int
    clock: float = 0.0
    bandwidth: float = 0.0


# Sources: cloud.google.com/tpu/docs (v4 to v6e), NVIDIA's data sheets.
_CHIPS = (
    Chip(("TPU v6 lite", "TPU v6e"), 918e12, 32 * GIB, 1.75e9, 1640e9),
    Chip(("TPU v5 lite", "TPU v5e"), 197e12, 16 * GIB, 1.5e9, 819e9),
    Chip(("TPU v5p", "TPU v5"), 459e12, 95 * GIB, 1.75e9, 2765e9),
    Chip(("TPU v4",), 275e12, 32 * GIB, 1.05e9, 1228e9),
    Chip(("NVIDIA H200",), 989e12, 141 * 10**9),
    Chip(("NVIDIA H100 PCIe",), 756e12, 80 * 10**9),
    Chip(("NVIDIA H100 NVL",), 835e12, 94 * 10**9),
    Chip(("NVIDIA H100",), 989e12, 80 * 10**9),
    Chip(("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"), 312e12, 40 * 10**9),
    Chip(("NVIDIA A100",), 312e12, 80 * 10**9),
)


def chip_of(device_kind: str) -> Chip | None:
    """Return the specification of a device kind, or None if it is unknown."""
    return next((chip for chip in _CHIPS if device_kind.startswith(chip.kinds)), None)


def device_bytes(device: jax.Device) -> int:
    """Return the memory of a device in bytes; for a CPU, that of the machine."""
    stats = device.memory_stats() or {}
    chip = chip_of(device.device_kind)
    if limit := stats.get("bytes_limit"):
        return int(limit)
    return chip.memory if chip else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
