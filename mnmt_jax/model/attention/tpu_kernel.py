"""Pallas TPU kernels of `mnmt_jax.model.attention.fused`: attention of one role on one core.

A program of the grid has one row, one or two heads, and all keys that the role attends to: scores,
softmax and dropout of a head stay in the core's memory. All arrays that are read and written have
positions along lanes, as XLA lays out the results of projections. Scores have keys along the first
axis and queries along lanes, so that sums over keys are sums of registers. The backward kernel
recomputes the weights and needs no residuals from the forward kernel.
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
from mnmt_jax.model.attention.kernel_parts import (
    HIDDEN,
    KernelSettings,
    apply_keep_mask,
    dropout_keep_mask,
    matmul,
)

LANES = 128
# Queries, and half of the keys, that are known to fit into the core's memory.
_LONGEST = 544
# Scores of a head, keys x queries, held at a time; more queries are processed in blocks.
_SCORES = 528 * 512
# Cycles per block of a program of the grid, and per 1,024 of its scores, as libtpu 0.0.42.1
# schedules them for a v5e: rounded up for spans like MITRE's, at most a tenth too low for others.
# tests/tpu compares them with its schedule.
_FORWARD, _BACKWARD = (650, 8), (600, 14)


def fits(head_dim: int, queries: int, keys: Sequence[int]) -> bool:
    """Return whether the kernels support these span lengths.

    Args:
        head_dim: width of a head.
        queries: length of the role.
        keys: lengths of the roles that it attends to.
    """
    aligned = all(length and length % 16 == 0 for length in (head_dim, queries, *keys))
    return aligned and head_dim <= LANES and queries <= _LONGEST and sum(keys) <= 2 * _LONGEST


def attend(
    settings: KernelSettings, numbers: Array, states: tuple[Any, ...], ids: tuple[Any, ...]
) -> Float[Array, "batch q heads head_dim"]:
    """Attend with one softmax over the keys of all visible roles.

    Args:
        settings: visibility and dropout.
        numbers: as `kernel_parts.dropout_keep_mask` takes them.
        states: queries, scaled, and tuples of keys and of values of each visible role, [batch,
            length, heads, head_dim].
        ids: segments of the queries and a tuple of those of the keys, [batch, length]; 0 is
            padding.
    """
    queries, keys, values = jax.tree.map(lambda x: x.transpose(0, 2, 3, 1), states)
    outputs = _attended(settings, numbers, queries, ids[0], keys, values, ids[1])
    return outputs.transpose(0, 3, 1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attended(
    settings: KernelSettings,
    numbers: Array,
    queries: Float[Array, "batch heads head_dim q"],
    query_ids: Int[Array, "batch q"],
    keys: tuple[Float[Array, "batch heads head_dim _"], ...],
    values: tuple[Float[Array, "batch heads head_dim _"], ...],
    key_ids: tuple[Int[Array, "batch _"], ...],
) -> Float[Array, "batch heads head_dim q"]:
    """Compute `attend` with positions last."""
    arguments = (numbers, queries, query_ids[:, None], *keys, *values, *_columns(key_ids))
    return _call(_forward, settings, arguments, len(keys), (queries,))[0]


def _attend(settings: KernelSettings, *arguments: Any) -> tuple[Array, tuple[Any, ...]]:
    return _attended(settings, *arguments), arguments


def _gradients(settings: KernelSettings, arguments: Any, outward: Array) -> tuple[Any, ...]:
    numbers, queries, query_ids, keys, values, key_ids = arguments
    inputs = (numbers, queries, query_ids[:, None], *keys, *values, *_columns(key_ids), outward)
    gradients = _call(_backward, settings, inputs, len(keys), (queries, *keys, *values))
    count = len(keys) + 1
    return None, gradients[0], None, tuple(gradients[1:count]), tuple(gradients[count:]), None


_attended.defvjp(_attend, _gradients)


def _columns(key_ids: Sequence[Array]) -> list[Array]:
    return [ids[:, :, None] for ids in key_ids]


def _call(
    body: Any,
    settings: KernelSettings,
    arguments: Sequence[Any],
    roles: int,
    results: Sequence[Array],
) -> Sequence[Array]:
    """Run a kernel over rows and groups of heads.

    Args:
        body: `_forward` or `_backward`.
        settings: passed to it.
        arguments: `numbers`, then arrays: states [rows, heads, head_dim, length], and segments with
            an axis of length 1 beside the positions.
        roles: number of visible roles.
        results: arrays of the shapes and dtypes of the results.
    """
    numbers, *arrays = arguments
    queries, keys = arrays[0], _total_length(arrays[2:][:roles])
    rows, heads, head_dim, length = queries.shape
    heads_per_program = 2 - heads % 2

    def spec(array: Any) -> pl.BlockSpec:
        if array.ndim == 3:
            return pl.BlockSpec((1, *array.shape[1:]), lambda row, group, _: (row, 0, 0))
        block = 1, heads_per_program, *array.shape[2:]
        return pl.BlockSpec(block, lambda row, group, _: (row, group, 0, 0))

    scores = rows * heads * length * keys
    moved_bytes = sum(map(_bytes, (*arrays, *results)))
    cycles = rows * (heads // heads_per_program) * _cycles(body, heads_per_program, length, keys)
    return pl.pallas_call(
        functools.partial(body, settings, roles),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(rows, heads // heads_per_program),
            in_specs=[spec(array) for array in arrays],
            out_specs=[spec(array) for array in results],
        ),
        out_shape=[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in results],
        name=f"attention{body.__name__}",
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=pl.CostEstimate(
            flops=(2 if body is _forward else 5) * 2 * scores * head_dim,
            transcendentals=scores,
            bytes_accessed=moved_bytes,
        ),
        metadata=dict(zip(KERNEL_METADATA, (str(cycles), str(moved_bytes)), strict=True)),
    )(numbers, *arrays)


def _cycles(body: Any, heads_per_program: int, length: int, keys: int) -> int:
    """Return the cycles of a program of the grid that never waits for memory."""
    block_lengths = [stop - start for start, stop in _parts(length, keys)]
    per_block, per_1024_scores = _FORWARD if body is _forward else _BACKWARD
    return (
        per_block * len(block_lengths)
        + per_1024_scores
        * heads_per_program
        * keys
        * sum(map(_round_up_to_lanes, block_lengths))
        // 1024
    )


def _round_up_to_lanes(length: int) -> int:
    """Return a length rounded up to whole lanes."""
    return -(-length // LANES) * LANES


def _bytes(array: Any) -> int:
    *leading, length = array.shape
    return math.prod(leading) * _round_up_to_lanes(length) * array.dtype.itemsize


def _total_length(keys: Sequence[Any]) -> int:
    return sum(array.shape[-1] for array in keys)


def _parts(length: int, keys: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each block of queries."""
    size = length if length * keys <= _SCORES else max(_SCORES // keys // LANES, 1) * LANES
    for start in range(0, length, size):
        yield start, min(start + size, length)


def _forward(
    settings: KernelSettings, roles: int, numbers: Any, queries: Any, query_ids: Any, *refs: Any
) -> None:
    keys, values, key_ids, (outputs,) = (refs[i * roles : i * roles + roles] for i in range(4))
    heads, length = queries.shape[1], queries.shape[3]
    transposed_keys = [[jnp.transpose(array[0, head]) for array in keys] for head in range(heads)]
    for block in _parts(length, _total_length(keys)):
        visible = list(_visible(settings, query_ids, key_ids, block))
        for head in range(heads):
            head_queries = queries[0, head, :, slice(*block)]
            weights, sums = _softmax(transposed_keys[head], head_queries, visible)
            keep = _keep_masks(settings, numbers, head, queries.shape, block, weights)
            output = _sum(
                matmul(
                    head_values[0, head], apply_keep_mask(w, mask).astype(head_values.dtype), (1, 0)
                )
                for head_values, w, mask in zip(values, weights, keep, strict=True)
            )
            outputs[0, head, :, slice(*block)] = (output / (sums * settings.keep_prob)).astype(
                outputs.dtype
            )


def _backward(
    settings: KernelSettings, roles: int, numbers: Any, queries: Any, query_ids: Any, *refs: Any
) -> None:
    keys, values, key_ids = (refs[i * roles : i * roles + roles] for i in range(3))
    output_gradient, query_gradient, *key_value_gradients = refs[3 * roles :]
    for head in range(queries.shape[1]):
        transposed_keys, transposed_values = (
            [jnp.transpose(array[0, head]) for array in arrays] for arrays in (keys, values)
        )
        sums: list[Any] = [None] * (2 * roles)  # gradients of keys, then of values
        for block in _parts(queries.shape[3], _total_length(keys)):
            visible = list(_visible(settings, query_ids, key_ids, block))
            head_queries, head_gradient = (
                array[0, head, :, slice(*block)] for array in (queries, output_gradient)
            )
            weights, total = _softmax(transposed_keys, head_queries, visible)
            keep = list(_keep_masks(settings, numbers, head, queries.shape, block, weights))
            scale = 1 / (total * settings.keep_prob)
            # A padding query has no gradient except for the values that it averages.
            query_scale = jnp.where(query_ids[0, :, slice(*block)] != 0, scale, 0.0)
            weight_gradients = [
                apply_keep_mask(matmul(head_values, head_gradient, (1, 0)) * query_scale, mask)
                for head_values, mask in zip(transposed_values, keep, strict=True)
            ]
            terms = zip(weights, weight_gradients, strict=True)
            mean_gradient = (
                _sum(jnp.sum(w * gradient, 0, keepdims=True) for w, gradient in terms) / total
            )
            queries_sum: Any = None
            for role, role_weights in enumerate(weights):
                logit_gradients = (role_weights * (weight_gradients[role] - mean_gradient)).astype(
                    head_queries.dtype
                )
                kept_weights = (apply_keep_mask(role_weights, keep[role]) * scale).astype(
                    head_queries.dtype
                )
                sums[role] = _add(sums[role], matmul(head_queries, logit_gradients, (1, 1)))
                sums[roles + role] = _add(
                    sums[roles + role], matmul(head_gradient, kept_weights, (1, 1))
                )
                queries_sum = _add(
                    queries_sum, matmul(keys[role][0, head], logit_gradients, (1, 0))
                )
            query_gradient[0, head, :, slice(*block)] = queries_sum.astype(query_gradient.dtype)
        for ref, gradient in zip(key_value_gradients, sums, strict=True):
            ref[0, head] = gradient.astype(ref.dtype)


def _visible(
    settings: KernelSettings, query_ids: Any, key_ids: Sequence[Any], block: tuple[int, int]
) -> Iterator[Array]:
    """Yield the mask of each role's keys as in `core.pair_mask`, [k, q]."""
    block_ids = query_ids[0, :, slice(*block)]
    for letter, ids in zip(settings.sees, key_ids, strict=True):
        mask = (ids[0] == block_ids) & (block_ids != 0)
        if letter == "c":
            query = block[0] + jax.lax.broadcasted_iota(jnp.int32, mask.shape, 1)
            mask &= query >= jax.lax.broadcasted_iota(jnp.int32, mask.shape, 0)
        yield mask


def _softmax(
    keys: Sequence[Float[Array, "_ head_dim"]],
    queries: Float[Array, "head_dim q"],
    visible: Sequence[Array],
) -> tuple[list[Float[Array, "k q"]], Float[Array, "1 q"]]:
    """Return a head's unnormalised weights and their sums."""
    logits = [
        jnp.where(mask, matmul(role_keys, queries, (1, 0)), HIDDEN)
        for role_keys, mask in zip(keys, visible, strict=True)
    ]
    largest = functools.reduce(
        jnp.maximum, [jnp.max(scores, 0, keepdims=True) for scores in logits]
    )
    weights = [jnp.exp(scores - largest) for scores in logits]
    return weights, _sum(jnp.sum(w, 0, keepdims=True) for w in weights)


def _keep_masks(
    settings: KernelSettings,
    numbers: Any,
    head: int,
    shape: tuple[int, ...],
    block: tuple[int, int],
    weights: Sequence[Array],
) -> Iterator[Array | None]:
    """Yield which weights dropout keeps for each role; None keeps all.

    Args:
        settings: static parameters of the call.
        numbers: as `kernel_parts.dropout_keep_mask` takes them.
        head: index among the heads of the program.
        shape: of the queries of the program.
        block: start and end of the block of queries.
        weights: of each visible role, [k, q].
    """
    program = pl.program_id(0), pl.program_id(1) * shape[1] + head, shape[3]
    query = block[0] + jax.lax.broadcasted_iota(jnp.int32, (1, block[1] - block[0]), 1)
    column = 0
    for role_weights in weights:
        key = column + jax.lax.broadcasted_iota(jnp.int32, (role_weights.shape[0], 1), 0)
        yield dropout_keep_mask(settings, numbers, program, query, key)
        column += role_weights.shape[0]


def _add(total: Any, term: Array) -> Array:
    return term if total is None else total + term


def _sum(terms: Iterator[Array]) -> Array:
    return functools.reduce(jnp.add, terms)
