"""Device topologies for ahead-of-time compilation without the hardware."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
from typing import Any

import jax

from mnmt_jax.distributed.chips import chip_of
from mnmt_jax.errors import UserError, install_remedy

# libtpu must not query the metadata of a TPU host, nor print errors about it.
_LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    "TPU_STDERR_LOG_LEVEL": "3",
    # libtpu locks the machine's chips for a single process. Compilation for a topology uses none.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# The first flag: compiler threads overflow their stack on some large models (seen with 0.0.42.1).
# The second: otherwise a product with a large result and parameters sharded over `fsdp` becomes a
# loop over the shards that accumulates in the chip's memory.
_LIBTPU_FLAGS = (
    "--fibers_default_thread_stack_size=16777216"
    " --xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000"
)
# XLA autotunes its Triton matrix products on the GPU; without them all products use cuBLAS.
_GPU_FLAG = "--xla_gpu_enable_triton_gemm=false"
_TPU = re.compile(r"(v|tpu)\d")
_KIB = 1 << 10


@dataclasses.dataclass(frozen=True)
class _Gpu:
    """Properties of a GPU for XLA, from the vendor's documentation.

    Attributes:
        kind: device kind as in `mnmt_jax.distributed.chips`.
        capability: major number of CUDA's compute capability; the minor one is 0.
        cores: streaming multiprocessors.
        shared: shared memory per multiprocessor, KiB.
        cache: second-level cache, MiB.
        clock: GHz.
        bandwidth: memory bandwidth, bytes per second.
    """

    kind: str
    capability: int
    cores: int
    shared: int
    cache: int
    clock: float
    bandwidth: float

    def target(self) -> str:
        """Return XLA's description of the GPU, a text-format `GpuTargetConfigProto`."""
        chip = chip_of(self.kind)
        assert chip is not None
        feature = "feature_extension: ACCELERATED_FEATURES" if self.capability >= 9 else ""
        return f"""
            platform_name: "CUDA"
            device_description_str: "{self.kind}"
            gpu_device_info {{
              cuda_compute_capability {{ major: {self.capability} {feature} }}
              core_count: {self.cores}
              fpus_per_core: {128 if self.capability >= 9 else 64}
              clock_rate_ghz: {self.clock}
              memory_bandwidth: {self.bandwidth:.0f}
              device_memory_size: {chip.memory}
              l2_cache_size: {self.cache * _KIB * _KIB}
              shared_memory_per_core: {self.shared * _KIB}
              shared_memory_per_block: {48 * _KIB}
              shared_memory_per_block_optin: {(self.shared - 1) * _KIB}
              registers_per_core_limit: 65536
              registers_per_block_limit: 65536
              threads_per_core_limit: 2048
              threads_per_block_limit: 1024
              threads_per_warp: 32
              block_dim_limit_x: 2147483647
              block_dim_limit_y: 65535
              block_dim_limit_z: 65535
            }}"""


_GPUS = {
    "a100": _Gpu("NVIDIA A100", 8, 108, 164, 40, 1.41, 2.039e12),
    "h100": _Gpu("NVIDIA H100", 9, 132, 228, 50, 1.98, 3.35e12),
    "h200": _Gpu("NVIDIA H200", 9, 132, 228, 50, 1.98, 4.8e12),
}


def topology_devices(topology: str, slices: int = 1) -> list[jax.Device]:
    """Return the devices of a topology, which need not exist on this machine.

    Args:
        topology: for TPUs e.g. "v5e:4x4" or "v5p:4x4x8"; for GPUs "a100:8", "h100:8" or "h200:8",
            on one host.
        slices: number of slices, connected by the data-centre network.

    Raises:
        UserError: if the compiler is not installed or does not know the topology.
    """
    name, _, size = topology.partition(":")
    if name in _GPUS:
        return _gpus(topology, _GPUS[name], size, slices)
    if not _TPU.match(name):
        raise UserError(
            f"--topology={topology}: must be of TPUs, e.g. v5e:4x4, or of GPUs "
            f"({', '.join(_GPUS)}), e.g. h100:8"
        )
    return _tpus(topology, slices)


def has_cuda_plugin() -> bool:
    """Return whether JAX's plugin for a version of CUDA is installed."""
    return any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))


def _tpus(topology: str, slices: int) -> list[jax.Device]:
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise UserError(f"--topology needs libtpu, which is not installed; {install_remedy('tpu')}")
    for name, value in _LIBTPU.items():
        os.environ.setdefault(name, value)
    user_flags = os.environ.get("LIBTPU_INIT_ARGS", "")
    os.environ["LIBTPU_INIT_ARGS"] = f"{_LIBTPU_FLAGS} {user_flags}".strip()
    options: dict[str, Any] = {"num_slices": slices} if slices > 1 else {}
    if topology.startswith("v4:"):
        options["chip_config_name"] = "megacore"  # one device per chip, as in JAX on a v4
    return _devices(topology, platform="tpu", topology_name=topology, **options)


def _gpus(topology: str, gpu: _Gpu, count: str, slices: int) -> list[jax.Device]:
    if not count.isdecimal() or not int(count):
        raise UserError(f"--topology={topology}: needs a number of GPUs, e.g. h100:8")
    if not has_cuda_plugin():
        raise UserError(
            f"--topology={topology} needs JAX's plugin for CUDA, which is not installed; "
            + install_remedy("gpu")
        )
    os.environ["XLA_FLAGS"] = f"{_GPU_FLAG} {os.environ.get('XLA_FLAGS', '')}".strip()
    shape = f"1x{slices}x{int(count)}"
    target = gpu.target()
    return _devices(
        topology, platform="cuda", topology_name="", topology=shape, target_config=target
    )


def _devices(topology: str, /, **options: Any) -> list[jax.Device]:
    from jax.experimental import topologies

    try:
        return topologies.get_topology_desc(**options).devices
    except Exception as error:  # jax raises several kinds
        raise UserError(f"--topology={topology}: {_refusal_message(error)}") from error


def _refusal_message(error: Exception) -> str:
    """Return the cause and the remedy of a compiler's refusal of a topology.

    libtpu's own message for a second process recommends deleting a lock file that a live process
    holds.
    """
    text = " ".join(str(error).split())
    if "lockfile" in text:
        return (
            "another process on this machine has loaded libtpu; wait for its end, or set "
            "ALLOW_MULTIPLE_LIBTPU_LOAD=1, which is safe here as no chip is used. Do not delete "
            "the lock file while that process runs"
        )
    reason = re.sub(r"^[A-Z_]+: ", "", text)
    return (
        f"the compiler knows no such topology ({reason}); choose another, e.g. v5e:4x4, v5p:4x4x8 "
        "or h100:8"
    )
