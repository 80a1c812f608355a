"""Huge pages for the memory that XLA allocates on a CPU."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from pathlib import Path

_VARIABLE = "GLIBC_TUNABLES"
_TUNABLE = "glibc.malloc.hugetlb=1"  # since glibc 2.35: malloc asks for huge pages
_FIRST_VERSION = 2, 35
_POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def restart_with_huge_pages() -> None:
    """Restart this process with huge pages, if the system grants them only on request.

    XLA allocates the memory of each execution anew. Pages of 4 KiB make a small model's training a
    fifth slower (docs/performance.md#training). glibc reads the variable when a process starts; a
    process that has it, with any value, is not restarted. Nor is a worker of `multiprocessing`: its
    command line is its server's.
    """
    if _VARIABLE in os.environ or not sys.executable or not _only_on_request():
        return
    if multiprocessing.parent_process() is not None:
        return
    os.environ[_VARIABLE] = _TUNABLE
    with contextlib.suppress(OSError):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _only_on_request() -> bool:
    """Return whether glibc can ask for huge pages, and the system gives them only then."""
    try:
        library, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        policy = _POLICY.read_text(encoding="ascii")
    except (AttributeError, OSError, ValueError):  # another system
        return False
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return library == "glibc" and numbers >= _FIRST_VERSION and "[madvise]" in policy
