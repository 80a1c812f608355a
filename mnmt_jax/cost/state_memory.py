"""Memory of a training's state: parameters, optimizer and average, counted from their shapes."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from mnmt_jax.config.sections import Config
from mnmt_jax.model.network import build_model
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.model.trainable_params import Trainable
from mnmt_jax.training.learner import PlayerUpdate
from mnmt_jax.training.optimizer import has_average, make_optimizer


def count_state_bytes(config: Config, vocab_size: int) -> dict[str, int]:
    """Count the bytes of a training's state over all devices, without gradients and activations.

    Args:
        config: configuration of the training.
        vocab_size: entries of the vocabulary.

    Returns:
        Bytes of `parameters`, of the `optimizer`, and of the `average` that `Optimizer.ema_decay`
        keeps, or that is computed for each validation and checkpoint with `schedule_free`.
    """
    # The state does not depend on the schedule, which may not fit a length in epochs.
    optimizer = dataclasses.replace(config.optimizer, schedule="constant")
    config = dataclasses.replace(config, optimizer=optimizer)
    axes = build_model(config.model, vocab_size).plan.param_axes()
    shapes = parameter_shapes(config.model, vocab_size)
    players = [player for method in config.methods for player in method.players()]
    updates = [PlayerUpdate.of(player, config, axes) for player in players]
    transformation = make_optimizer(optimizer, config.train.steps, axes)
    trainable = Trainable.from_config(config.model, optimizer)
    states = [(update.trainable, update.optimizer) for update in updates]
    optimizer_states = [
        jax.eval_shape(made.init, selected.split(shapes)[0])
        for selected, made in [*states, (trainable, transformation)]
    ]
    keeps_average = optimizer.ema_decay or has_average(optimizer_states)
    return {
        "parameters": _bytes(shapes),
        "optimizer": _bytes(optimizer_states),
        "average": _bytes(shapes) if keeps_average else 0,
    }


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
