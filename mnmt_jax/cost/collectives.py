"""Collectives of a compiled program, parsed from its HLO text.

A collective inside a loop runs once per round: its bytes are multiplied by the loop's rounds, which
the compiler states or the loop's condition shows. A loop that ends when its work is done, as a
search, has no such number: it counts as one round. An exchange that libtpu spreads over several
fusions, to hide it behind them, stands in each of them and counts once.
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
_LOOP = re.compile(r" while\(.*condition=%?(?P<condition>[\w.\-]+), body=%?(?P<body>[\w.\-]+)")
_CONSTANT = re.compile(r"%?(?P<name>[\w.\-]+) = s32\[\]\S* constant\((?P<value>\d+)\)")
_COUNTER = re.compile(r"%?(?P<name>[\w.\-]+) = s32\[\]\S* get-tuple-element\(")
_BOUND = re.compile(
    r"ROOT .* compare\(%?(?P<counter>[\w.\-]+), %?(?P<name>[\w.\-]+)\), direction=LT"
)
_CALL = re.compile(r"(?:calls|to_apply|branch_computations)=\{?%?([\w.\-]+)")
_ROUNDS = re.compile(r'known_trip_count"?[:=]\s*\{"?n"?:"?(\d+)"?\}')
_GROUPS = re.compile(
    r"replica_groups=(\{\{.*?\}\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?"
    r"|mesh\[[^\]]*\](?:, device_ids=\([^{]*\))? \{.*?\})"
)
_DEVICE_IDS = re.compile(r"device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)")
_MESH_AXIS = re.compile(r"('\w+')=(\d+)")
_SPREAD = re.compile(r"channel_id=(?P<channel>\d+),.*\bchain_id=")
_PAIRS = re.compile(r"source_target_pairs=\{(.*?\})\}")


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives of one kind over the same mesh axes.

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


def find_collectives(program: str, mesh_shape: Mapping[str, int]) -> tuple[Collective, ...]:
    """List a compiled program's exchanges, those of one kind and the same axes together.

    Args:
        program: one device's program, `compiled.as_text()`.
        mesh_shape: size of each mesh axis, in the mesh's order.

    Returns:
        Sorted by bytes, most first.
    """
    often = loop_trip_counts(program)
    totals: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    spread: set[str] = set()
    for computation, line in instructions(program):
        found = _COLLECTIVE.search(line)
        if not found:
            continue
        if part := _SPREAD.search(line):
            if part["channel"] in spread:
                continue
            spread.add(part["channel"])
        times = often.get(computation, 1)
        axes = _axes(_group(found["rest"], math.prod(mesh_shape.values())), mesh_shape)
        if not axes:
            continue  # a group of one device: nothing travels
        total = totals.setdefault((found["kind"], axes), [0, 0])
        total[0] += times
        total[1] += times * _bytes(found["result"], found["kind"], bool(found["start"]))
    listed = (Collective(*key, *total) for key, total in totals.items())
    return tuple(sorted(listed, key=lambda one: (-one.bytes, one.kind, one.axes)))


def instructions(program: str) -> Iterator[tuple[str, str]]:
    """Yield (name of the computation, line)."""
    computation = ""
    for line in program.splitlines():
        header = _COMPUTATION.match(line)
        if header and " = " not in line.split("{", maxsplit=1)[0]:
            computation = header["name"]
        else:
            yield computation, line


def loop_trip_counts(program: str) -> dict[str, int]:
    """Return how often each computation inside a loop runs; the others run once."""
    inside: dict[str, tuple[str, int]] = {}
    bounds = _bounds(program)
    for computation, line in instructions(program):
        if loop := _LOOP.search(line):
            known = _ROUNDS.search(line)
            count = int(known[1]) if known else bounds.get(loop["condition"], 1)
            inside[loop["body"]] = inside[loop["condition"]] = (computation, count)
        else:
            for called in _CALL.findall(line):
                inside.setdefault(called, (computation, 1))

    def times(name: str, depth: int = 0) -> int:
        if name not in inside or depth > len(inside):
            return 1
        outer, count = inside[name]
        return count * times(outer, depth + 1)

    return {name: times(name) for name in inside}


def _bounds(program: str) -> dict[str, int]:
    """Return what the counter of a loop, which starts at 0, is compared to, by its condition."""
    constants: dict[tuple[str, str], int] = {}
    counters: set[tuple[str, str]] = set()
    bounds = {}
    for computation, line in instructions(program):
        if constant := _CONSTANT.search(line):
            constants[computation, constant["name"]] = int(constant["value"])
        elif counter := _COUNTER.search(line):
            counters.add((computation, counter["name"]))
        elif (bound := _BOUND.search(line)) and (computation, bound["counter"]) in counters:
            bounds[computation] = constants.get((computation, bound["name"]), 1)
    return bounds


def _bytes(result: str, kind: str, started: bool) -> int:
    shapes = _SHAPE.findall(result)
    if started and kind in ("all-gather", "collective-permute", "reduce-scatter"):
        # Such an instruction returns (operands, results, scalars of its own).
        shapes = [(dtype, shape) for dtype, shape in shapes if shape]
        shapes = shapes[len(shapes) // 2 :]
    return sum(
        math.prod(int(size) for size in shape.split(",") if size) * _item_bytes(dtype)
        for dtype, shape in shapes
    )


def _item_bytes(dtype: str) -> int:
    if dtype == "pred":
        return 1
    return max(int(re.sub(r"\D", "", dtype)) // 8, 1)


def _group(rest: str, devices: int) -> Sequence[int]:
    """Return the first group of devices that exchange; all of them if the text names none."""
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
    if text.startswith("mesh"):
        axes = {name: int(size) for name, size in _MESH_AXIS.findall(text)}
        varies = re.findall(r"'\w+'", text.rsplit("{", maxsplit=1)[1])
        found = _DEVICE_IDS.search(text)
        numbers = _iota(*found.groups()) if found else np.arange(math.prod(axes.values()))
        numbers = numbers.reshape(list(axes.values()))
        return numbers[tuple(slice(None) if a in varies else 0 for a in axes)].reshape(-1).tolist()
    shape, source, *order = re.findall(r"[\[(]([\d,]+)[\])]", text)
    numbers = _iota(source, *order)
    return numbers.reshape([int(size) for size in shape.split(",")])[0].reshape(-1).tolist()


def _iota(shape: str, order: str | None = None) -> np.ndarray:
    """Return 0, 1, 2, ... in a shape such as `4,2`, its axes then in an order such as `1,0`."""
    sizes = [int(size) for size in shape.split(",")]
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    return numbers.transpose([int(axis) for axis in order.split(",")]) if order else numbers


def _axes(group: Sequence[int], mesh_shape: Mapping[str, int]) -> tuple[str, ...]:
    places = np.array(np.unravel_index(np.asarray(group), tuple(mesh_shape.values())))
    return tuple(
        axis for axis, place in zip(mesh_shape, places, strict=True) if len(set(place.tolist())) > 1
    )
