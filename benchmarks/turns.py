"""Interleaved timing of programs, so that other load affects all of them equally."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def medians(programs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each program.

    Args:
        programs: name -> function; its result is waited for.
        rounds: timed calls per program, after one call that compiles.
    """
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for round_number in range(rounds + 1):
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program())
            if round_number:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}
