"""Times programs that take turns, so that whatever else runs meets all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def medians(programs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Returns the median of the seconds of each program.

    Args:
        programs: what to run, by name; what they return is waited for.
        rounds: how often each takes its turn, after a first time that compiles.
    """
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(rounds + 1):
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program())
            if number:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in seconds.items()}
