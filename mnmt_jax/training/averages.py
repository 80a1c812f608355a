"""Averages of the parameters during training: exponential moving, and that of schedule-free."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from mnmt_jax.model.trainable_params import join
from mnmt_jax.training.learner import Learner
from mnmt_jax.training.optimizer import averaged_params
from mnmt_jax.training.state import TrainState

_FIRST_UPDATES = 10.0  # the decay is at most (1 + t) / (10 + t) after t updates


def move_average(decay: float, average: Any, params: Any, step: Int[Array, ""]) -> Any:
    """Return an exponential moving average after one more update.

    a <- a + (1 - d) (p - a), d = min(decay, (1 + t) / (10 + t)): the first parameters, which are
    random, are soon forgotten. A parameter equal to its average stays bit for bit the same, so that
    frozen ones keep their fingerprint; the sum would make a negative zero positive.

    Args:
        decay: largest decay.
        average: float32 tree like `params`.
        params: parameters after the update.
        step: number t of updates done before this one.

    Source of the first decays: TensorFlow's `ExponentialMovingAverage` with `num_updates`.
    """
    done = step.astype(jnp.float32)
    rate = 1.0 - jnp.minimum(decay, (1.0 + done) / (_FIRST_UPDATES + done))
    return jax.tree.map(lambda a, p: jnp.where(a == p, p, a + rate * (p - a)), average, params)


def optimizer_average(learner: Learner, state: TrainState) -> Any:
    """Return the parameters with the averages that schedule-free optimizers have in their states.

    Args:
        learner: constants of the run.
        state: state after any update.
    """
    params, opt_states = state.params, state.opt_state if learner.before else {"": state.opt_state}
    for player in learner.player_updates:
        trained, others = player.trainable.split(params)
        average = averaged_params(opt_states[player.name], trained)
        params = join(player.trainable.restore_frozen_rows(average, trained), others)
    return params
