"""Overlap of collectives with other work, read from the schedule of a compiled program.

A scheduled program lists its instructions in the order of execution. An asynchronous collective has
a start and an end, and other instructions run between them: `all-gather-start` and
`all-gather-done`, or in libtpu's programs a fusion that starts a collective and one that ends it.
Other collectives run alone.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from mnmt_jax.cost.collectives import (
    async_collective_fusions,
    instructions,
    loop_trip_counts,
    started,
)
from mnmt_jax.cost.cycle_estimates import stated_cycles

_FUSED = re.compile(
    r"%?async-collective-(?P<end>start|done)[\w.\-]* = .* calls=%?(?P<name>[\w.\-]+)"
)
_DONE = re.compile(r" [\w\-]+-done\(%?(?P<name>[\w.\-]+)\)")


@dataclasses.dataclass(frozen=True)
class Overlap:
    """Asynchronous collectives of one kind.

    Attributes:
        kind: e.g. `all-gather`.
        count: collectives per step, loop iterations included.
        bytes: bytes of their results on one device, per step.
        cycles: estimated cycles of the instructions between the starts and the ends, per step; an
            instruction counts for every collective around it, a loop between them not at all. 0
            if the program states none.
    """

    kind: str
    count: int
    bytes: int
    cycles: int


def find_overlaps(program: str) -> tuple[Overlap, ...]:
    """Return the asynchronous collectives of a compiled program, by kind.

    Args:
        program: HLO text for one device, `compiled.as_text()`, which is scheduled.
    """
    times, spread = loop_trip_counts(program), async_collective_fusions(program)
    totals: dict[str, Overlap] = {}
    running: dict[tuple[str, str], Any] = {}  # kind, bytes, and cycles before it
    elapsed: dict[str, int] = {}
    for computation, line in instructions(program):
        now = elapsed.get(computation, 0)
        name, ends = "", False
        if (fused := _FUSED.search(line)) and (collective := spread.get(fused["name"])):
            (name, *facts), ends = collective, fused["end"] == "done"
            running.setdefault((computation, name), (*facts, now))
        elif start := started(line):
            name, *facts = start
            running[computation, name] = (*facts, now)
        elif done := _DONE.search(line):
            name, ends = done["name"], True
        if ends and (computation, name) in running:
            kind, size, begun = running.pop((computation, name))
            runs, total = times.get(computation, 1), totals.get(kind, Overlap(kind, 0, 0, 0))
            totals[kind] = Overlap(
                kind,
                total.count + runs,
                total.bytes + runs * size,
                total.cycles + runs * (now - begun),
            )
        elapsed[computation] = now + (stated_cycles(line) or 0)
    return tuple(totals[kind] for kind in sorted(totals))
