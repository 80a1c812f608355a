"""Pallas GPU kernels of `mnmt_jax.model.attention.fused`, compiled by Triton.

A program of the grid has one row, one head and a block of queries (or, for the gradients of keys
and values, a block of keys), and loops over the blocks of the other side, so scores never enter
device memory. The backward kernels recompute the weights from the logarithm of each query's sum.

Source: Dao 2024, "FlashAttention-2", sections 3.1 and 3.2, with dropout of `mnmt_jax.distributed`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Int

from mnmt_jax.model.attention.kernel_parts import (
    HIDDEN,
    KernelSettings,
    apply_keep_mask,
    dropout_keep_mask,
    matmul,
)

_WIDTHS = (16, 32, 64, 128)  # head widths that Triton can multiply
_AMPERE = "8.0"  # first compute capability with bfloat16 products
_OUTSIDE = -1  # segment beyond the end of a span


class Tiles(NamedTuple):
    """Block sizes and launch parameters of a kernel.

    Attributes:
        queries: queries in a block, a power of 2.
        keys: keys in a block, a power of 2.
        warps: of a program.
        stages: of Triton's software pipeline.
    """

    queries: int
    keys: int
    warps: int
    stages: int


# By kernel; the fastest of those measured on an H100 (docs/gpu.md).
TILES = {
    "forward": Tiles(64, 32, 4, 2),
    "to_queries": Tiles(64, 32, 4, 2),
    "to_keys": Tiles(64, 64, 4, 2),
}


class _SpanBlock(NamedTuple):
    """One block of a span.

    Attributes:
        position: positions in the span, from 0.
        ids: their segments; `_OUTSIDE` beyond the end of the span.
        states: queries, or keys and values; 0 beyond the end.
    """

    position: Int[Array, " positions"]
    ids: Int[Array, " positions"]
    states: tuple[Float[Array, "positions head_dim"], ...]


def fits(head_dim: int, queries: int, keys: Sequence[int]) -> bool:
    """Return whether the kernels support these span lengths.

    Args:
        head_dim: width of a head.
        queries: length of the role.
        keys: lengths of the roles that it attends to.
    """
    return head_dim in _WIDTHS and all((queries, *keys)) and _is_recent(jax.devices()[0])


def _is_recent(device: Any) -> bool:
    """Return whether a device is an NVIDIA GPU from Ampere on; True if compiling ahead on a CPU."""
    capability = getattr(device, "compute_capability", _AMPERE)
    return capability[:1].isdigit() and float(capability) >= float(_AMPERE)


def attend(
    settings: KernelSettings, numbers: Array, states: tuple[Any, ...], ids: tuple[Any, ...]
) -> Float[Array, "batch q heads head_dim"]:
    """Attend with one softmax over the keys of all visible roles.

    Args:
        settings: visibility and dropout.
        numbers: int32 [4], as `kernel_parts.dropout_keep_mask` takes them.
        states: queries, scaled, then the keys and the values of each visible role: [batch, length,
            heads, head_dim].
        ids: segments of the queries and of the keys, [batch, length]; 0 is padding. Every query
            that is not padding sees a key, since each role of a `Layout` sees itself.
    """
    return _attended(settings, numbers, states, ids)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attended(settings: KernelSettings, numbers: Array, states: Any, ids: Any) -> Array:
    return _forward(settings, numbers, states, ids)[0]


def _forward(settings: KernelSettings, numbers: Array, states: Any, ids: Any) -> tuple[Array, Any]:
    queries, *_ = states
    batch, length, heads, _ = queries.shape
    # float32 for the gradient, which is only rounding error where one key has all the weight.
    output_shape = jax.ShapeDtypeStruct(queries.shape, jnp.float32)
    log_shape = jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)
    outputs, logs = _Call("forward", length, _attention, (output_shape, log_shape))(
        settings, numbers, (states, ids)
    )
    return outputs.astype(queries.dtype), (numbers, states, ids, outputs, logs)


def _backward(settings: KernelSettings, residuals: Any, output_gradient: Array) -> tuple[Any, ...]:
    numbers, states, ids, outputs, logs = residuals
    queries, keys, values = states
    products = jnp.einsum(
        "bqhd,bqhd->bhq", output_gradient, outputs, preferred_element_type=jnp.float32
    )
    inputs = (states, ids, output_gradient, logs, products)
    (query_gradient,) = _Call("to_queries", queries.shape[1], _query_gradients, (queries,))(
        settings, numbers, inputs
    )
    gradients = []
    for role, (role_keys, role_values) in enumerate(zip(keys, values, strict=True)):
        body = functools.partial(_key_gradients, role)
        call = _Call("to_keys", role_keys.shape[1], body, (role_keys, role_values))
        gradients.append(call(settings, numbers, inputs))
    key_gradients, value_gradients = zip(*gradients, strict=True)
    return None, (query_gradient, key_gradients, value_gradients), (None, tuple(None for _ in keys))


_attended.defvjp(_forward, _backward)


class _Call(NamedTuple):
    """A kernel call over rows, heads and the blocks of a span.

    Attributes:
        name: of the kernel.
        length: of the span.
        body: takes `Tiles`, `KernelSettings`, `numbers`, and references to arguments and results.
        results: arrays of the shapes and dtypes of the results.
    """

    name: str
    length: int
    body: Callable[..., None]
    results: Sequence[Any]

    def __call__(self, settings: KernelSettings, numbers: Array, arguments: Any) -> Sequence[Array]:
        leaves, tree = jax.tree.flatten(arguments)
        batch, _, heads, _ = self.results[0].shape
        tiles = TILES[self.name]
        block = tiles.keys if self.name == "to_keys" else tiles.queries

        def kernel(numbers: Any, *refs: Any) -> None:
            inputs = jax.tree.unflatten(tree, refs[: len(leaves)])
            self.body(tiles, settings, numbers, inputs, refs[len(leaves) :])

        return pl.pallas_call(
            kernel,
            grid=(-(-self.length // block), heads, batch),
            in_specs=[pl.BlockSpec((4,), lambda *_: (0,)), *map(_spec, leaves)],
            out_specs=list(map(_spec, self.results)),
            out_shape=[jax.ShapeDtypeStruct(result.shape, result.dtype) for result in self.results],
            name=f"attention_{self.name}",
            compiler_params=triton.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        )(numbers, *leaves)


def _spec(array: Any) -> pl.BlockSpec:
    """Return the block of an array for one program: its row and its head."""
    kinds = {
        4: ((None, array.shape[1], None, array.shape[-1]), lambda _, head, row: (row, 0, head, 0)),
        3: ((None, None, array.shape[-1]), lambda _, head, row: (row, head, 0)),
        2: ((None, array.shape[-1]), lambda _, head, row: (row, 0)),
    }
    return pl.BlockSpec(*kinds[array.ndim])


def _attention(
    tiles: Tiles, settings: KernelSettings, numbers: Any, inputs: Any, outputs_and_logs: Any
) -> None:
    (queries, *_), (query_ids, _) = inputs
    outputs, logs = outputs_and_logs
    query_block = _span(pl.program_id(0), tiles.queries, query_ids, queries)
    draw_mask, shape = _mask_drawer(settings, numbers, queries), (tiles.queries,)
    carry: Any = (
        jnp.full(shape, HIDDEN, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, outputs.shape[-1]), jnp.float32),
    )
    for role in _roles(settings, inputs, tiles.keys):

        def add(block: Any, carry: Any, role: _Role = role) -> Any:
            largest, weight_sum, output = carry
            key_block = role.span(block)
            logits = _logits(role.letter, query_block, key_block)
            new_largest = jnp.maximum(largest, jnp.max(logits, 1))
            weights = jnp.exp(logits - new_largest[:, None])
            rescale = jnp.exp(largest - new_largest)
            kept_weights = apply_keep_mask(weights, draw_mask(query_block, key_block, role.first))
            output = output * rescale[:, None] + matmul(
                kept_weights.astype(queries.dtype), key_block.states[1], (1, 0)
            )
            return new_largest, weight_sum * rescale + jnp.sum(weights, 1), output

        carry = jax.lax.fori_loop(*role.blocks_of(query_block), add, carry)
    largest, weight_sum, output = carry
    _store(outputs, output / (weight_sum * settings.keep_prob)[:, None])
    _store(logs, largest + jnp.log(weight_sum))


def _query_gradients(
    tiles: Tiles, settings: KernelSettings, numbers: Any, inputs: Any, gradients: Any
) -> None:
    (queries, *_), (query_ids, _), *residual_refs = inputs
    query_block = _span(pl.program_id(0), tiles.queries, query_ids, queries)
    residuals = _Residuals(*(_load(ref, pl.program_id(0), tiles.queries) for ref in residual_refs))
    draw_mask = _mask_drawer(settings, numbers, queries)
    query_gradient = jnp.zeros(query_block.states[0].shape, jnp.float32)
    for role in _roles(settings, inputs, tiles.keys):

        def add(block: Any, query_gradient: Any, role: _Role = role) -> Any:
            key_block = role.span(block)
            keep = draw_mask(query_block, key_block, role.first)
            _, logit_gradients = _gradients(
                settings, role.letter, query_block, key_block, residuals, keep
            )
            return query_gradient + matmul(
                logit_gradients.astype(queries.dtype), key_block.states[0], (1, 0)
            )

        query_gradient = jax.lax.fori_loop(*role.blocks_of(query_block), add, query_gradient)
    _store(gradients[0], query_gradient)


def _key_gradients(
    number: int,
    tiles: Tiles,
    settings: KernelSettings,
    numbers: Any,
    inputs: Any,
    gradients: Any,
) -> None:
    (queries, *_), (query_ids, _), *residual_refs = inputs
    role = list(_roles(settings, inputs, tiles.keys))[number]
    key_block, draw_mask = role.span(pl.program_id(0)), _mask_drawer(settings, numbers, queries)

    def add(block: Any, sums: Any) -> Any:
        query_block = _span(block, tiles.queries, query_ids, queries)
        residuals = _Residuals(*(_load(ref, block, tiles.queries) for ref in residual_refs))
        keep = draw_mask(query_block, key_block, role.first)
        weights, logit_gradients = _gradients(
            settings, role.letter, query_block, key_block, residuals, keep
        )
        dropped_weights = (apply_keep_mask(weights, keep) / settings.keep_prob).astype(
            queries.dtype
        )
        logit_gradients = logit_gradients.astype(queries.dtype)
        terms = zip(
            sums,
            (logit_gradients, dropped_weights),
            (query_block.states[0], residuals.output_gradient),
            strict=True,
        )
        return tuple(total + matmul(scores, states, (0, 0)) for total, scores, states in terms)

    zeros = jnp.zeros(key_block.states[0].shape, jnp.float32)
    bounds = _blocks_that_see(key_block, role.letter, query_ids, tiles.queries)
    sums = jax.lax.fori_loop(*bounds, add, (zeros, zeros))
    for ref, gradient in zip(gradients, sums, strict=True):
        _store(ref, gradient)


class _Residuals(NamedTuple):
    """Inputs of the backward kernels for a block of queries.

    Attributes:
        output_gradient: gradient of the attention output.
        logs: logarithms of the sums of the weights.
        products: inner products of the gradient with the attention output.
    """

    output_gradient: Float[Array, "q head_dim"]
    logs: Float[Array, " q"]
    products: Float[Array, " q"]


class _Role(NamedTuple):
    """One visible role.

    Attributes:
        letter: of `Sees`.
        first: index of its first key among all visible keys.
        ids: reference to its segments.
        states: references to its keys and values.
        size: keys in a block.
    """

    letter: str
    first: int
    ids: Any
    states: tuple[Any, Any]
    size: int

    def blocks_of(self, query_block: _SpanBlock) -> tuple[Any, Any]:
        """Return the range of blocks outside which no query of a block attends to a key."""
        # A padding query averages all keys.
        all_keys = jnp.min(jnp.where(query_block.ids == _OUTSIDE, 1, query_block.ids)) == 0

        def counts(positions: Array, ids: Array) -> Array:
            near = _among(ids, query_block.ids)
            if self.letter == "c":
                near &= positions <= jnp.max(query_block.position)
            return near | all_keys

        return _range_of_blocks(self.ids, self.size, counts)

    def span(self, block: Any) -> _SpanBlock:
        """Load a block."""
        return _span(block, self.size, self.ids, *self.states)


def _blocks_that_see(
    key_block: _SpanBlock, letter: str, query_ids: Any, size: int
) -> tuple[Any, Any]:
    """Return the range of blocks of queries outside which none attends to a key of a block."""

    def counts(positions: Array, ids: Array) -> Array:
        near = _among(ids, key_block.ids)
        if letter == "c":
            near &= positions >= jnp.min(key_block.position)
        return near | (ids == 0)

    return _range_of_blocks(query_ids, size, counts)


def _among(ids: Array, others: Array) -> Array:
    """Return which segments are between the smallest and the largest of others, without padding."""
    smallest = jnp.min(jnp.where(others > 0, others, jnp.iinfo(jnp.int32).max))
    return (ids >= smallest) & (ids <= jnp.max(others)) & (ids > 0)


def _range_of_blocks(ids: Any, size: int, counts: Callable[..., Array]) -> tuple[Any, Any]:
    """Return the first block of a span with a position that counts, and the one after the last."""

    def widen(block: Any, bounds: Any) -> Any:
        positions = block * size + jax.lax.broadcasted_iota(jnp.int32, (size,), 0)
        segments = _load(ids, block, size, other=_OUTSIDE)
        counted = jnp.max(counts(positions, segments).astype(jnp.int32)) > 0
        first, end = bounds
        return (
            jnp.where(counted, jnp.minimum(first, block), first),
            jnp.where(counted, block + 1, end),
        )

    blocks = -(-ids.shape[0] // size)
    return jax.lax.fori_loop(0, blocks, widen, (jnp.int32(blocks), jnp.int32(0)))


def _roles(settings: KernelSettings, inputs: Any, size: int) -> Iterator[_Role]:
    (_, keys, values), (_, key_ids), *_ = inputs
    first = 0
    for letter, *refs, ids in zip(settings.sees, keys, values, key_ids, strict=True):
        yield _Role(letter, first, ids, (refs[0], refs[1]), size)
        first += ids.shape[0]


def _logits(letter: str, query_block: _SpanBlock, key_block: _SpanBlock) -> Float[Array, "q k"]:
    """Return logits as `core.masked_softmax` takes them, and -inf beyond the end of the keys."""
    query_ids = query_block.ids[:, None]
    visible = (query_ids == key_block.ids[None]) & (query_ids != 0)
    if letter == "c":
        visible &= query_block.position[:, None] >= key_block.position[None]
    logits = matmul(query_block.states[0], key_block.states[0], (1, 1))
    # Hidden keys are alike for a padding query. With logit 0 the log of their sum is not rounded.
    logits = jnp.where(visible, logits, jnp.where(query_ids == 0, 0.0, HIDDEN))
    return jnp.where(key_block.ids[None] == _OUTSIDE, -jnp.inf, logits)


def _gradients(
    settings: KernelSettings,
    letter: str,
    query_block: _SpanBlock,
    key_block: _SpanBlock,
    residuals: _Residuals,
    keep: Array | None,
) -> tuple[Float[Array, "q k"], Float[Array, "q k"]]:
    """Return the weights and the gradients of the logits."""
    weights = jnp.exp(_logits(letter, query_block, key_block) - residuals.logs[:, None])
    weight_gradients = (
        apply_keep_mask(matmul(residuals.output_gradient, key_block.states[1], (1, 1)), keep)
        / settings.keep_prob
    )
    logit_gradients = weights * (weight_gradients - residuals.products[:, None])
    # A padding query has no gradient except for the values that it averages.
    return weights, jnp.where(query_block.ids[:, None] == 0, 0.0, logit_gradients)


def _mask_drawer(
    settings: KernelSettings, numbers: Any, queries: Any
) -> Callable[..., Array | None]:
    """Return a function from a block to the weights that dropout keeps; it returns None for all."""
    words_and_offsets = [numbers[i] for i in range(4)]
    program = pl.program_id(2), pl.program_id(1), queries.shape[0]

    def draw_mask(query_block: _SpanBlock, key_block: _SpanBlock, first: int) -> Array | None:
        return dropout_keep_mask(
            settings,
            words_and_offsets,
            program,
            query_block.position[:, None],
            first + key_block.position[None],
        )

    return draw_mask


def _span(block: Any, size: int, ids: Any, *states: Any) -> _SpanBlock:
    positions = block * size + jax.lax.broadcasted_iota(jnp.int32, (size,), 0)
    segments = _load(ids, block, size, other=_OUTSIDE)
    return _SpanBlock(positions, segments, tuple(_load(ref, block, size) for ref in states))


def _load(ref: Any, block: Any, size: int, other: int = 0) -> Array:
    pointers, inside = _block_of(ref, block, size)
    return triton.load(pointers, mask=inside, other=None if inside is None else other)


def _store(ref: Any, states: Array) -> None:
    pointers, inside = _block_of(ref, pl.program_id(0), states.shape[0])
    triton.store(pointers, states.astype(ref.dtype), mask=inside)


def _block_of(ref: Any, block: Any, size: int) -> tuple[Any, Any]:
    """Return a block of a span's positions and the mask of those inside it; None if all are."""
    length, *trailing = ref.shape
    pointers = ref.at[(pl.ds(block * size, size), *[slice(None)] * len(trailing))]
    if length % size == 0:
        return pointers, None
    shape = (size, *trailing)
    return pointers, block * size + jax.lax.broadcasted_iota(jnp.int32, shape, 0) < length
