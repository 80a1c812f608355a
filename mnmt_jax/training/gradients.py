"""The gradient of an update: of its micro-batches, and of the batches that are made of them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from mnmt_jax.design.objective import Batch
from mnmt_jax.distributed.per_device import shares_rows_alone, sum_over_devices
from mnmt_jax.distributed.sharding import device_memory, tree_specs
from mnmt_jax.model.quantized_weights import as_multiplied
from mnmt_jax.model.trainable_params import join
from mnmt_jax.training.generated_batches import generate_batch
from mnmt_jax.training.learner import Learner, PlayerUpdate, batch_loss, player_loss
from mnmt_jax.training.losses import LossSums, Sums, with_derived

Split = tuple[Any, Any]  # parameters that a player moves, and the others
_ROOM = 0.5  # of a device's memory, for parameters and gradients that are whole during an update


def sum_gradients(
    learner: Learner,
    turn: PlayerUpdate,
    split: Split,
    batch: Batch,
    rng: Array,
    step: Array | None = None,
) -> tuple[Any, Sums]:
    """Adds gradients and sums over micro-batches, and over what is made of each.

    Where devices share the batch and nothing else, and the loss is of each row by itself, they
    exchange gradients once an update, not once a micro-batch. So do those that share parameters
    too (`fsdp`), if each has room to collect them once and to hold them, and their gradients in
    float32, whole during the update.

    Args:
        learner: the run's constants.
        turn: the player's.
        split: parameters that it moves, and the others.
        batch: arrays [micro-batches, rows, length].
        rng: of dropout and draws.
        step: number of updates done, for scheduled objectives; None is after their schedules.
    """
    micro_batches, rows = next(iter(batch.values())).shape[:2]
    if micro_batches == 1 or not learner.is_plain:
        return _of_batch(learner, turn, (split, rng), batch, step)
    axes = learner.model.plan.param_axes()
    whole = as_multiplied(split, jnp.dtype(learner.model.config.dtype), axes)
    devices = shares_rows_alone(rows, whole=_have_room(whole))
    if devices == 1:
        return _of_batch(learner, turn, (split, rng), batch, step)
    own = dataclasses.replace(learner, chunk=max(learner.chunk // devices, 1))
    kept = tree_specs(split[0], axes), PartitionSpec()
    return sum_over_devices(functools.partial(_of_batch, own, turn), (whole, rng), batch, kept=kept)


def _have_room(whole: Split) -> bool:
    """Returns whether a device has room for parameters, gradients and their sum, all of them whole.

    What loops copy, a layer's activations and logits have the rest.
    """
    trained, frozen = (jax.tree.leaves(part) for part in whole)
    size = sum(leaf.nbytes for leaf in (*trained, *frozen))
    size += sum(leaf.nbytes + jnp.dtype(jnp.float32).itemsize * leaf.size for leaf in trained)
    return size <= _ROOM * device_memory()


def _of_batch(
    learner: Learner,
    turn: PlayerUpdate,
    whole: tuple[Split, Array],
    batch: Batch,
    step: Array | None = None,
) -> tuple[Any, Sums]:
    split, rng = whole
    trained, frozen = split

    def part(number: Array, micro_batch: Batch) -> tuple[Any, Sums]:
        micro_rng = jax.random.fold_in(rng, number)

        def loss(trained: Any) -> tuple[Array, Sums]:
            whole = join(trained, frozen)
            return player_loss(learner, turn, whole, micro_batch, micro_rng, step)

        gradients, sums = jax.grad(loss, has_aux=True)(trained)
        found = jax.tree.map(lambda array: array.astype(jnp.float32), gradients), sums
        # The cross entropy is the last player's, and so is what is learnt beside it.
        return found if turn.name else _add_derived(learner, split, found, micro_batch, micro_rng)

    return _sum_parts(part, batch)


def _add_derived(
    learner: Learner, split: Split, found: tuple[Any, Sums], micro_batch: Batch, rng: Array
) -> tuple[Any, Sums]:
    """Adds what batches made of a micro-batch give; the activations of one are held at a time."""
    trained, frozen = split
    gradients, sums = found
    for number, derived in enumerate(learner.generated_batches):
        network = learner.model, join(trained, frozen)
        batch, own_rng = generate_batch(derived, number, network, micro_batch, rng)

        def loss(trained: Any, batch: Batch = batch, rng: Array = own_rng) -> tuple[Array, Sums]:
            return batch_loss(learner.plain(), join(trained, frozen), batch, rng)

        more, own = jax.grad(loss, has_aux=True)(trained)
        gradients = jax.tree.map(jnp.add, gradients, more)
        sums = with_derived(sums, derived.name, LossSums(**own))
    return gradients, sums


def _sum_parts(part: Any, batch: Batch) -> Any:
    """Adds `part(number, micro_batch)` over the micro-batches, holding one of them at a time."""
    count = next(iter(batch.values())).shape[0]
    first = jnp.zeros((), jnp.int32)
    if count == 1:
        return part(first, {name: array[0] for name, array in batch.items()})
    shapes = jax.eval_shape(part, first, {name: array[0] for name, array in batch.items()})
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)

    def add(total: Any, one: tuple[Array, Batch]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, part(*one)), None

    return jax.lax.scan(add, zeros, (jnp.arange(count, dtype=jnp.int32), dict(batch)))[0]
