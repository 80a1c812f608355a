"""Adam as in fairseq, with its learning-rate schedules and gradient clipping, for optax.

The trainer accumulates the gradients of micro-batches before an update. Frozen parameters are not
in the tree passed to the transformation, so it holds no state for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from mnmt_jax.config.sections import Optimizer
from mnmt_jax.errors import UserError

Schedule = Callable[[Int[Array, ""]], Float[Array, ""]]

B1, B2 = 0.9, 0.98  # decays of the moments in all runs of the papers
_CLIP_EPS = 1e-6  # fairseq's clip_grad_norm_


class AdamState(NamedTuple):
    """State of `scale_and_step`.

    Attributes:
        updates: number of updates done.
        first_moment: like the parameters, float32.
        second_moment: like the parameters, float32.
    """

    updates: Int[Array, ""]
    first_moment: Any
    second_moment: Any


def make_schedule(config: Optimizer, total_steps: int) -> Schedule:
    """Build the learning rate as a function of the number of updates already done.

    Args:
        config: peak, warm-up and shape of the schedule.
        total_steps: step where `cosine` reaches zero.

    Returns:
        A function of int32 `count`; the k-th update uses count = k - 1, so the first update uses
        `initial_learning_rate` whenever there is a warm-up. float32.

    Raises:
        UserError: if the warm-up does not fit the schedule.

    Source: MITRE spec 6.3, fairseq's `inverse_sqrt` and `cosine`.
    """
    peak, initial, warmup = config.learning_rate, config.initial_learning_rate, config.warmup_steps
    if config.schedule == "cosine" and total_steps <= warmup:
        raise UserError(
            f"Train.steps={total_steps} must exceed Optimizer.warmup_steps={warmup} for schedule "
            "'cosine'"
        )

    def schedule(count: Int[Array, ""]) -> Float[Array, ""]:
        done = count.astype(jnp.float32)
        if config.schedule == "inverse_sqrt":
            after_warmup = peak * jnp.sqrt(warmup / jnp.maximum(done, 1.0))
        elif config.schedule == "cosine":
            progress = jnp.minimum((done - warmup) / (total_steps - warmup), 1.0)
            after_warmup = 0.5 * peak * (1.0 + jnp.cos(jnp.pi * progress))
        else:
            after_warmup = jnp.full_like(done, peak)
        during_warmup = initial + done * ((peak - initial) / max(warmup, 1))
        return jnp.where(done < warmup, during_warmup, after_warmup)

    return schedule


def make_optimizer(config: Optimizer, total_steps: int) -> optax.GradientTransformation:
    """Build gradient clipping followed by Adam.

    Args:
        config: settings of the optimizer.
        total_steps: updates of the run, for schedules that need it.

    Returns:
        A transformation whose updates are added to the parameters. Its gradients must already be
        divided by the number of tokens.
    """
    adam = scale_and_step(make_schedule(config, total_steps), config)
    if not config.clip_norm:
        return adam
    return optax.chain(clip_by_global_norm(config.clip_norm), adam)


def clip_by_global_norm(limit: float) -> optax.GradientTransformation:
    """Scale all gradients by min(1, limit / (norm + 1e-6)), with their global norm."""

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        factor = jnp.minimum(1.0, limit / (optax.global_norm(gradients) + _CLIP_EPS))
        return jax.tree.map(lambda g: g * factor, gradients), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def scale_and_step(schedule: Schedule, config: Optimizer) -> optax.GradientTransformation:
    """Build fairseq's Adam with decoupled weight decay on every parameter.

    p <- p - lr * weight_decay * p - lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)

    The epsilon is added to the root of the raw second moment, so in the usual form it would shrink
    as eps / sqrt(1 - b2^t) over the first updates; optax's adam keeps it constant instead.

    Args:
        schedule: learning rate by number of updates done.
        config: settings, of which `eps` and `weight_decay` are used.

    Source: MITRE spec 6.2, TDO spec 6.2, fairseq's `adam`.
    """

    def init(params: Any) -> AdamState:
        zeros = lambda: jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)  # noqa: E731
        return AdamState(jnp.zeros((), jnp.int32), zeros(), zeros())

    def update(gradients: Any, state: AdamState, params: Any = None) -> tuple[Any, AdamState]:
        rate = schedule(state.updates)
        count = state.updates + 1
        step_size = rate * jnp.sqrt(_one_minus_power(B2, count)) / _one_minus_power(B1, count)
        first_moment = jax.tree.map(
            lambda m, g: B1 * m + (1 - B1) * g, state.first_moment, gradients
        )
        second_moment = jax.tree.map(
            lambda v, g: B2 * v + (1 - B2) * (g * g), state.second_moment, gradients
        )
        updates = jax.tree.map(
            lambda m, v, p: (
                -step_size * (m / (jnp.sqrt(v) + config.eps)) - rate * config.weight_decay * p
            ),
            first_moment,
            second_moment,
            params,
        )
        return updates, AdamState(count, first_moment, second_moment)

    return optax.GradientTransformation(init, update)


def _one_minus_power(base: float, exponent: Int[Array, ""]) -> Float[Array, ""]:
    """Compute 1 - base ** exponent without cancellation when the power is near 1."""
    return -jnp.expm1(exponent.astype(jnp.float32) * math.log(base))
