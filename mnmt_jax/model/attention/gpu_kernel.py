"""The Pallas kernels of `mnmt_jax.model.attention.fused` for GPUs, compiled by Triton.

A program of the grid has one row, one head and a block of queries (or, for the gradients of keys
and values, a block of keys), and goes through what it meets block by block, so scores never lie in
the device's memory. The backward kernels compute the weights again, of the logarithm of each
query's sum.

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

from mnmt_jax.model.attention.kernel_parts import HIDDEN, Reading, dropped, kept, product

_BLOCK = 64  # of queries and of keys
_WIDTHS = (16, 32, 64, 128)  # of heads that Triton multiplies
_AMPERE = "8.0"  # the first that multiplies bfloat16
_OUTSIDE = -1  # segment of what lies behind the end of a span


class _Span(NamedTuple):
    """What a program reads of a span.

    Attributes:
        place: of the positions, from the span's start.
        ids: their segments; `_OUTSIDE` behind its end.
        states: queries, or keys and values, 0 there.
    """

    place: Int[Array, " positions"]
    ids: Int[Array, " positions"]
    states: tuple[Float[Array, "positions head_dim"], ...]


def fits(head_dim: int, queries: int, keys: Sequence[int]) -> bool:
    """Returns whether the kernels take such spans.

    Args:
        head_dim: width of a head.
        queries: length of the role.
        keys: lengths of the roles that it reads.
    """
    return head_dim in _WIDTHS and all((queries, *keys)) and _is_recent(jax.devices()[0])


def _is_recent(device: Any) -> bool:
    """Returns whether a GPU is NVIDIA's of Ampere or later; so is what compiles ahead on a CPU."""
    capability = getattr(device, "compute_capability", _AMPERE)
    return capability[:1].isdigit() and float(capability) >= float(_AMPERE)


def attend(
    reading: Reading, numbers: Array, states: tuple[Any, ...], ids: tuple[Any, ...]
) -> Float[Array, "batch q heads head_dim"]:
    """Attends with one softmax over the keys of all roles that are read.

    Args:
        reading: what is visible and dropped.
        numbers: int32 [4], as `kernel_parts.kept` takes them.
        states: queries, scaled, and of each role that is read keys, and values: [batch, length,
            heads, head_dim].
        ids: segments of the queries and of the keys, [batch, length]; 0 is padding. Every query
            that is none sees a key, as each role of a `Layout` sees itself.
    """
    return _attended(reading, numbers, states, ids)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attended(reading: Reading, numbers: Array, states: Any, ids: Any) -> Array:
    return _forward(reading, numbers, states, ids)[0]


def _forward(reading: Reading, numbers: Array, states: Any, ids: Any) -> tuple[Array, Any]:
    queries, *_ = states
    batch, length, heads, _ = queries.shape
    # In float32 for the gradient: where one key has all weight, what is left of it is rounding.
    exact = jax.ShapeDtypeStruct(queries.shape, jnp.float32)
    sums = jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)
    found, logs = _Call("forward", length, _read, (exact, sums))(reading, numbers, (states, ids))
    return found.astype(queries.dtype), (numbers, states, ids, found, logs)


def _backward(reading: Reading, kept_back: Any, outward: Array) -> tuple[Any, ...]:
    numbers, states, ids, found, logs = kept_back
    queries, keys, values = states
    products = jnp.einsum("bqhd,bqhd->bhq", outward, found, preferred_element_type=jnp.float32)
    given = (states, ids, outward, logs, products)
    (to_queries,) = _Call("to_queries", queries.shape[1], _to_queries, (queries,))(
        reading, numbers, given
    )
    into = []
    for role, (own_keys, own_values) in enumerate(zip(keys, values, strict=True)):
        body = functools.partial(_to_keys, role)
        call = _Call("to_keys", own_keys.shape[1], body, (own_keys, own_values))
        into.append(call(reading, numbers, given))
    to_keys, to_values = zip(*into, strict=True)
    return None, (to_queries, to_keys, to_values), (None, tuple(None for _ in keys))


_attended.defvjp(_forward, _backward)


class _Call(NamedTuple):
    """Runs a kernel over rows, heads and the blocks of a span.

    Attributes:
        name: of the kernel.
        length: of the span.
        body: takes a `Reading`, `numbers`, its arguments as references and those of its results.
        results: arrays like them.
    """

    name: str
    length: int
    body: Callable[..., None]
    results: Sequence[Any]

    def __call__(self, reading: Reading, numbers: Array, arguments: Any) -> Sequence[Array]:
        leaves, tree = jax.tree.flatten(arguments)
        batch, _, heads, _ = self.results[0].shape

        def kernel(numbers: Any, *refs: Any) -> None:
            given = jax.tree.unflatten(tree, refs[: len(leaves)])
            self.body(reading, numbers, given, refs[len(leaves) :])

        return pl.pallas_call(
            kernel,
            grid=(-(-self.length // _BLOCK), heads, batch),
            in_specs=[pl.BlockSpec((4,), lambda *_: (0,)), *map(_spec, leaves)],
            out_specs=list(map(_spec, self.results)),
            out_shape=[jax.ShapeDtypeStruct(each.shape, each.dtype) for each in self.results],
            name=f"attention_{self.name}",
            compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        )(numbers, *leaves)


def _spec(array: Any) -> pl.BlockSpec:
    """Returns a program's part of an array: its row's and its head's."""
    kinds = {
        4: ((None, array.shape[1], None, array.shape[-1]), lambda _, head, row: (row, 0, head, 0)),
        3: ((None, None, array.shape[-1]), lambda _, head, row: (row, head, 0)),
        2: ((None, array.shape[-1]), lambda _, head, row: (row, 0)),
    }
    return pl.BlockSpec(*kinds[array.ndim])


def _read(reading: Reading, numbers: Any, given: Any, into: Any) -> None:
    (queries, *_), (query_ids, _) = given
    outputs, logs = into
    asked = _span(pl.program_id(0), query_ids, queries)
    draw, shape = _draws(reading, numbers, queries), (_BLOCK,)
    carry: Any = (
        jnp.full(shape, HIDDEN, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((_BLOCK, outputs.shape[-1]), jnp.float32),
    )
    for role in _roles(reading, given):

        def add(block: Any, carry: Any, role: _Role = role) -> Any:
            top, total, read = carry
            met = role.span(block)
            logits = _logits(role.letter, asked, met)
            higher = jnp.maximum(top, jnp.max(logits, 1))
            weights, change = jnp.exp(logits - higher[:, None]), jnp.exp(top - higher)
            left = dropped(weights, draw(asked, met, role.first))
            read = read * change[:, None] + product(
                left.astype(queries.dtype), met.states[1], (1, 0)
            )
            return higher, total * change + jnp.sum(weights, 1), read

        carry = jax.lax.fori_loop(0, role.blocks, add, carry)
    top, total, read = carry
    _store(outputs, read / (total * reading.share)[:, None])
    _store(logs, top + jnp.log(total))


def _to_queries(reading: Reading, numbers: Any, given: Any, into: Any) -> None:
    (queries, *_), (query_ids, _), *others = given
    asked = _span(pl.program_id(0), query_ids, queries)
    answer = _Answer(*(_load(each, pl.program_id(0)) for each in others))
    draw = _draws(reading, numbers, queries)
    change = jnp.zeros(asked.states[0].shape, jnp.float32)
    for role in _roles(reading, given):

        def add(block: Any, change: Any, role: _Role = role) -> Any:
            met = role.span(block)
            left = draw(asked, met, role.first)
            _, to_logits = _gradients(reading, role.letter, asked, met, answer, left)
            return change + product(to_logits.astype(queries.dtype), met.states[0], (1, 0))

        change = jax.lax.fori_loop(0, role.blocks, add, change)
    _store(into[0], change)


def _to_keys(number: int, reading: Reading, numbers: Any, given: Any, into: Any) -> None:
    (queries, *_), (query_ids, _), *others = given
    role = list(_roles(reading, given))[number]
    met, draw = role.span(pl.program_id(0)), _draws(reading, numbers, queries)

    def add(block: Any, sums: Any) -> Any:
        asked = _span(block, query_ids, queries)
        answer = _Answer(*(_load(each, block) for each in others))
        left = draw(asked, met, role.first)
        weights, to_logits = _gradients(reading, role.letter, asked, met, answer, left)
        read = (dropped(weights, left) / reading.share).astype(queries.dtype)
        to_logits = to_logits.astype(queries.dtype)
        pairs = zip(sums, (to_logits, read), (asked.states[0], answer.outward), strict=True)
        return tuple(own + product(each, states, (0, 0)) for own, each, states in pairs)

    zeros = jnp.zeros(met.states[0].shape, jnp.float32)
    sums = jax.lax.fori_loop(0, -(-queries.shape[0] // _BLOCK), add, (zeros, zeros))
    for ref, each in zip(into, sums, strict=True):
        _store(ref, each)


class _Answer(NamedTuple):
    """Of a block of queries, what the backward kernels know.

    Attributes:
        outward: gradient of what was read.
        logs: of the sums of the weights.
        products: of the gradient with what was read.
    """

    outward: Float[Array, "q head_dim"]
    logs: Float[Array, " q"]
    products: Float[Array, " q"]


class _Role(NamedTuple):
    """One role that is read.

    Attributes:
        letter: of `Sees`.
        first: place of its first key among all that are read.
        ids: reference to its segments.
        states: references to its keys and values.
    """

    letter: str
    first: int
    ids: Any
    states: tuple[Any, Any]

    @property
    def blocks(self) -> int:
        """Blocks of keys."""
        return -(-self.ids.shape[0] // _BLOCK)

    def span(self, block: Any) -> _Span:
        """Reads a block."""
        return _span(block, self.ids, *self.states)


def _roles(reading: Reading, given: Any) -> Iterator[_Role]:
    (_, keys, values), (_, key_ids), *_ = given
    first = 0
    for letter, *refs, ids in zip(reading.sees, keys, values, key_ids, strict=True):
        yield _Role(letter, first, ids, (refs[0], refs[1]))
        first += ids.shape[0]


def _logits(letter: str, asked: _Span, met: _Span) -> Float[Array, "q k"]:
    """Returns logits as `core.masked_softmax` takes them, and -inf behind the end of the keys."""
    own = asked.ids[:, None]
    seen = (own == met.ids[None]) & (own != 0)
    if letter == "c":
        seen &= asked.place[:, None] >= met.place[None]
    logits = product(asked.states[0], met.states[0], (1, 1))
    # Hidden from padding are all alike: so written, the logarithm of their sum is one, too.
    logits = jnp.where(seen, logits, jnp.where(own == 0, 0.0, HIDDEN))
    return jnp.where(met.ids[None] == _OUTSIDE, -jnp.inf, logits)


def _gradients(
    reading: Reading, letter: str, asked: _Span, met: _Span, answer: _Answer, left: Array | None
) -> tuple[Float[Array, "q k"], Float[Array, "q k"]]:
    """Returns the weights and the gradients of the logits."""
    weights = jnp.exp(_logits(letter, asked, met) - answer.logs[:, None])
    inner = dropped(product(answer.outward, met.states[1], (1, 1)), left) / reading.share
    change = weights * (inner - answer.products[:, None])
    # A query of padding changes nothing but the values that it averages.
    return weights, jnp.where(asked.ids[:, None] == 0, 0.0, change)


def _draws(reading: Reading, numbers: Any, queries: Any) -> Callable[..., Array | None]:
    """Returns what says which weights of a block stay; None is all."""
    read = [numbers[number] for number in range(4)]
    place = pl.program_id(2), pl.program_id(1), queries.shape[0]

    def draw(asked: _Span, met: _Span, first: int) -> Array | None:
        return kept(reading, read, place, asked.place[:, None], first + met.place[None])

    return draw


def _span(block: Any, ids: Any, *states: Any) -> _Span:
    places = block * _BLOCK + jax.lax.broadcasted_iota(jnp.int32, (_BLOCK,), 0)
    segments = _load(ids, block, other=_OUTSIDE)
    return _Span(places, segments, tuple(_load(each, block) for each in states))


def _load(ref: Any, block: Any, other: int = 0) -> Array:
    where, inside = _block_of(ref, block)
    return triton.load(where, mask=inside, other=None if inside is None else other)


def _store(ref: Any, states: Array) -> None:
    where, inside = _block_of(ref, pl.program_id(0))
    triton.store(where, states.astype(ref.dtype), mask=inside)


def _block_of(ref: Any, block: Any) -> tuple[Any, Any]:
    """Returns a block of a span's positions, and which of it are there; None if all are."""
    length, *others = ref.shape
    where = ref.at[(pl.ds(block * _BLOCK, _BLOCK), *[slice(None)] * len(others))]
    if length % _BLOCK == 0:
        return where, None
    shape = (_BLOCK, *others)
    return where, block * _BLOCK + jax.lax.broadcasted_iota(jnp.int32, shape, 0) < length
