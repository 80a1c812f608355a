"""Gradients of an update: over its micro-batches and the batches generated from them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from mnmt_jax.design.generated_batch import Batch
from mnmt_jax.distributed.per_device import batch_split_devices, sum_over_devices
from mnmt_jax.distributed.sharding import device_memory, tree_specs
from mnmt_jax.model.quantized_weights import cast_kernels
from mnmt_jax.model.trainable_params import join
from mnmt_jax.training.generated_batches import generate_batch
from mnmt_jax.training.learner import Learner, PlayerUpdate, batch_loss, player_loss
from mnmt_jax.training.losses import LossSums, Sums, add_generated_sums

Split = tuple[Any, Any]  # parameters that a player updates, and the others
# Share of a device's memory for parameters and gradients that are unsharded during an update.
_MEMORY_FRACTION = 0.5


def sum_gradients(
    learner: Learner,
    update: PlayerUpdate,
    split: Split,
    batch: Batch,
    rng: Array,
    step: Array | None = None,
) -> tuple[Any, Sums]:
    """Sum gradients and loss sums over micro-batches and the batches generated from them.

    If devices share only the batch, and the loss of a row does not depend on other rows, devices
    exchange gradients once per update instead of once per micro-batch. With sharded parameters
    (`fsdp`) this also holds if each device has memory to gather the parameters once and to keep
    them, and their float32 gradients, unsharded during the update.

    Args:
        learner: constants of the run.
        update: update of the player.
        split: parameters that the player updates, and the others.
        batch: arrays [micro-batches, rows, length].
        rng: key of dropout and sampling.
        step: number of updates done, for scheduled objectives; None means after their schedules.

    Returns:
        The gradients in float32, and the sums.
    """
    micro_batches, rows = next(iter(batch.values())).shape[:2]
    if micro_batches == 1 or not learner.is_plain:
        return _batch_gradients(learner, update, (split, rng), batch, step)
    axes = learner.model.plan.param_axes()
    unsharded = cast_kernels(split, jnp.dtype(learner.model.config.dtype), axes)
    devices = batch_split_devices(rows, include_fsdp=_fits_in_memory(unsharded))
    if devices == 1:
        return _batch_gradients(learner, update, (split, rng), batch, step)
    device_learner = dataclasses.replace(learner, chunk=max(learner.chunk // devices, 1))
    out_specs = tree_specs(split[0], axes), PartitionSpec()
    return sum_over_devices(
        functools.partial(_batch_gradients, device_learner, update),
        (unsharded, rng),
        batch,
        out_specs=out_specs,
    )


def _fits_in_memory(unsharded: Split) -> bool:
    """Return whether a device can hold parameters, gradients and their sum, all unsharded.

    The remaining memory is for copies made by loops, the activations of a layer, and logits.
    """
    trained, frozen = (jax.tree.leaves(tree) for tree in unsharded)
    size = sum(leaf.nbytes for leaf in (*trained, *frozen))
    size += sum(leaf.nbytes + jnp.dtype(jnp.float32).itemsize * leaf.size for leaf in trained)
    return size <= _MEMORY_FRACTION * device_memory()


def _batch_gradients(
    learner: Learner,
    update: PlayerUpdate,
    split_and_rng: tuple[Split, Array],
    batch: Batch,
    step: Array | None = None,
) -> tuple[Any, Sums]:
    split, rng = split_and_rng
    trained, frozen = split

    def micro_batch_gradients(number: Array, micro_batch: Batch) -> tuple[Any, Sums]:
        micro_rng = jax.random.fold_in(rng, number)

        def loss(trained: Any) -> tuple[Array, Sums]:
            params = join(trained, frozen)
            return player_loss(learner, update, params, micro_batch, micro_rng, step)

        gradients, sums = jax.grad(loss, has_aux=True)(trained)
        result = jax.tree.map(lambda array: array.astype(jnp.float32), gradients), sums
        # Generated batches belong to the cross entropy, hence to the unnamed player.
        return (
            result
            if update.name
            else _add_generated(learner, split, result, micro_batch, micro_rng)
        )

    return _sum_micro_batches(micro_batch_gradients, batch)


def _add_generated(
    learner: Learner,
    split: Split,
    gradients_and_sums: tuple[Any, Sums],
    micro_batch: Batch,
    rng: Array,
) -> tuple[Any, Sums]:
    """Add gradients and sums of generated batches, with activations of one at a time in memory."""
    trained, frozen = split
    gradients, sums = gradients_and_sums
    generated = dataclasses.replace(learner.plain(), batch_changes=learner.batch_changes)
    for number, spec in enumerate(learner.generated_batches):
        model = learner.step_model(join(trained, frozen), micro_batch, rng)
        batch, batch_rng = generate_batch(spec, number, model)

        def loss(trained: Any, batch: Batch = batch, rng: Array = batch_rng) -> tuple[Array, Sums]:
            return batch_loss(generated, join(trained, frozen), batch, rng)

        batch_gradients, batch_sums = jax.grad(loss, has_aux=True)(trained)
        gradients = jax.tree.map(jnp.add, gradients, batch_gradients)
        sums = add_generated_sums(sums, spec.name, LossSums(**batch_sums))
    return gradients, sums


def _sum_micro_batches(function: Any, batch: Batch) -> Any:
    """Sum `function(number, micro_batch)` over micro-batches, one of them in memory at a time."""
    count = next(iter(batch.values())).shape[0]
    zero = jnp.zeros((), jnp.int32)
    if count == 1:
        return function(zero, {name: array[0] for name, array in batch.items()})
    shapes = jax.eval_shape(function, zero, {name: array[0] for name, array in batch.items()})
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)

    def add(total: Any, micro_batch: tuple[Array, Batch]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, function(*micro_batch)), None

    return jax.lax.scan(add, zeros, (jnp.arange(count, dtype=jnp.int32), dict(batch)))[0]
