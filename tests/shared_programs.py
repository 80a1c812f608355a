"""Persistent cache entries shared by the processes of the suite, and compiled by one of them.

The first two changes are to JAX's own rules for the cache, which are made for accelerators and for
storage that many hosts write to; the third makes processes that need the same program at the same
time wait for the first of them; the last compresses entries with less effort. Importing this module
makes them, for speed alone: a JAX whose cache has other internals keeps its own rules.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import inspect
import os
import tempfile
import types
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jax._src import cache_key, compilation_cache, compiler, distributed

_compile_and_keep = getattr(compiler, "_compile_and_write_cache", None)
_READS = hasattr(compiler, "_cache_read")
_READ_TAKES_CALLBACKS = (  # from JAX 0.11 on
    _READS and "host_callbacks" in inspect.signature(compiler._cache_read).parameters
)
# In the cache of this process's start, whatever a test sets later (conftest.py names one).
_LOCKS = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or tempfile.gettempdir()) / "locks"


def hash_devices(hash_obj: Any, devices: np.ndarray) -> None:
    """Hash the devices of a program, but neither the other devices nor this process.

    The tests have eight CPU devices, the commands that they start have one, and a program for one
    device is the same in both. A program of several processes is the same in all of them.

    Args:
        hash_obj: hash that is updated.
        devices: devices of the program.
    """
    processes = [device.process_index for device in devices.flat]
    cache_key._hash_string(hash_obj, str(processes if any(processes) else len(processes)))
    cache_key._hash_devices(hash_obj, devices)


def compile_once(
    backend: Any,
    computation: Any,
    devices: Any,
    options: Any,
    callbacks: Any,
    module_name: str,
    key: str,
) -> Any:
    """Compile a program, or wait for the process that compiles it and load its cache entry.

    Args:
        backend: client of the devices.
        computation: MLIR module.
        devices: devices of the program.
        options: of the compiler.
        callbacks: host callbacks of the program.
        module_name: name of the program.
        key: of its cache entry.

    Returns:
        The loaded program.
    """
    with _locked(key):
        kept, _ = compiler._cache_read(
            module_name, key, options, backend, devices, *([callbacks] * _READ_TAKES_CALLBACKS)
        )
        return kept or _compile_and_keep(
            backend, computation, devices, options, callbacks, module_name, key
        )


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    """Hold a lock of the suite's processes; the end of a process frees it."""
    _LOCKS.mkdir(parents=True, exist_ok=True)
    with (_LOCKS / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _First:
    """The distributed state, with the number of the process that writes cache entries."""

    process_id = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(distributed.global_state, name)


def use() -> None:
    """Share programs of one device, cache those of every process, compile each one once."""
    cache_key._hash_accelerator_config = hash_devices
    compiler.distributed = types.SimpleNamespace(global_state=_First())
    if _compile_and_keep and _READS:
        compiler._compile_and_write_cache = compile_once
    compilation_cache.zlib = types.SimpleNamespace(
        compress=functools.partial(zlib.compress, level=1), decompress=zlib.decompress
    )


_PATCHED = (
    (cache_key, "_hash_accelerator_config"),
    (cache_key, "_hash_devices"),
    (cache_key, "_hash_string"),
    (compiler, "distributed"),
)
if all(hasattr(module, name) for module, name in _PATCHED):
    use()
