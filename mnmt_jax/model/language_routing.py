"""Language-specific feed-forward branches: routing of each position to one branch, or none.

All implementations compute exactly the same; no position is dropped in any batch. They differ in
work and memory. `choose_routing` selects one from the measurements of
`benchmarks/language_routing.py` (docs/methods.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mnmt_jax.distributed.per_device import shard_map_slots

Activation = Callable[[Array], Array]
States = Float[Array, "positions embed"]
Slots = Int[Array, " positions"]

_MAX_BLOCK = 128  # largest block, in positions: enough to keep a matrix unit busy
_MIN_BLOCK = 8  # smallest block


class Branches(NamedTuple):
    """Parameters of the branches: second(activation(first(x))), one branch per slot.

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
    """Pass every position through all branches and select its branch: work grows with the slots."""
    branches = _cast(branches, states)
    weights = jax.nn.one_hot(slots, branches.slots, dtype=states.dtype)
    inner = jnp.einsum("ne,seh->nsh", states, branches.first_kernel) + branches.first_bias[None]
    inner = activation(inner) * weights[..., None]
    return jnp.einsum("nsh,she->ne", inner, branches.second_kernel) + weights @ branches.second_bias


def gather(states: States, slots: Slots, branches: Branches, activation: Activation) -> States:
    """Sort positions into blocks of one slot and copy the slot's parameters to each block."""
    blocks = _sort_into_blocks(slots, branches.slots)
    block_branches: Branches = jax.tree.map(lambda array: array[blocks.slot], branches)
    out = jax.vmap(functools.partial(_feed_forward, activation))(
        block_branches, blocks.to_blocks(states)
    )
    return blocks.from_blocks(out)


def loop(states: States, slots: Slots, branches: Branches, activation: Activation) -> States:
    """Sort positions into blocks as `gather` and loop over the occurring slots' blocks."""
    blocks = _sort_into_blocks(slots, branches.slots)
    out = _loop(activation, branches, blocks.to_blocks(states), blocks.ends)
    return blocks.from_blocks(out)


def ragged(states: States, slots: Slots, branches: Branches, activation: Activation) -> States:
    """Sort positions by slot and multiply groups of any size (`jax.lax.ragged_dot`)."""
    branches, count = _cast(branches, states), branches.slots
    keys = jnp.where(slots < 0, count, slots)
    order = jnp.argsort(keys, stable=True)
    sorted_slots, sizes = slots[order], jnp.bincount(keys, length=count + 1)[:count]
    routed = (sorted_slots >= 0)[:, None]
    inner = jax.lax.ragged_dot(states[order], branches.first_kernel, sizes)
    # `ragged_dot` leaves the rows beyond all groups undefined.
    inner = jnp.where(routed, activation(inner + branches.first_bias[sorted_slots]), 0)
    out = jax.lax.ragged_dot(inner, branches.second_kernel, sizes)
    out = jnp.where(routed, out + branches.second_bias[sorted_slots], 0)
    return out[jnp.argsort(order)]


ROUTINGS: Mapping[str, Routing] = {
    "one_hot": one_hot,
    "gather": gather,
    "loop": loop,
    "ragged": ragged,
}


_MAX_ONE_HOT_SLOTS = 4  # slots, up to which computing all branches is fastest on an accelerator


def choose_routing(slots: int, platform: str) -> str:
    """Return the fastest of `ROUTINGS` by measurement; see docs/methods.md.

    Args:
        slots: number of branches.
        platform: of the devices: `cpu`, `gpu` or `tpu`.
    """
    if platform == "cpu":
        return "loop"
    return "one_hot" if slots <= _MAX_ONE_HOT_SLOTS else "gather"


def route(
    states: Float[Array, "batch length embed"],
    slots: Int[Array, "#batch #length"],
    branches: Branches,
    activation: Activation,
    *,
    routing: str,
) -> Float[Array, "batch length embed"]:
    """Pass each position through the branch of its slot.

    On a mesh each device sorts its own rows. If the slots are split over devices, positions are
    sent to the branches; otherwise the parameters are gathered like any others.

    Args:
        states: of any float type, which is also the type of the computation and the result.
        slots: of each position, below the number of slots; negative for none, which gives 0.
        branches: parameters, float32; so are the sums of their gradients over blocks.
        activation: between the two maps.
        routing: key of `ROUTINGS`.
    """
    implementation = ROUTINGS[routing]

    def compute(branches: Branches, states: Array, slots: Array) -> Array:
        flat, flat_slots = states.reshape(-1, states.shape[-1]), slots.reshape(-1)
        outputs = implementation(flat, flat_slots, branches, activation)
        return outputs.reshape(states.shape)

    return shard_map_slots(compute, branches, (states, jnp.broadcast_to(slots, states.shape[:2])))


class _Blocks(NamedTuple):
    """Positions sorted into blocks of one slot each; a slot's last block is padded with zeros.

    Attributes:
        row: of each position among the rows of all blocks; out of range if it has no slot.
        ends: for each slot, the index after its last block.
        size: rows of a block.
        max_blocks: maximum number of blocks for this number of positions.
    """

    row: Int[Array, " positions"]
    ends: Int[Array, " slots"]
    size: int
    max_blocks: int

    @property
    def slot(self) -> Int[Array, " blocks"]:
        """Slot of each block; the last slot for unused blocks."""
        slot = jnp.searchsorted(self.ends, jnp.arange(self.max_blocks), side="right")
        return jnp.minimum(slot, len(self.ends) - 1)

    def to_blocks(self, states: States) -> Float[Array, "blocks size embed"]:
        """Return the rows of all blocks."""
        rows = jnp.zeros((self.max_blocks * self.size, states.shape[1]), states.dtype)
        rows = rows.at[self.row].set(states, mode="drop", unique_indices=True)
        return rows.reshape(-1, self.size, states.shape[1])

    def from_blocks(self, blocks: Float[Array, "blocks size embed"]) -> States:
        """Return the rows of all positions, 0 where there is no slot."""
        rows = blocks.reshape(-1, blocks.shape[-1])
        return rows.at[self.row].get(mode="fill", fill_value=0, unique_indices=True)


def _sort_into_blocks(slots: Slots, count: int) -> _Blocks:
    """Sort positions into blocks of one slot each, for `count` slots."""
    total = slots.shape[0]
    size = min(max(1 << (total // count).bit_length(), _MIN_BLOCK), _MAX_BLOCK)
    keys = jnp.where(slots < 0, count, slots)
    sizes = jnp.bincount(keys, length=count + 1)
    block_counts = -(-sizes[:count] // size)
    ends = jnp.cumsum(block_counts)
    order = jnp.argsort(keys, stable=True)
    rank = jnp.zeros_like(order).at[order].set(jnp.arange(total, dtype=order.dtype))
    rank_in_slot = rank - (jnp.cumsum(sizes) - sizes)[keys]
    max_blocks = total // size + min(count, total)
    out_of_range = max_blocks * size + jnp.arange(total)
    row = jnp.where(slots < 0, out_of_range, ((ends - block_counts) * size)[slots] + rank_in_slot)
    return _Blocks(row, ends, size, max_blocks)


def _cast(branches: Branches, states: Array) -> Branches:
    return Branches(*(array.astype(states.dtype) for array in branches))


def _feed_forward(activation: Activation, branch: Branches, states: States) -> States:
    branch = _cast(branch, states)
    inner = activation(states @ branch.first_kernel + branch.first_bias[None])
    return inner @ branch.second_kernel + branch.second_bias[None]


def _occurring_slots(ends: Array) -> tuple[Array, Array, Array]:
    """Return the slots with the occurring ones first, their number, and all first blocks."""
    starts = jnp.concatenate([jnp.zeros_like(ends[:1]), ends[:-1]])
    return jnp.argsort(ends == starts, stable=True), (ends > starts).sum(), starts


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loop(activation: Activation, branches: Branches, blocks: Array, ends: Array) -> Array:
    """Pass each block through the branch of its slot."""
    order, occurring, starts = _occurring_slots(ends)

    def run_slot(number: Array, out: Array) -> Array:
        slot = order[number]
        branch: Branches = jax.tree.map(lambda array: array[slot], branches)

        def run_block(i: Array, out: Array) -> Array:
            return out.at[i].set(_feed_forward(activation, branch, blocks[i]))

        return jax.lax.fori_loop(starts[slot], ends[slot], run_block, out)

    return jax.lax.fori_loop(0, occurring, run_slot, jnp.zeros_like(blocks))


def _loop_forward(activation: Activation, *arguments: Any) -> tuple[Array, Any]:
    return _loop(activation, *arguments), arguments


def _loop_backward(activation: Activation, residuals: Any, grad: Array) -> tuple[Any, ...]:
    """Recompute each block, and sum the gradients over the blocks of a slot."""
    branches, blocks, ends = residuals
    order, occurring, starts = _occurring_slots(ends)

    def add_slot(number: Array, gradients: tuple[Branches, Array]) -> tuple[Branches, Array]:
        branch_gradients, block_gradients = gradients
        slot = order[number]
        branch: Branches = jax.tree.map(lambda array: array[slot], branches)

        def add_block(i: Array, sums: tuple[Branches, Array]) -> tuple[Branches, Array]:
            _, vjp = jax.vjp(functools.partial(_feed_forward, activation), branch, blocks[i])
            branch_gradient, block_gradient = vjp(grad[i])
            return jax.tree.map(jnp.add, sums[0], branch_gradient), sums[1].at[i].set(
                block_gradient
            )

        start = jax.tree.map(jnp.zeros_like, branch), block_gradients
        sums, block_gradients = jax.lax.fori_loop(starts[slot], ends[slot], add_block, start)
        return jax.tree.map(
            lambda total, gradient: total.at[slot].set(gradient), branch_gradients, sums
        ), block_gradients

    start = jax.tree.map(jnp.zeros_like, (branches, blocks))
    return *jax.lax.fori_loop(0, occurring, add_slot, start), None


_loop.defvjp(_loop_forward, _loop_backward)
