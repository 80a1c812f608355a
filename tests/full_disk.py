"""Simulation of a full disk."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Limit the size of files, so that longer writes fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # half of a module stays
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = writes_none
