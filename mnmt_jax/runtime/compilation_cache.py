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

LIMIT = 2 * 2**30
"""Bytes of programs that are kept; those that were longest unused go first."""
_LOOKED = "looked-at"
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_SWITCH = "JAX_ENABLE_COMPILATION_CACHE"
_ON, _OFF = ("1", "true", "yes", "on", "t", "y"), ("0", "false", "no", "off", "f", "n")
_SHORTEST = ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", 0.02)


def enable_compilation_cache() -> None:
    """Let JAX keep what it compiles in the user's cache folder, for the next command.

    JAX's own variables decide where they are set: `JAX_COMPILATION_CACHE_DIR` names another folder,
    whose size is then its owner's, and `JAX_ENABLE_COMPILATION_CACHE=false` keeps nothing. Without
    a folder that can be written all is compiled anew, silently.

    Raises:
        ValueError: if one of the two cannot be obeyed.
    """
    if not _is_on() or _has_own_folder():
        return
    try:
        folder = cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_broken(folder)
        remove_unused(folder, LIMIT)
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        return
    for name, value in ((_FOLDER, str(folder)), _SHORTEST):
        if os.environ.get(name):
            continue
        os.environ[name] = str(value)
        if "jax" in sys.modules:  # which has read the environment
            sys.modules["jax"].config.update(name.lower(), value)


def _is_on() -> bool:
    says = os.environ.get(_SWITCH, _ON[0])
    if says.lower() not in (*_ON, *_OFF):  # JAX's own words are a traceback
        raise ValueError(f"{_SWITCH}={says}: must be true or false")
    return says.lower() in _ON


def _has_own_folder() -> bool:
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
    """Return the folder of programs for machines like this one.

    Programs for a CPU hold instructions that another may lack, and a home may be mounted on both.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mnmt_jax" / f"compiled-{_machine()}"


def remove_broken(folder: Path) -> None:
    """Remove programs that were cut off in being written; JAX would warn of them each time.

    Each is looked at once: those that are younger than the last look.
    """
    mark = folder / _LOOKED
    since = mark.stat().st_mtime_ns if mark.exists() else 0
    found = [path for path, facts in _programs(folder) if facts.st_mtime_ns >= since]
    mark.touch()
    for path in found:
        with contextlib.suppress(FileNotFoundError):  # another command has removed it
            if not _is_whole(path):
                path.unlink()


def _is_whole(path: Path) -> bool:
    """Return whether a compressed file has its end; Zstandard's is believed."""
    stream = zlib.decompressobj()
    with path.open("rb") as file:
        if file.read(len(_ZSTANDARD)) == _ZSTANDARD:
            return True
        file.seek(0)
        try:
            while part := file.read(1 << 20):
                stream.decompress(part)
        except zlib.error:
            return False
    return stream.eof


def remove_unused(folder: Path, limit: int) -> None:
    """Remove the programs that were read and written longest ago, down to a limit.

    Args:
        folder: to keep small.
        limit: bytes.
    """
    found = [
        (max(facts.st_atime, facts.st_mtime), facts.st_size, path)
        for path, facts in _programs(folder)
    ]
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= limit:
            return
        path.unlink(missing_ok=True)
        total -= size


def _programs(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the programs of a folder with their facts; another command may remove some."""
    for path in folder.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):
            yield path, path.stat()


def _machine() -> str:
    """Return a short name of the kind of processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    told = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    kind = f"{platform.machine()} {platform.processor()} {told}"
    return hashlib.sha256(kind.encode()).hexdigest()[:12]
