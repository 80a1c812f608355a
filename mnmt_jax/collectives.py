"""What devices send each other in a compiled program, read from its text.

A collective inside a loop runs once per round: its bytes are multiplied by the loop's rounds where
the compiler states them.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

_KINDS = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast"
_COLLECTIVE = re.compile(rf"= (?P<result>.+?) (?P<kind>{_KINDS})(?P<start>-start)?\((?P<rest>.*)$")
_SHAPE = re.compile(r"\b(pred|bf16|[fsuc]\d+)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.\-]+) .*\{$")
_LOOP = re.compile(r" while\(.*body=%?(?P<body>[\w.\-]+)")
_CALL = re.compile(r"(?:calls|to_apply|branch_computations)=\{?%?([\w.\-]+)")
_ROUNDS = re.compile(r'known_trip_count"?[:=]\s*\{"?n"?:"?(\d+)"?\}')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_GROUPS = re.compile(r"replica_groups=(\{\{.*?\}\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)")
_PAIRS = re.compile(r"source_target_pairs=\{(.*?\})\}")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One kind of exchange over the same mesh axes.

    Attributes:
        kind: e.g. `all-reduce`.
        axes: mesh axes whose devices take part, in the mesh's order.
        count: instructions executed per step, rounds of loops included.
        bytes: of their results on one device, per step.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    bytes: int


def collectives(program: str, mesh_shape: Mapping[str, int]) -> tuple[Collective, ...]:
    """Lists a compiled program's exchanges, those of one kind and the same axes together.

    Args:
        program: one device's program, `compiled.as_text()`.
        mesh_shape: size of each mesh axis, in the mesh's order.

    Returns:
        Sorted by bytes, most first.
    """
    rounds = _rounds(program)
    totals: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for computation, line in _instructions(program):
        found = _COLLECTIVE.search(line)
        if not found:
            continue
        times = rounds.get(computation, 1)
        axes = _axes(_group(found["rest"], math.prod(mesh_shape.values())), mesh_shape)
        if not axes:
            continue  # a group of one device: nothing travels
        total = totals.setdefault((found["kind"], axes), [0, 0])
        total[0] += times
        total[1] += times * _bytes(found["result"], found["kind"], bool(found["start"]))
    listed = (Collective(*key, *total) for key, total in totals.items())
    return tuple(sorted(listed, key=lambda one: (-one.bytes, one.kind, one.axes)))


def executed_share(program: str) -> float:
    """Returns by how much loops lengthen a program, by the compiler's estimate of its cycles.

    XLA's totals count the body of a loop once; TPU programs state each instruction's cycles.

    Args:
        program: as in `collectives`.

    Returns:
        Cycles with every round over cycles with one; 1 where the text states none.
    """
    rounds = _rounds(program)
    once = total = 0
    for computation, line in _instructions(program):
        if cycles := _CYCLES.search(line):
            once += int(cycles[1])
            total += int(cycles[1]) * rounds.get(computation, 1)
    return total / once if once else 1.0


def _instructions(program: str) -> Iterator[tuple[str, str]]:
    """Yields (name of the computation, line)."""
    computation = ""
    for line in program.splitlines():
        header = _COMPUTATION.match(line)
        if header and " = " not in line.split("{", maxsplit=1)[0]:
            computation = header["name"]
        else:
            yield computation, line


def _rounds(program: str) -> dict[str, int]:
    """Returns how often each computation inside a loop runs; the others run once."""
    inside: dict[str, tuple[str, int]] = {}
    for computation, line in _instructions(program):
        if loop := _LOOP.search(line):
            known = _ROUNDS.search(line)
            inside[loop["body"]] = (computation, int(known[1]) if known else 1)
        else:
            for called in _CALL.findall(line):
                inside.setdefault(called, (computation, 1))

    def times(name: str, depth: int = 0) -> int:
        if name not in inside or depth > len(inside):
            return 1
        outer, count = inside[name]
        return count * times(outer, depth + 1)

    return {name: times(name) for name in inside}


def _bytes(result: str, kind: str, started: bool) -> int:
    sizes = [
        math.prod(int(size) for size in shape.split(",") if size) * _item_bytes(dtype)
        for dtype, shape in _SHAPE.findall(result)
    ]
    if started and kind in ("all-gather", "collective-permute", "reduce-scatter"):
        # Such an instruction returns (operands, results, ...).
        return sizes[len(sizes) // 2] if len(sizes) % 2 == 0 else max(sizes)
    return sum(sizes)


def _item_bytes(dtype: str) -> int:
    if dtype == "pred":
        return 1
    return max(int(re.sub(r"\D", "", dtype)) // 8, 1)


def _group(rest: str, devices: int) -> Sequence[int]:
    """Returns the first group of devices that exchange; all of them if the text names none."""
    if groups := _GROUPS.search(rest):
        return _first_group(groups[1]) or range(devices)
    if pairs := _PAIRS.search(rest):
        numbers = [int(number) for number in re.findall(r"\d+", pairs[1])]
        return sorted({numbers[0], *(b for a, b in _pairs(numbers) if a == numbers[0])})
    return range(devices)


def _pairs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _first_group(text: str) -> list[int]:
    if text.startswith("{"):
        return [int(number) for number in re.findall(r"\d+", text.split("}", maxsplit=1)[0])]
    shape, source, *order = re.findall(r"[\[(]([\d,]+)[\])]", text)
    sizes = [int(size) for size in source.split(",")]
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    if order:
        numbers = numbers.transpose([int(axis) for axis in order[0].split(",")])
    return numbers.reshape([int(size) for size in shape.split(",")])[0].reshape(-1).tolist()


def _axes(group: Sequence[int], mesh_shape: Mapping[str, int]) -> tuple[str, ...]:
    places = np.array(np.unravel_index(np.asarray(group), tuple(mesh_shape.values())))
    return tuple(
        axis for axis, place in zip(mesh_shape, places, strict=True) if len(set(place.tolist())) > 1
    )
