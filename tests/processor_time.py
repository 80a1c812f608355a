"""Processor time of repetitive input: guards against time that grows with the square of a size.

Speed itself is measured by benchmarks. Here a run is repeated until it is quick enough, and the
garbage collector rests meanwhile: neither a busy machine nor the heap of other tests makes a
guard fail, and a run that is slow by itself is slow each time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

_TRIES = 4


def is_quicker_than(limit: float, run: Callable[[], Any]) -> bool:
    """Return whether one of a few runs takes less processor time than a limit, in seconds."""
    return any(_seconds(run) < limit for _ in range(_TRIES))


def takes_linear_time(run: Callable[[int], Any], count: int, least: float = 1e-3) -> bool:
    """Return whether ten times a count takes less than 40 times the time, not 100.

    Args:
        run: Takes a count.
        count: The smaller count.
        least: Shorter times of the smaller count are taken for this one, in seconds.
    """
    limit = 40 * max(least, min(_seconds(lambda: run(count)) for _ in range(_TRIES)))
    return is_quicker_than(limit, lambda: run(10 * count))


def _seconds(run: Callable[[], Any]) -> float:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        start = time.process_time()
        run()
        return time.process_time() - start
    finally:
        if was_enabled:
            gc.enable()
