"""The pure training step: gradients, optimizer updates and metric sums of one update."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from mnmt_jax.design.generated_batch import Batch
from mnmt_jax.model.trainable_params import join
from mnmt_jax.training.averages import move_average
from mnmt_jax.training.gradients import sum_gradients
from mnmt_jax.training.learner import Learner, PlayerUpdate
from mnmt_jax.training.losses import Sums, merge_player_sums, per_token
from mnmt_jax.training.state import TrainState


def train_step(
    learner: Learner, state: TrainState, batch: Batch
) -> tuple[TrainState, dict[str, Array]]:
    """Return the state after one update. Pure; all processes and devices compute the same sums.

    Args:
        learner: constants of the run.
        state: state before the update.
        batch: arrays [micro-batches, rows, length].

    Returns:
        The state after the update and, in float32, `loss` (the cross entropy), `nll` and the term
        of each objective in nats per target token, `learning_rate` and `gradient_norm`.
    """
    rng = jax.random.fold_in(jax.random.key(learner.seed), state.step)
    params = state.params
    sums_by_player: dict[str, Sums] = {}
    norms: dict[str, Array] = {}
    states = dict(state.opt_state) if learner.before else {"": state.opt_state}
    for player in learner.player_updates:
        for _ in range(player.steps):
            params, states[player.name], player_sums, norms[player.name] = _update_player(
                learner, player, (params, states[player.name]), batch, rng, state.step
            )
        sums_by_player[player.name] = player_sums
    sums = merge_player_sums(sums_by_player)
    total_norm = functools.reduce(jnp.add, norms.values())
    window = state.window.widened(sums, batch, norm=total_norm, step=state.step + 1)
    opt_state = states if learner.before else states[""]
    average = (
        move_average(learner.ema_decay, state.average, params, state.step)
        if learner.ema_decay
        else {}
    )
    return TrainState(state.step + 1, params, opt_state, window, average), {
        **per_token(sums),
        "learning_rate": learner.schedule(state.step),
        "gradient_norm": norms[""],
    }


def _update_player(
    learner: Learner,
    player: PlayerUpdate,
    params_and_state: tuple[Any, Any],
    batch: Batch,
    rng: Array,
    step: Array,
) -> tuple[Any, Any, Sums, Array]:
    """Return the parameters after one optimizer step of one player.

    Args:
        learner: constants of the run.
        player: player whose parameters are updated.
        params_and_state: all parameters and the player's optimizer state, after earlier players'
            updates.
        batch: arrays [micro-batches, rows, length].
        rng: key of dropout, the same for every player.
        step: number of updates done.

    Returns:
        All parameters, the player's optimizer state, its sums, and the norm of its gradient.
    """
    params, opt_state = params_and_state
    trained, frozen = player.trainable.split(params)

    gradients, sums = sum_gradients(learner, player, (trained, frozen), batch, rng, step)
    tokens = jnp.maximum(sums["tokens"], 1.0)
    gradients = player.trainable.zero_frozen_rows(jax.tree.map(lambda g: g / tokens, gradients))
    norm = optax.global_norm(gradients)
    updates, opt_state = player.optimizer.update(gradients, opt_state, trained)
    updated = player.trainable.restore_frozen_rows(optax.apply_updates(trained, updates), trained)
    return join(updated, frozen), opt_state, sums, norm
