"""Persistent compilation cache in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from mnmt_jax.runtime.user_cache import user_cache_folder

LIMIT = 2 * 2**30
"""Maximum size in bytes; the least recently used programs are removed first."""
_LOOKED = "looked-at"
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_SWITCH = "JAX_ENABLE_COMPILATION_CACHE"
_ON, _OFF = ("1", "true", "yes", "on", "t", "y"), ("0", "false", "no", "off", "f", "n")
_SHORTEST = ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", 0.02)


def enable_compilation_cache() -> None:
    """Enable JAX's persistent compilation cache in the user's cache folder.

    JAX's environment variables take precedence: `JAX_COMPILATION_CACHE_DIR` names another folder,
    whose
    size is not limited here, and `JAX_ENABLE_COMPILATION_CACHE=false` disables the cache. Without a
    writable folder the cache is silently disabled.

    Raises:
        ValueError: if one of the two variables has an invalid value.
    """
    if not _is_on() or _has_custom_folder():
        return
    try:
        folder = cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_broken(folder)
        remove_unused(folder, LIMIT)
    except (OSError, RuntimeError):  # no home folder, or not writable
        return
    for name, value in ((_FOLDER, str(folder)), _SHORTEST):
        if os.environ.get(name):
            continue
        os.environ[name] = str(value)
        if "jax" in sys.modules:  # which has read the environment
            sys.modules["jax"].config.update(name.lower(), value)


def _is_on() -> bool:
    value = os.environ.get(_SWITCH, _ON[0])
    if value.lower() not in (*_ON, *_OFF):  # JAX itself would raise a traceback
        raise ValueError(f"{_SWITCH}={value}: must be true or false")
    return value.lower() in _ON


def _has_custom_folder() -> bool:
    folder = os.environ.get(_FOLDER, "")
    if folder and "://" not in folder:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"{_FOLDER}={folder}: cannot be made ({error.strerror}); name a folder, or keep no "
                f"compiled programs with {_SWITCH}=false"
            ) from error
    return bool(folder)


def cache_folder() -> Path:
    """Return the cache folder for machines of this type.

    Programs for a CPU may use instructions that another CPU lacks, and both may share a home
    folder.
    """
    return user_cache_folder() / f"compiled-{_machine()}"


def remove_broken(folder: Path) -> None:
    """Remove truncated programs, about which JAX would warn each time.

    A program is checked once: only those newer than the last check are read.
    """
    mark = folder / _LOOKED
    since = mark.stat().st_mtime_ns if mark.exists() else 0
    unchecked = [path for path, status in _programs(folder) if status.st_mtime_ns >= since]
    mark.touch()
    for path in unchecked:
        with contextlib.suppress(FileNotFoundError):  # removed by another command
            if not _is_complete(path):
                path.unlink()


def _is_complete(path: Path) -> bool:
    """Return whether a compressed file is complete; Zstandard files are not checked."""
    stream = zlib.decompressobj()
    with path.open("rb") as file:
        if file.read(len(_ZSTANDARD)) == _ZSTANDARD:
            return True
        file.seek(0)
        try:
            while chunk := file.read(1 << 20):
                stream.decompress(chunk)
        except zlib.error:
            return False
    return stream.eof


def remove_unused(folder: Path, limit: int) -> None:
    """Remove the least recently used programs until the size is below a limit.

    Args:
        folder: cache folder.
        limit: maximum size in bytes.
    """
    programs = [
        (max(status.st_atime, status.st_mtime), status.st_size, path)
        for path, status in _programs(folder)
    ]
    total = sum(size for _, size, _ in programs)
    for _, size, path in sorted(programs):
        if total <= limit:
            return
        path.unlink(missing_ok=True)
        total -= size


def _programs(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the programs of a folder with their status; other commands may remove some."""
    for path in folder.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):
            yield path, path.stat()


def _machine() -> str:
    """Return a short hash of the processor type."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    processor = f"{platform.machine()} {platform.processor()} {features}"
    return hashlib.sha256(processor.encode()).hexdigest()[:12]
