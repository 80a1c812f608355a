"""Cycle estimates of a compiled TPU program, and instructions without an estimate.

They are read from the program's text. An instruction inside a loop is multiplied by the trip count.
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
# Kernel metadata as written by Pallas.
_KERNEL = re.compile(rf'"({"|".join(KERNEL_METADATA)})":"(\d+)"')
_SUFFIX = re.compile(r"(?:_?fusion)?(?:\.\w+)*$")
# Names of other instructions' results, and calls of or waits for counted instructions.
_NO_WORK = re.compile(
    r"(?:after-all|bitcast|call|conditional|constant|domain|get-tuple-element|opt-barrier|parameter"
    r"|partition-id|replica-id|tuple|while|.*-done)$"
)
_RANDOM = re.compile(r"threefry|random_bits| rng-bit-generator\(| rng\(")
_HASH = f" constant({MULTIPLIERS[0]})"
# Threefry rotates 20 times; no other code here has as many shifts.
_SHIFT, _SHIFTS = " shift-right-logical(", 20


@dataclasses.dataclass(frozen=True)
class CycleEstimates:
    """The compiler's estimate of a program's cycles, with sequential instructions.

    Attributes:
        counted_once: cycles with each instruction counted once, as in XLA's own totals.
        executed: cycles with instructions in loops multiplied by trip counts; 0 if the text states
            none.
        random: cycles in `executed` of instructions that also draw random bits.
        without_cycles: number of working instructions without stated cycles, by kind, in descending
            order.
        kernels: metadata of our own kernels, summed by the names of `KERNEL_METADATA`; not part of
            the other fields.
    """

    counted_once: int
    executed: int
    random: int
    without_cycles: dict[str, int]
    kernels: dict[str, int] = dataclasses.field(default_factory=dict)


def estimate_cycles(program: str) -> CycleEstimates:
    """Sum the cycles stated in a TPU program, and count instructions without them.

    Args:
        program: HLO text for one device, `compiled.as_text()`.
    """
    times, bodies = loop_trip_counts(program), _bodies(program)
    applied = {
        name
        for lines in bodies.values()
        for line in lines
        if " call(" not in line
        for name in _APPLIES.findall(line)
    }
    once = executed = random = 0
    absent: collections.Counter[str] = collections.Counter()
    for computation, line in instructions(program):
        count = times.get(computation, 1)
        if (cycles := stated_cycles(line)) is not None:
            once += cycles
            executed += cycles * count
            random += cycles * count * _draws(line, bodies)
        elif computation not in applied and (kind := _kind(line)):
            absent[kind] += count
    kernels, calls = _kernels(program, times)
    kernel_calls = collections.Counter({f"custom-call {_KERNEL_CALL}": calls})
    return CycleEstimates(
        once, executed, random, dict((absent - kernel_calls).most_common()), kernels
    )


def stated_cycles(line: str) -> int | None:
    """Return the cycles that an instruction states."""
    cycles = _CYCLES.search(line)
    return int(cycles[1]) if cycles else None


def _kernels(program: str, times: dict[str, int]) -> tuple[dict[str, int], int]:
    """Sum the metadata of kernels, and count the kernels that have it.

    It is on separate lines after a call, and again after the instructions that unpack its results.
    """
    stated: collections.Counter[str] = collections.Counter()
    calls, in_kernel_call = 0, False
    for computation, line in instructions(program):
        count = times.get(computation, 1)
        if _INSTRUCTION.match(line):
            in_kernel_call = f'custom_call_target="{_KERNEL_CALL}"' in line
        if in_kernel_call:
            metadata = {name: int(value) * count for name, value in _KERNEL.findall(line)}
            stated.update(metadata)
            if KERNEL_METADATA[0] in metadata:
                calls += count
    return dict(stated), calls


def _bodies(program: str) -> dict[str, list[str]]:
    """Return the lines by computation."""
    bodies: dict[str, list[str]] = collections.defaultdict(list)
    for computation, line in instructions(program):
        bodies[computation].append(line)
    return bodies


def _draws(line: str, bodies: dict[str, list[str]]) -> bool:
    """Return whether an instruction, including fused instructions, draws random bits."""
    inside = list(_inside(line, bodies))
    shifts = sum(_SHIFT in inner for inner in inside)
    has_generator = any(
        _HASH in inner or (" rng" in inner and _RANDOM.search(inner)) for inner in inside
    )
    return shifts >= _SHIFTS or has_generator


def _inside(line: str, bodies: dict[str, list[str]]) -> Iterator[str]:
    yield line
    for name in _CALLS.findall(line):
        for inner in bodies.get(name, ()):
            yield from _inside(inner, bodies)


def _kind(line: str) -> str:
    """Return the kind of an instruction without an estimate; empty if it does no work."""
    match = _INSTRUCTION.match(line)
    if not match:
        return ""
    operation = _OPERATION.match(_without_tuple(match["rest"]))
    if not operation or _NO_WORK.match(kind := operation["kind"]):
        return ""
    if _RANDOM.search(line):
        return "random bits"
    if kind == "custom-call":
        target = _TARGET.search(line)
        return f"custom-call {target[1]}" if target else kind
    if kind == "fusion":
        return f"fusion {_SUFFIX.sub('', match['name'])}".strip()
    return "scalar" if _ONE_NUMBER.match(operation["result"]) else kind.removesuffix("-start")


def _without_tuple(text: str) -> str:
    """Return the text with an initial tuple replaced by the word `tuple`."""
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return f"tuple{text[position + 1 :]}" if position else text
    return text
