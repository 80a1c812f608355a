"""Collectives of a compiled program, parsed from its HLO text.

A collective inside a loop is executed in each iteration: its bytes are multiplied by the trip
count, which the compiler states or the loop's condition shows. A loop with a dynamic condition,
such as a search, has no trip count and counts once. Every branch of a conditional is counted, as if
all of them were executed. libtpu may spread a collective over several fusions to overlap it with
them; it is then written in each of them and is counted once.
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
_CALL = re.compile(
    r"\b(?:calls|to_apply|branch_computations|true_computation|false_computation)="
    r"(?:\{(?P<names>[^}]*)\}|(?P<name>%?[\w.\-]+))"
)
_NAME = re.compile(r"[\w.\-]+")
_ROUNDS = re.compile(r'known_trip_count"?[:=]\s*\{"?n"?:"?(\d+)"?\}')
_GROUPS = re.compile(
    r"replica_groups=(\{\{.*?\}\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?"
    r"|mesh\[[^\]]*\](?:, device_ids=\([^{]*\))? \{.*?\})"
)
_DEVICE_IDS = re.compile(r"device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)")
_MESH_AXIS = re.compile(r"('\w+')=(\d+)")
_SPREAD = re.compile(r"channel_id=(?P<channel>\d+),.*\bchain_id=")
# Between TPU slices libtpu sends arrays to the host's runtime, which moves them.
_BETWEEN_SLICES = re.compile(
    r"= \((?P<result>[^()]*\S*), u32\[\], token\[\]\) send\(.*"
    r'_xla_megascale_transfer_type="(?P<kind>\w+)"'
)
_PAIRS = re.compile(r"source_target_pairs=\{(.*?\})\}")


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives of one kind over the same mesh axes.

    Attributes:
        kind: e.g. `all-reduce`.
        axes: mesh axes over which devices communicate, in the mesh's order.
        count: instructions executed per step, loop iterations included.
        bytes: bytes of their results on one device, per step.
        between_slices: whether they connect TPU slices, over the data-centre network.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    bytes: int
    between_slices: bool = False


def find_collectives(
    program: str, mesh_shape: Mapping[str, int], slices: int = 1
) -> tuple[Collective, ...]:
    """Return a compiled program's collectives, grouped by kind, axes and network.

    Args:
        program: HLO text for one device, `compiled.as_text()`.
        mesh_shape: size of each mesh axis, in the mesh's order.
        slices: number of TPU slices, which the first axis joins.

    Returns:
        The collectives, sorted by bytes in descending order.
    """
    trip_counts = loop_trip_counts(program)
    first, *others = mesh_shape
    slice_shape = {first: mesh_shape[first] // slices} | {name: mesh_shape[name] for name in others}
    totals: dict[tuple[str, tuple[str, ...], bool], list[int]] = {}
    for computation, line in _collective_lines(program):
        key_and_bytes = _between_slices(line, first) or _within_slice(line, slice_shape)
        if key_and_bytes:
            key, size = key_and_bytes
            times = trip_counts.get(computation, 1)
            total = totals.setdefault(key, [0, 0])
            total[0] += times
            total[1] += times * size
    collectives = (
        Collective(kind, axes, count, size, between)
        for (kind, axes, between), (count, size) in totals.items()
    )
    return tuple(
        sorted(
            collectives,
            key=lambda collective: (-collective.bytes, collective.kind, collective.axes),
        )
    )


_KeyAndBytes = tuple[tuple[str, tuple[str, ...], bool], int]
"""Kind, axes and whether it is between slices; bytes."""


def _collective_lines(program: str) -> Iterator[tuple[str, str]]:
    """Yield (name of the computation, line) of every collective, once if it is spread over many."""
    seen_channels: set[str] = set()
    for computation, line in instructions(program):
        if not (_COLLECTIVE.search(line) or _BETWEEN_SLICES.search(line)):
            continue
        if spread_match := _SPREAD.search(line):
            if spread_match["channel"] in seen_channels:
                continue
            seen_channels.add(spread_match["channel"])
        yield computation, line


def async_collective_fusions(program: str) -> dict[str, tuple[str, str, int]]:
    """Return the collective of each fused computation that carries a spread one on.

    Returns:
        By the name of the computation: channel, kind, and bytes of the result.
    """
    collectives = {}
    for computation, line in instructions(program):
        if (match := _COLLECTIVE.search(line)) and (spread := _SPREAD.search(line)):
            size = _bytes(match["result"], match["kind"], started=False)
            collectives[computation] = spread["channel"], match["kind"], size
    return collectives


def started(line: str) -> tuple[str, str, int] | None:
    """Return name, kind and bytes of the result of a line that starts a collective; else None."""
    match = _COLLECTIVE.search(line)
    if not match or not match["start"]:
        return None
    name = line[: match.start()].strip().removeprefix("ROOT ").removeprefix("%")
    return name, match["kind"], _bytes(match["result"], match["kind"], started=True)


def _between_slices(line: str, axis: str) -> _KeyAndBytes | None:
    match = _BETWEEN_SLICES.search(line)
    if not match:
        return None
    kind = match["kind"].lower().replace("_", "-")
    return (kind, (axis,), True), _bytes(match["result"], kind, started=False)


def _within_slice(line: str, mesh_shape: Mapping[str, int]) -> _KeyAndBytes | None:
    """Return the collective of a line; None if its group is a single device."""
    match = _COLLECTIVE.search(line)
    assert match
    axes = _axes(_group(match["rest"], math.prod(mesh_shape.values())), mesh_shape)
    size = _bytes(match["result"], match["kind"], bool(match["start"]))
    return ((match["kind"], axes, False), size) if axes else None


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
    """Return the trip counts of computations inside loops; all others run once."""
    callers: dict[str, tuple[str, int]] = {}
    bounds = _bounds(program)
    for computation, line in instructions(program):
        if loop := _LOOP.search(line):
            stated = _ROUNDS.search(line)
            count = int(stated[1]) if stated else bounds.get(loop["condition"], 1)
            callers[loop["body"]] = callers[loop["condition"]] = (computation, count)
        else:
            for call in _CALL.finditer(line):
                for name in _NAME.findall(call["names"] or call["name"]):
                    callers.setdefault(name, (computation, 1))

    def times(name: str, depth: int = 0) -> int:
        if name not in callers or depth > len(callers):
            return 1
        caller, count = callers[name]
        return count * times(caller, depth + 1)

    return {name: times(name) for name in callers}


def _bounds(program: str) -> dict[str, int]:
    """Return the bounds of loop counters, which start at 0, by the loop's condition."""
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
        # Such an instruction returns (operands, results, internal scalars).
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


def _group(operands: str, devices: int) -> Sequence[int]:
    """Return the first group of communicating devices; all devices if the text names none."""
    if groups := _GROUPS.search(operands):
        return _first_group(groups[1]) or range(devices)
    if pairs := _PAIRS.search(operands):
        numbers = [int(number) for number in re.findall(r"\d+", pairs[1])]
        return sorted(
            {numbers[0], *(b for a, b in _source_target_pairs(numbers) if a == numbers[0])}
        )
    return range(devices)


def _source_target_pairs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _first_group(text: str) -> list[int]:
    if text.startswith("{"):
        return [int(number) for number in re.findall(r"\d+", text.split("}", maxsplit=1)[0])]
    if text.startswith("mesh"):
        axes = {name: int(size) for name, size in _MESH_AXIS.findall(text)}
        varies = re.findall(r"'\w+'", text.rsplit("{", maxsplit=1)[1])
        match = _DEVICE_IDS.search(text)
        numbers = _iota(*match.groups()) if match else np.arange(math.prod(axes.values()))
        numbers = numbers.reshape(list(axes.values()))
        return numbers[tuple(slice(None) if a in varies else 0 for a in axes)].reshape(-1).tolist()
    shape, source, *order = re.findall(r"[\[(]([\d,]+)[\])]", text)
    numbers = _iota(source, *order)
    return numbers.reshape([int(size) for size in shape.split(",")])[0].reshape(-1).tolist()


def _iota(shape: str, order: str | None = None) -> np.ndarray:
    """Return 0, 1, 2, ... in a shape such as `4,2`, transposed to an axis order such as `1,0`."""
    sizes = [int(size) for size in shape.split(",")]
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    return numbers.transpose([int(axis) for axis in order.split(",")]) if order else numbers


def _axes(group: Sequence[int], mesh_shape: Mapping[str, int]) -> tuple[str, ...]:
    coordinates = np.array(np.unravel_index(np.asarray(group), tuple(mesh_shape.values())))
    return tuple(
        axis
        for axis, coordinate in zip(mesh_shape, coordinates, strict=True)
        if len(set(coordinate.tolist())) > 1
    )
