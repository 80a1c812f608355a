"""Number of processors of this process."""

from __future__ import annotations

import os


def count_processors() -> int:
    """Return the number of processors: of this process, or of the machine without affinity."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
