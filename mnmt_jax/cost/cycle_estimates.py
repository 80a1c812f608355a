"""Cycle estimates of a compiled TPU program, and instructions without an estimate.

Read from the program's text. An instruction inside a loop counts as often as the loop runs.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterator

from mnmt_jax.cost.collectives import instructions, loop_trip_counts
from mnmt_jax.distributed.dropout_mask import MULTIPLIERS
from mnmt_jax.model.attention.fused import KERNEL_METADATA

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.*)$")
_OPERATION = re.compile(r"^(?P<result>\S+) (?P<kind>[\w\-]+)\(")
_ONE_NUMBER = re.compile(r"^\w+\[[1,]*\]")
_CALLS = re.compile(r"calls=%?([\w.\-]+)")
_APPLIES = re.compile(r"(?:calls|to_apply)=%?([\w.\-]+)")
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_KERNEL_CALL = "tpu_custom_call"
# As Pallas writes the metadata of a kernel.
_KERNEL = re.compile(rf'"({"|".join(KERNEL_METADATA)})":"(\d+)"')
_SUFFIX = re.compile(r"(?:_?fusion)?(?:\.\w+)*$")
# Names for what others compute, and where a counted body or instruction is called or waited for.
_NO_WORK = re.compile(
    r"(?:after-all|bitcast|call|conditional|constant|domain|get-tuple-element|opt-barrier|parameter"
    r"|partition-id|replica-id|tuple|while|.*-done)$"
)
_RANDOM = re.compile(r"threefry|random_bits| rng-bit-generator\(| rng\(")
_HASH = f" constant({MULTIPLIERS[0]})"
# Threefry rotates 20 times; nothing else here shifts as often.
_SHIFT, _SHIFTS = " shift-right-logical(", 20


@dataclasses.dataclass(frozen=True)
class CycleEstimates:
    """The compiler's estimate of a program's cycles, instructions one after the other.

    Attributes:
        once: cycles of every instruction once, as XLA's own totals count.
        executed: cycles, those inside loops as often as they run; 0 where the text states none.
        random: of `executed`, those of instructions that also draw random bits.
        absent: instructions that state no cycles though they do something, by kind, most first.
        kernels: what our own kernels state of themselves, by the names of `KERNEL_METADATA`; in
            none of the others.
    """

    once: int
    executed: int
    random: int
    absent: dict[str, int]
    kernels: dict[str, int] = dataclasses.field(default_factory=dict)


def estimate_cycles(program: str) -> CycleEstimates:
    """Add up the cycles that a TPU program states, and counts what states none.

    Args:
        program: one device's program, `compiled.as_text()`.
    """
    times, bodies = loop_trip_counts(program), _bodies(program)
    inner = {
        name
        for lines in bodies.values()
        for line in lines
        if " call(" not in line
        for name in _APPLIES.findall(line)
    }
    once = executed = random = 0
    absent: collections.Counter[str] = collections.Counter()
    for computation, line in instructions(program):
        often = times.get(computation, 1)
        if cycles := _CYCLES.search(line):
            once += int(cycles[1])
            executed += int(cycles[1]) * often
            random += int(cycles[1]) * often * _draws(line, bodies)
        elif computation not in inner and (kind := _kind(line)):
            absent[kind] += often
    kernels, calls = _kernels(program, times)
    called = collections.Counter({f"custom-call {_KERNEL_CALL}": calls})
    return CycleEstimates(once, executed, random, dict((absent - called).most_common()), kernels)


def _kernels(program: str, times: dict[str, int]) -> tuple[dict[str, int], int]:
    """Add up what kernels state of themselves, and counts those that do.

    It stands on lines of its own after a call, and again after what takes the call's results apart.
    """
    stated: collections.Counter[str] = collections.Counter()
    calls, called = 0, False
    for computation, line in instructions(program):
        often = times.get(computation, 1)
        if _INSTRUCTION.match(line):
            called = f'custom_call_target="{_KERNEL_CALL}"' in line
        if called:
            found = {name: int(value) * often for name, value in _KERNEL.findall(line)}
            stated.update(found)
            calls += often * (KERNEL_METADATA[0] in found)
    return dict(stated), calls


def _bodies(program: str) -> dict[str, list[str]]:
    """Return the lines of each computation."""
    bodies: dict[str, list[str]] = collections.defaultdict(list)
    for computation, line in instructions(program):
        bodies[computation].append(line)
    return bodies


def _draws(line: str, bodies: dict[str, list[str]]) -> bool:
    """Return whether an instruction, or what is fused into it, draws random bits."""
    inside = list(_inside(line, bodies))
    shifts = sum(_SHIFT in one for one in inside)
    named = any(_HASH in one or (" rng" in one and _RANDOM.search(one)) for one in inside)
    return shifts >= _SHIFTS or named


def _inside(line: str, bodies: dict[str, list[str]]) -> Iterator[str]:
    yield line
    for name in _CALLS.findall(line):
        for one in bodies.get(name, ()):
            yield from _inside(one, bodies)


def _kind(line: str) -> str:
    """Name what an instruction without an estimate does; empty if it does nothing."""
    found = _INSTRUCTION.match(line)
    if not found:
        return ""
    operation = _OPERATION.match(_without_tuple(found["rest"]))
    if not operation or _NO_WORK.match(kind := operation["kind"]):
        return ""
    if _RANDOM.search(line):
        return "random bits"
    if kind == "custom-call":
        target = _TARGET.search(line)
        return f"custom-call {target[1]}" if target else kind
    if kind == "fusion":
        return f"fusion {_SUFFIX.sub('', found['name'])}".strip()
    return "scalar" if _ONE_NUMBER.match(operation["result"]) else kind.removesuffix("-start")


def _without_tuple(text: str) -> str:
    """Return the text with one word in place of a tuple that it starts with."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return f"tuple{text[place + 1 :]}" if place else text
    return text
