"""The Pallas kernels of `mnmt_jax.attention.fused`: attention of one role on one chip's TPU core.

A program of the grid has one row and as many heads as fill 128 lanes, and all keys that the role
reads: scores, softmax and dropout of a head stay in the core's memory, keys along the first axis
and queries along lanes, so that sums over keys are sums of registers. Two heads of 64 lie side by
side; a product over one of them takes the other's numbers as zeros, which costs the matrix units
nothing that they had not lost to the narrow head. The backward kernel computes the weights again
and needs nothing of the forward one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from mnmt_jax.model.dropout import hash_level, mixed

LANES = 128
METADATA = "bundles", "bytes"
_HIDDEN = float(np.finfo(np.float32).min)  # as `core.masked_softmax` hides
# Scores of a head, keys x queries, that are held at a time; more queries are taken in parts.
_SCORES = 528 * 272
# Cycles of a program of the grid, and of each 1,024 scores of it: as libtpu 0.0.42.1 schedules them
# for a v5e, rounded up. tests/tpu holds them against its schedule.
_FORWARD, _BACKWARD = (700, 7), (700, 15)


@dataclasses.dataclass(frozen=True)
class Reading:
    """What is the same for every row and head.

    Attributes:
        sees: a letter of `Sees` for each key role.
        heads: of the whole array, whatever the mesh.
        head_dim: of a head; divides 128.
        share: of the weights that dropout leaves; 1 is without.
    """

    sees: str
    heads: int
    head_dim: int
    share: float

    @property
    def together(self) -> int:
        """Heads that lie side by side in 128 lanes."""
        return LANES // self.head_dim


def fits(head_dim: int, heads: int, queries: int, keys: Sequence[int]) -> bool:
    """Returns whether the kernels take such spans.

    Args:
        head_dim: width of a head.
        heads: on one device.
        queries: length of the role.
        keys: lengths of the roles that it reads.
    """
    whole = all(length and length % 16 == 0 for length in (queries, *keys))
    wide = LANES % head_dim == 0 and heads % (LANES // head_dim) == 0
    return whole and wide and queries <= 1024 and sum(keys) * LANES <= _SCORES


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
    reading: Reading,
    numbers: Int[Array, "4"],
    queries: Float[Array, "batch q width"],
    query_ids: Int[Array, "batch q"],
    keys: tuple[Float[Array, "batch _ width"], ...],
    values: tuple[Float[Array, "batch _ width"], ...],
    key_ids: tuple[Int[Array, "batch _"], ...],
) -> Float[Array, "batch q width"]:
    """Attends with one softmax over the keys of all roles that are read.

    Args:
        reading: what is visible and dropped.
        numbers: the two words of dropout's key, then the place of the first row and the first head
            in the whole array.
        queries: scaled; heads side by side, `width` is heads x head_dim.
        query_ids: segments; 0 is padding.
        keys: of each role that is read.
        values: as `keys`.
        key_ids: segments of the keys.
    """
    arguments = (numbers, queries, query_ids[:, None], *keys, *values, *_columns(key_ids))
    return _call(_forward, reading, arguments, len(keys), (queries,))[0]


def _attend(reading: Reading, *arguments: Any) -> tuple[Array, tuple[Any, ...]]:
    return attend(reading, *arguments), arguments


def _gradients(reading: Reading, arguments: Any, outward: Array) -> tuple[Any, ...]:
    numbers, queries, query_ids, keys, values, key_ids = arguments
    given = (numbers, queries, query_ids[:, None], *keys, *values, *_columns(key_ids), outward)
    found = _call(_backward, reading, given, len(keys), (queries, *keys, *values))
    count = len(keys) + 1
    return None, found[0], None, tuple(found[1:count]), tuple(found[count:]), None


attend.defvjp(_attend, _gradients)


def _columns(key_ids: Sequence[Array]) -> list[Array]:
    return [ids[:, :, None] for ids in key_ids]


def _call(
    body: Any, reading: Reading, arguments: Sequence[Any], roles: int, results: Sequence[Array]
) -> list[Array]:
    """Runs a kernel over rows and groups of heads.

    Args:
        body: `_forward` or `_backward`.
        reading: for it.
        arguments: `numbers`, then arrays: states are given by groups of heads, segments whole.
        roles: number of roles that are read.
        results: arrays like the results.
    """
    numbers, *arrays = arguments
    rows, _, width = arrays[0].shape

    def spec(array: Any) -> pl.BlockSpec:
        if array.dtype == jnp.int32:
            return pl.BlockSpec((1, *array.shape[1:]), lambda row, group, _: (row, 0, 0))
        return pl.BlockSpec((1, array.shape[1], LANES), lambda row, group, _: (row, 0, group))

    grid = rows, width // LANES
    scores = math.prod(grid) * reading.together * arrays[0].shape[1] * _total(arrays[2:][:roles])
    moved = sum(array.size * array.dtype.itemsize for array in (*arrays, *results))
    products = 2 if body is _forward else 5
    return pl.pallas_call(
        functools.partial(body, reading, roles),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid,
            in_specs=[spec(array) for array in arrays],
            out_specs=[spec(array) for array in results],
        ),
        out_shape=[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in results],
        name=f"attention{body.__name__}",
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=pl.CostEstimate(
            flops=products * 2 * scores * reading.head_dim,
            transcendentals=scores,
            bytes_accessed=moved,
        ),
        metadata=dict(zip(METADATA, (str(_bundles(body, reading, arrays, roles)), str(moved)))),
    )(numbers, *arrays)


def _total(keys: Sequence[Array]) -> int:
    return sum(each.shape[1] for each in keys)


def _bundles(body: Any, reading: Reading, arrays: Sequence[Array], roles: int) -> int:
    """Returns the cycles of a call on one core if it never waits for memory."""
    (rows, length, width), keys = arrays[0].shape, _total(arrays[2:][:roles])
    lanes = sum(-(-(stop - start) // LANES) * LANES for start, stop in _parts(length, keys))
    each, scores = _FORWARD if body is _forward else _BACKWARD
    return rows * (width // LANES) * (each + scores * reading.together * keys * lanes // 1024)


def _parts(length: int, keys: int) -> Iterator[tuple[int, int]]:
    """Yields the queries that are taken at a time, from and to."""
    size = length if length * keys <= _SCORES else LANES
    for start in range(0, length, size):
        yield start, min(start + size, length)


def _forward(reading: Reading, roles: int, numbers: Any, queries: Any, query_ids: Any, *refs: Any):
    keys, values, key_ids, (outputs,) = (
        refs[place * roles : place * roles + roles] for place in range(4)
    )
    turned = [jnp.transpose(each[0]) for each in values]  # a head's values then are whole rows
    for part in _parts(queries.shape[1], _total(keys)):
        visible = list(_visible(reading, query_ids, key_ids, part))
        found = []
        for head in range(reading.together):
            asked = _one_head(reading, head, queries[0, part[0] : part[1]])
            weights, total = _softmax(keys, asked, visible)
            kept = list(_kept(reading, numbers, head, queries.shape[1], part, weights))
            weights = [_dropped(*each) for each in zip(weights, kept, strict=True)]
            rows = slice(head * reading.head_dim, (head + 1) * reading.head_dim)
            read = _sum(
                _product(own[rows], each.astype(own.dtype), (1, 0))
                for own, each in zip(turned, weights, strict=True)
            )
            found.append(read * (1 / (total * reading.share)))
        outputs[0, part[0] : part[1]] = jnp.transpose(jnp.concatenate(found)).astype(outputs.dtype)


def _backward(reading: Reading, roles: int, numbers: Any, queries: Any, query_ids: Any, *refs: Any):
    keys, values, key_ids = (refs[place * roles : place * roles + roles] for place in range(3))
    outward, to_queries, *into = refs[3 * roles :]
    turned = [jnp.transpose(each[0]) for each in keys]
    sums: list[Any] = [None] * (2 * roles)  # of keys and of values
    for part in _parts(queries.shape[1], _total(keys)):
        visible = list(_visible(reading, query_ids, key_ids, part))
        real = query_ids[0, :, part[0] : part[1]] != 0
        found = []
        for head in range(reading.together):
            asked, answer = (
                _one_head(reading, head, each[0, part[0] : part[1]]) for each in (queries, outward)
            )
            weights, total = _softmax(keys, asked, visible)
            kept = list(_kept(reading, numbers, head, queries.shape[1], part, weights))
            scale = 1 / (total * reading.share)
            inner = _inner(values, answer, kept, jnp.where(real, scale, 0.0))
            common = _sum(
                jnp.sum(own * each, 0, keepdims=True)
                for own, each in zip(weights, inner, strict=True)
            ) * (1 / total)
            rows = slice(head * reading.head_dim, (head + 1) * reading.head_dim)
            change = None
            for role, own in enumerate(weights):
                logits = (own * (inner[role] - common)).astype(asked.dtype)
                left = (_dropped(own, kept[role]) * scale).astype(asked.dtype)
                sums[role] = _plus(sums[role], _product(logits, asked, (1, 0)))
                sums[roles + role] = _plus(sums[roles + role], _product(left, answer, (1, 0)))
                change = _plus(change, _product(turned[role][rows], logits, (1, 0)))
            found.append(change)
        turned_back = jnp.transpose(jnp.concatenate(found))
        to_queries[0, part[0] : part[1]] = turned_back.astype(to_queries.dtype)
    for ref, each in zip(into, sums, strict=True):
        ref[0] = each.astype(ref.dtype)


def _inner(
    values: Sequence[Any], answer: Array, kept: Sequence[Any], scale: Array
) -> list[Float[Array, "k q"]]:
    """Returns the gradients of the weights before dropout, times `scale`, of each role's keys."""
    inner = (_product(each[0], answer, (1, 1)) * scale for each in values)
    return [_dropped(each, left) for each, left in zip(inner, kept, strict=True)]


def _one_head(reading: Reading, head: int, states: Array) -> Float[Array, "q lanes"]:
    """Returns the states of a head, with zeros in the place of the heads beside it."""
    if reading.together == 1:
        return states
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    own = (lane >= head * reading.head_dim) & (lane < (head + 1) * reading.head_dim)
    return jnp.where(own, states, jnp.zeros((), states.dtype))


def _visible(
    reading: Reading, query_ids: Any, key_ids: Sequence[Any], part: tuple[int, int]
) -> Iterator[Array]:
    """Yields what `core.pair_mask` says of each role's keys, [k, q]."""
    own = query_ids[0, :, part[0] : part[1]]
    for letter, ids in zip(reading.sees, key_ids, strict=True):
        mask = (ids[0] == own) & (own != 0)
        if letter == "c":
            query = part[0] + jax.lax.broadcasted_iota(jnp.int32, mask.shape, 1)
            mask &= query >= jax.lax.broadcasted_iota(jnp.int32, mask.shape, 0)
        yield mask


def _softmax(
    keys: Sequence[Any], asked: Array, visible: Sequence[Array]
) -> tuple[list[Float[Array, "k q"]], Float[Array, "1 q"]]:
    """Returns a head's weights before they are divided by their sums, and the sums."""
    logits = [
        jnp.where(mask, _product(each[0], asked, (1, 1)), _HIDDEN)
        for each, mask in zip(keys, visible, strict=True)
    ]
    top = functools.reduce(jnp.maximum, [jnp.max(each, 0, keepdims=True) for each in logits])
    weights = [jnp.exp(each - top) for each in logits]
    return weights, _sum(jnp.sum(each, 0, keepdims=True) for each in weights)


def _kept(
    reading: Reading,
    numbers: Any,
    head: int,
    length: int,
    part: tuple[int, int],
    weights: Sequence[Array],
) -> Iterator[Array | None]:
    """Yields which weights stay, as `keep_by_hash` draws them; None is all."""
    if reading.share == 1:
        yield from [None] * len(weights)
        return
    first, last, row, group = (numbers[place].astype(jnp.uint32) for place in range(4))
    row, group = row + _program(0), group + _program(1) * reading.together + head
    query = part[0] + jax.lax.broadcasted_iota(jnp.int32, (1, part[1] - part[0]), 1)
    place = (row * reading.heads + group) * length + query.astype(jnp.uint32)
    across, column = mixed(place ^ first), 0
    for each in weights:
        key = column + jax.lax.broadcasted_iota(jnp.int32, (each.shape[0], 1), 0)
        bits = mixed(across ^ mixed(key.astype(jnp.uint32) ^ last))
        yield bits < jnp.uint32(hash_level(reading.share))
        column += each.shape[0]


def _program(axis: int) -> Array:
    return pl.program_id(axis).astype(jnp.uint32)


def _dropped(states: Array, kept: Array | None) -> Array:
    return states if kept is None else jnp.where(kept, states, 0.0)


def _product(left: Array, right: Array, axes: tuple[int, int]) -> Float[Array, "_ _"]:
    """Multiplies two matrices over an axis of each, in float32."""
    numbers = ((axes[0],), (axes[1],)), ((), ())
    return jax.lax.dot_general(left, right, numbers, preferred_element_type=jnp.float32)


def _plus(total: Any, more: Array) -> Array:
    return more if total is None else total + more


def _sum(terms: Iterator[Array]) -> Array:
    return functools.reduce(jnp.add, terms)
