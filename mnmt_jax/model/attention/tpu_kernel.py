"""The Pallas kernels of `mnmt_jax.model.attention.fused`: attention of one role on one TPU core.

A program of the grid has one row, one or two heads, and all keys that the role reads: scores,
softmax and dropout of a head stay in the core's memory. Positions lie along lanes in all that is
read and written, as XLA lays out what projections make; scores have keys along the first axis and
queries along lanes, so that sums over keys are sums of registers. The backward kernel computes the
weights again and needs nothing of the forward one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from mnmt_jax.model.attention.fused import KERNEL_METADATA
from mnmt_jax.model.attention.kernel_parts import HIDDEN, Reading, dropped, kept, product

LANES = 128
# Queries, and half of the keys, that surely fit into the core's memory; longer ones may not.
_LONGEST = 544
# Scores of a head, keys x queries, that are held at a time; more queries are taken in parts.
_SCORES = 528 * 512
# Cycles of each part of a program of the grid, and of each 1,024 of its scores: as libtpu 0.0.42.1
# schedules them for a v5e, rounded up for spans like MITRE's, a tenth less at most for others.
# tests/tpu holds them against its schedule.
_FORWARD, _BACKWARD = (650, 8), (600, 14)


def fits(head_dim: int, queries: int, keys: Sequence[int]) -> bool:
    """Returns whether the kernels take such spans.

    Args:
        head_dim: width of a head.
        queries: length of the role.
        keys: lengths of the roles that it reads.
    """
    whole = all(length and length % 16 == 0 for length in (head_dim, queries, *keys))
    return whole and head_dim <= LANES and queries <= _LONGEST and sum(keys) <= 2 * _LONGEST


def attend(
    reading: Reading, numbers: Array, states: tuple[Any, ...], ids: tuple[Any, ...]
) -> Float[Array, "batch q heads head_dim"]:
    """Attends with one softmax over the keys of all roles that are read.

    Args:
        reading: what is visible and dropped.
        numbers: as `kernel_parts.kept` takes them.
        states: queries, scaled, and tuples of keys and of values of each role that is read, [batch,
            length, heads, head_dim].
        ids: segments of the queries and a tuple of those of the keys, [batch, length]; 0 is
            padding.
    """
    queries, keys, values = jax.tree.map(lambda x: x.transpose(0, 2, 3, 1), states)
    found = _attended(reading, numbers, queries, ids[0], keys, values, ids[1])
    return found.transpose(0, 3, 1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attended(
    reading: Reading,
    numbers: Array,
    queries: Float[Array, "batch heads head_dim q"],
    query_ids: Int[Array, "batch q"],
    keys: tuple[Float[Array, "batch heads head_dim _"], ...],
    values: tuple[Float[Array, "batch heads head_dim _"], ...],
    key_ids: tuple[Int[Array, "batch _"], ...],
) -> Float[Array, "batch heads head_dim q"]:
    """Does what `attend` does, with positions last."""
    arguments = (numbers, queries, query_ids[:, None], *keys, *values, *_columns(key_ids))
    return _call(_forward, reading, arguments, len(keys), (queries,))[0]


def _attend(reading: Reading, *arguments: Any) -> tuple[Array, tuple[Any, ...]]:
    return _attended(reading, *arguments), arguments


def _gradients(reading: Reading, arguments: Any, outward: Array) -> tuple[Any, ...]:
    numbers, queries, query_ids, keys, values, key_ids = arguments
    given = (numbers, queries, query_ids[:, None], *keys, *values, *_columns(key_ids), outward)
    found = _call(_backward, reading, given, len(keys), (queries, *keys, *values))
    count = len(keys) + 1
    return None, found[0], None, tuple(found[1:count]), tuple(found[count:]), None


_attended.defvjp(_attend, _gradients)


def _columns(key_ids: Sequence[Array]) -> list[Array]:
    return [ids[:, :, None] for ids in key_ids]


def _call(
    body: Any, reading: Reading, arguments: Sequence[Any], roles: int, results: Sequence[Array]
) -> Sequence[Array]:
    """Runs a kernel over rows and groups of heads.

    Args:
        body: `_forward` or `_backward`.
        reading: for it.
        arguments: `numbers`, then arrays: states [rows, heads, head_dim, length], and segments with
            an axis of length 1 beside the positions.
        roles: number of roles that are read.
        results: arrays like the results.
    """
    numbers, *arrays = arguments
    queries, keys = arrays[0], _total(arrays[2:][:roles])
    rows, heads, head_dim, length = queries.shape
    together = 2 - heads % 2

    def spec(array: Any) -> pl.BlockSpec:
        if array.ndim == 3:
            return pl.BlockSpec((1, *array.shape[1:]), lambda row, group, _: (row, 0, 0))
        block = 1, together, *array.shape[2:]
        return pl.BlockSpec(block, lambda row, group, _: (row, group, 0, 0))

    scores = rows * heads * length * keys
    moved = sum(map(_bytes, (*arrays, *results)))
    cycles = rows * (heads // together) * _cycles(body, together, length, keys)
    return pl.pallas_call(
        functools.partial(body, reading, roles),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(rows, heads // together),
            in_specs=[spec(array) for array in arrays],
            out_specs=[spec(array) for array in results],
        ),
        out_shape=[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in results],
        name=f"attention{body.__name__}",
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=pl.CostEstimate(
            flops=(2 if body is _forward else 5) * 2 * scores * head_dim,
            transcendentals=scores,
            bytes_accessed=moved,
        ),
        metadata=dict(zip(KERNEL_METADATA, (str(cycles), str(moved)), strict=True)),
    )(numbers, *arrays)


def _cycles(body: Any, together: int, length: int, keys: int) -> int:
    """Returns the cycles of a program of the grid if it never waits for memory."""
    parts = [stop - start for start, stop in _parts(length, keys)]
    each, blocks = _FORWARD if body is _forward else _BACKWARD
    return each * len(parts) + blocks * together * keys * sum(map(_whole, parts)) // 1024


def _whole(length: int) -> int:
    """Returns the lanes that a length takes."""
    return -(-length // LANES) * LANES


def _bytes(array: Any) -> int:
    *others, length = array.shape
    return math.prod(others) * _whole(length) * array.dtype.itemsize


def _total(keys: Sequence[Any]) -> int:
    return sum(each.shape[-1] for each in keys)


def _parts(length: int, keys: int) -> Iterator[tuple[int, int]]:
    """Yields the queries that are taken at a time, from and to."""
    size = length if length * keys <= _SCORES else max(_SCORES // keys // LANES, 1) * LANES
    for start in range(0, length, size):
        yield start, min(start + size, length)


def _forward(
    reading: Reading, roles: int, numbers: Any, queries: Any, query_ids: Any, *refs: Any
) -> None:
    keys, values, key_ids, (outputs,) = (
        refs[place * roles : place * roles + roles] for place in range(4)
    )
    together, length = queries.shape[1], queries.shape[3]
    turned = [[jnp.transpose(each[0, head]) for each in keys] for head in range(together)]
    for part in _parts(length, _total(keys)):
        visible = list(_visible(reading, query_ids, key_ids, part))
        for head in range(together):
            asked = queries[0, head, :, slice(*part)]
            weights, total = _softmax(turned[head], asked, visible)
            stays = _kept(reading, numbers, head, queries.shape, part, weights)
            read = _sum(
                product(own[0, head], dropped(each, left).astype(own.dtype), (1, 0))
                for own, each, left in zip(values, weights, stays, strict=True)
            )
            outputs[0, head, :, slice(*part)] = (read / (total * reading.share)).astype(
                outputs.dtype
            )


def _backward(
    reading: Reading, roles: int, numbers: Any, queries: Any, query_ids: Any, *refs: Any
) -> None:
    keys, values, key_ids = (refs[place * roles : place * roles + roles] for place in range(3))
    outward, to_queries, *into = refs[3 * roles :]
    for head in range(queries.shape[1]):
        turned, turned_values = (
            [jnp.transpose(each[0, head]) for each in own] for own in (keys, values)
        )
        sums: list[Any] = [None] * (2 * roles)  # of keys and of values
        for part in _parts(queries.shape[3], _total(keys)):
            visible = list(_visible(reading, query_ids, key_ids, part))
            asked, answer = (each[0, head, :, slice(*part)] for each in (queries, outward))
            weights, total = _softmax(turned, asked, visible)
            stays = list(_kept(reading, numbers, head, queries.shape, part, weights))
            scale = 1 / (total * reading.share)
            # A query of padding changes nothing but the values that it averages.
            real = jnp.where(query_ids[0, :, slice(*part)] != 0, scale, 0.0)
            inner = [
                dropped(product(own, answer, (1, 0)) * real, left)
                for own, left in zip(turned_values, stays, strict=True)
            ]
            terms = zip(weights, inner, strict=True)
            common = _sum(jnp.sum(own * each, 0, keepdims=True) for own, each in terms) / total
            change: Any = None
            for role, own in enumerate(weights):
                logits = (own * (inner[role] - common)).astype(asked.dtype)
                left = (dropped(own, stays[role]) * scale).astype(asked.dtype)
                sums[role] = _plus(sums[role], product(asked, logits, (1, 1)))
                sums[roles + role] = _plus(sums[roles + role], product(answer, left, (1, 1)))
                change = _plus(change, product(keys[role][0, head], logits, (1, 0)))
            to_queries[0, head, :, slice(*part)] = change.astype(to_queries.dtype)
        for ref, each in zip(into, sums, strict=True):
            ref[0, head] = each.astype(ref.dtype)


def _visible(
    reading: Reading, query_ids: Any, key_ids: Sequence[Any], part: tuple[int, int]
) -> Iterator[Array]:
    """Yields what `core.pair_mask` says of each role's keys, [k, q]."""
    own = query_ids[0, :, slice(*part)]
    for letter, ids in zip(reading.sees, key_ids, strict=True):
        mask = (ids[0] == own) & (own != 0)
        if letter == "c":
            query = part[0] + jax.lax.broadcasted_iota(jnp.int32, mask.shape, 1)
            mask &= query >= jax.lax.broadcasted_iota(jnp.int32, mask.shape, 0)
        yield mask


def _softmax(
    keys: Sequence[Float[Array, "_ head_dim"]],
    asked: Float[Array, "head_dim q"],
    visible: Sequence[Array],
) -> tuple[list[Float[Array, "k q"]], Float[Array, "1 q"]]:
    """Returns a head's weights before they are divided by their sums, and the sums."""
    logits = [
        jnp.where(mask, product(each, asked, (1, 0)), HIDDEN)
        for each, mask in zip(keys, visible, strict=True)
    ]
    top = functools.reduce(jnp.maximum, [jnp.max(each, 0, keepdims=True) for each in logits])
    weights = [jnp.exp(each - top) for each in logits]
    return weights, _sum(jnp.sum(each, 0, keepdims=True) for each in weights)


def _kept(
    reading: Reading,
    numbers: Any,
    head: int,
    shape: tuple[int, ...],
    part: tuple[int, int],
    weights: Sequence[Array],
) -> Iterator[Array | None]:
    """Yields which weights stay; None is all.

    Args:
        reading: as above.
        numbers: as above.
        head: of the program's.
        shape: of the program's queries.
        part: of the queries, from and to.
        weights: of each role that is read, [k, q].
    """
    place = pl.program_id(0), pl.program_id(1) * shape[1] + head, shape[3]
    query = part[0] + jax.lax.broadcasted_iota(jnp.int32, (1, part[1] - part[0]), 1)
    column = 0
    for each in weights:
        key = column + jax.lax.broadcasted_iota(jnp.int32, (each.shape[0], 1), 0)
        yield kept(reading, numbers, place, query, key)
        column += each.shape[0]


def _plus(total: Any, more: Array) -> Array:
    return more if total is None else total + more


def _sum(terms: Iterator[Array]) -> Array:
    return functools.reduce(jnp.add, terms)
