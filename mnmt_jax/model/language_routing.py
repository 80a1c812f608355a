"""Feed-forward branches of which each position takes one: its language's, or none.

Every implementation computes the same, exactly: no position is dropped, whatever the batch. They
differ in work and memory; `choose_routing` takes one by what `benchmarks/language_routing.py`
measured (docs/methods.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mnmt_jax.distributed.per_device import map_rows

Activation = Callable[[Array], Array]
States = Float[Array, "positions embed"]
Slots = Int[Array, " positions"]

_BLOCK = 128  # positions of a block at most: as many as keep a matrix unit busy
_LEAST = 8  # and at least


class Branches(NamedTuple):
    """Parameters of the branches: second(activation(first(x))), one of each per slot.

    Attributes:
        first_kernel: [slots, embed, hidden].
        first_bias: [slots, hidden].
        second_kernel: [slots, hidden, embed].
        second_bias: [slots, embed].
    """

    first_kernel: Array
    first_bias: Array
    second_kernel: Array
    second_bias: Array

    @property
    def slots(self) -> int:
        """Number of branches."""
        return self.first_kernel.shape[0]


Routing = Callable[..., States]  # of states, slots, branches and activation


def one_hot(states: States, slots: Slots, branches: Branches, activation: Activation) -> States:
    """Passes every position through all branches and keeps its own: work grows with the slots."""
    branches = _cast(branches, states)
    own = jax.nn.one_hot(slots, branches.slots, dtype=states.dtype)
    inner = jnp.einsum("ne,seh->nsh", states, branches.first_kernel) + branches.first_bias[None]
    inner = activation(inner) * own[..., None]
    return jnp.einsum("nsh,she->ne", inner, branches.second_kernel) + own @ branches.second_bias


def gather(states: States, slots: Slots, branches: Branches, activation: Activation) -> States:
    """Sorts positions into blocks of one slot and copies that slot's parameters to each block."""
    blocks = _sort(slots, branches.slots)
    own: Branches = jax.tree.map(lambda array: array[blocks.slot], branches)
    out = jax.vmap(functools.partial(_feed_forward, activation))(own, blocks.enter(states))
    return blocks.leave(out)


def loop(states: States, slots: Slots, branches: Branches, activation: Activation) -> States:
    """Sorts positions into blocks as `gather`; goes through those of the slots that occur."""
    blocks = _sort(slots, branches.slots)
    out = _loop(activation, branches, blocks.enter(states), blocks.ends)
    return blocks.leave(out)


def ragged(states: States, slots: Slots, branches: Branches, activation: Activation) -> States:
    """Sorts positions by slot and multiplies groups of any size (`jax.lax.ragged_dot`)."""
    branches, count = _cast(branches, states), branches.slots
    keys = jnp.where(slots < 0, count, slots)
    order = jnp.argsort(keys, stable=True)
    own, sizes = slots[order], jnp.bincount(keys, length=count + 1)[:count]
    taken = (own >= 0)[:, None]
    inner = jax.lax.ragged_dot(states[order], branches.first_kernel, sizes)
    # What lies beyond all groups is not said to be zero.
    inner = jnp.where(taken, activation(inner + branches.first_bias[own]), 0)
    out = jax.lax.ragged_dot(inner, branches.second_kernel, sizes)
    out = jnp.where(taken, out + branches.second_bias[own], 0)
    return out[jnp.argsort(order)]


def one_slot(states: States, slots: Slots, branches: Branches, activation: Activation) -> States:
    """Passes all positions through one branch; right if those that take any take the same."""
    own: Branches = jax.tree.map(lambda array: array[jnp.maximum(slots.max(), 0)], branches)
    return jnp.where((slots >= 0)[:, None], _feed_forward(activation, own, states), 0)


ROUTINGS: Mapping[str, Routing] = {
    "one_hot": one_hot,
    "gather": gather,
    "loop": loop,
    "ragged": ragged,
}


_FEW = 4  # slots, up to which an accelerator is fastest with all of them


def choose_routing(slots: int, platform: str) -> str:
    """Returns the fastest of `ROUTINGS` by what was measured; see docs/methods.md.

    Args:
        slots: number of branches.
        platform: of the devices: `cpu`, `gpu` or `tpu`.
    """
    if platform == "cpu":
        return "loop"
    return "one_hot" if slots <= _FEW else "gather"


def route(
    states: Float[Array, "batch length embed"],
    slots: Int[Array, "#batch #length"],
    branches: Branches,
    activation: Activation,
    *,
    routing: str,
) -> Float[Array, "batch length embed"]:
    """Passes each position through the branch of its slot.

    On a mesh each device sorts its own rows; where the slots are split over devices, positions
    travel to the branches, otherwise parameters are collected like any other's.

    Args:
        states: of any float type, in which is computed and which the result has.
        slots: of each position, below the number of slots; negative is none, which gives 0.
        branches: parameters, float32; so are the sums of their gradients over blocks.
        activation: between the two maps.
        routing: key of `ROUTINGS`.
    """
    chosen = ROUTINGS[routing]

    def compute(branches: Branches, states: Array, slots: Array) -> Array:
        flat, of_flat = states.reshape(-1, states.shape[-1]), slots.reshape(-1)
        found = chosen(flat, of_flat, branches, activation)
        return found.reshape(states.shape)

    return map_rows(compute, branches, (states, jnp.broadcast_to(slots, states.shape[:2])))


class _Blocks(NamedTuple):
    """Positions sorted into blocks of one slot each, the last of a slot filled up with zeros.

    Attributes:
        place: of each position among the rows of all blocks; beyond them if it has no slot.
        ends: block before which those of each slot end.
        size: rows of a block.
        most: blocks that any batch of so many positions may need.
    """

    place: Int[Array, " positions"]
    ends: Int[Array, " slots"]
    size: int
    most: int

    @property
    def slot(self) -> Int[Array, " blocks"]:
        """Slot of each block; of those that this batch does not need, the last."""
        slot = jnp.searchsorted(self.ends, jnp.arange(self.most), side="right")
        return jnp.minimum(slot, len(self.ends) - 1)

    def enter(self, states: States) -> Float[Array, "blocks size embed"]:
        """Returns the rows of all blocks."""
        rows = jnp.zeros((self.most * self.size, states.shape[1]), states.dtype)
        rows = rows.at[self.place].set(states, mode="drop", unique_indices=True)
        return rows.reshape(-1, self.size, states.shape[1])

    def leave(self, blocks: Float[Array, "blocks size embed"]) -> States:
        """Returns the rows of all positions, 0 where there is no slot."""
        rows = blocks.reshape(-1, blocks.shape[-1])
        return rows.at[self.place].get(mode="fill", fill_value=0, unique_indices=True)


def _sort(slots: Slots, count: int) -> _Blocks:
    """Sorts positions into blocks of one of `count` slots each."""
    total = slots.shape[0]
    size = min(max(1 << (total // count).bit_length(), _LEAST), _BLOCK)
    keys = jnp.where(slots < 0, count, slots)
    sizes = jnp.bincount(keys, length=count + 1)
    used = -(-sizes[:count] // size)
    ends = jnp.cumsum(used)
    order = jnp.argsort(keys, stable=True)
    rank = jnp.zeros_like(order).at[order].set(jnp.arange(total, dtype=order.dtype))
    within = rank - (jnp.cumsum(sizes) - sizes)[keys]
    most = total // size + min(count, total)
    beyond = most * size + jnp.arange(total)
    place = jnp.where(slots < 0, beyond, ((ends - used) * size)[slots] + within)
    return _Blocks(place, ends, size, most)


def _cast(branches: Branches, states: Array) -> Branches:
    return Branches(*(array.astype(states.dtype) for array in branches))


def _feed_forward(activation: Activation, own: Branches, states: States) -> States:
    own = _cast(own, states)
    inner = activation(states @ own.first_kernel + own.first_bias[None])
    return inner @ own.second_kernel + own.second_bias[None]


def _occurring(ends: Array) -> tuple[Array, Array, Array]:
    """Returns the slots that have blocks, before the others, their number, and all first blocks."""
    starts = jnp.concatenate([jnp.zeros_like(ends[:1]), ends[:-1]])
    return jnp.argsort(ends == starts, stable=True), (ends > starts).sum(), starts


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loop(activation: Activation, branches: Branches, blocks: Array, ends: Array) -> Array:
    """Passes each block through the branch of its slot."""
    order, occurring, starts = _occurring(ends)

    def one_slot(number: Array, out: Array) -> Array:
        slot = order[number]
        own: Branches = jax.tree.map(lambda array: array[slot], branches)

        def one_block(place: Array, out: Array) -> Array:
            return out.at[place].set(_feed_forward(activation, own, blocks[place]))

        return jax.lax.fori_loop(starts[slot], ends[slot], one_block, out)

    return jax.lax.fori_loop(0, occurring, one_slot, jnp.zeros_like(blocks))


def _loop_forward(activation: Activation, *arguments: Any) -> tuple[Array, Any]:
    return _loop(activation, *arguments), arguments


def _loop_backward(activation: Activation, kept: Any, grad: Array) -> tuple[Any, ...]:
    """Computes each block once more, and adds the gradients of a slot's blocks up."""
    branches, blocks, ends = kept
    order, occurring, starts = _occurring(ends)

    def one_slot(number: Array, found: tuple[Branches, Array]) -> tuple[Branches, Array]:
        by_branches, by_blocks = found
        slot = order[number]
        own: Branches = jax.tree.map(lambda array: array[slot], branches)

        def one_block(place: Array, sums: tuple[Branches, Array]) -> tuple[Branches, Array]:
            _, pull = jax.vjp(functools.partial(_feed_forward, activation), own, blocks[place])
            by_own, by_block = pull(grad[place])
            return jax.tree.map(jnp.add, sums[0], by_own), sums[1].at[place].set(by_block)

        start = jax.tree.map(jnp.zeros_like, own), by_blocks
        sums, by_blocks = jax.lax.fori_loop(starts[slot], ends[slot], one_block, start)
        return jax.tree.map(lambda all, one: all.at[slot].set(one), by_branches, sums), by_blocks

    start = jax.tree.map(jnp.zeros_like, (branches, blocks))
    return *jax.lax.fori_loop(0, occurring, one_slot, start), None


_loop.defvjp(_loop_forward, _loop_backward)
