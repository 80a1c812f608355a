"""Optimizers, learning-rate schedules and gradient clipping: fairseq's Adam, and those of optax.

The trainer accumulates the gradients of micro-batches before an update. Frozen parameters are not
in the tree passed to the transformation, so it holds no state for them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array, Float, Int

from mnmt_jax.config.sections import Optimizer
from mnmt_jax.distributed.sharding import ParamAxes, param_axes_of
from mnmt_jax.errors import UserError

Schedule = Callable[[Int[Array, ""]], Float[Array, ""]]

B1, B2 = 0.9, 0.98  # decays of the moments in all runs of the papers
_CLIP_EPS = 1e-6  # fairseq's clip_grad_norm_
_MUON_RMS = 0.2  # of the updates of a matrix, as Adam's are: the learning rate means the same
_INTERPOLATION = 0.9  # share of the average in the parameters where schedule-free gradients are
_NO_AXES: ParamAxes = MappingProxyType({})


class AdamState(NamedTuple):
    """State of `fairseq_adam`.

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
    if config.schedule == "cosine" and 0 < total_steps <= warmup:  # 0: a copy of another run
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


def make_optimizer(
    config: Optimizer,
    total_steps: int,
    param_axes: ParamAxes = _NO_AXES,
    *,
    steps_per_update: int = 1,
) -> optax.GradientTransformation:
    """Build gradient clipping followed by the optimizer that `Optimizer.name` selects.

    Args:
        config: settings of the optimizer.
        total_steps: updates of the run, for schedules that need it.
        param_axes: axes of parameters besides the library's (`Plan.param_axes`), by which Muon
            distinguishes the inputs of a matrix from its outputs.
        steps_per_update: steps of this optimizer per update of the run. The learning rate follows
            the updates of the run.

    Returns:
        A transformation whose updates are added to the parameters. Its gradients must already be
        divided by the number of tokens.
    """
    schedule = make_schedule(config, total_steps)
    if steps_per_update > 1:
        schedule = _per_update(schedule, steps_per_update)
    match config.name:
        case "adam":
            optimizer = fairseq_adam(schedule, config)
        case "muon":
            optimizer = muon(schedule, config, param_axes)
        case "schedule_free":
            optimizer = schedule_free(schedule, config)
    return _clipped(config, optimizer)


def _per_update(schedule: Schedule, steps_per_update: int) -> Schedule:
    """Return a schedule by the number of steps of an optimizer that does several per update."""
    return lambda count: schedule(count // steps_per_update)


def _clipped(
    config: Optimizer, optimizer: optax.GradientTransformation
) -> optax.GradientTransformation:
    if not config.clip_norm:
        return optimizer
    return optax.chain(clip_by_global_norm(config.clip_norm), optimizer)


def clip_by_global_norm(limit: float) -> optax.GradientTransformation:
    """Scale all gradients by min(1, limit / (norm + 1e-6)), with their global norm."""

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        factor = jnp.minimum(1.0, limit / (optax.global_norm(gradients) + _CLIP_EPS))
        return jax.tree.map(lambda g: g * factor, gradients), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def fairseq_adam(schedule: Schedule, config: Optimizer) -> optax.GradientTransformation:
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


def muon(
    schedule: Schedule, config: Optimizer, param_axes: ParamAxes
) -> optax.GradientTransformation:
    """Build Muon for the kernels, and Adam with Nesterov momentum for all other parameters.

    The momentum of a matrix is orthogonalised by Newton-Schulz iterations. Updates are scaled to
    the root mean square of Adam's, so learning rate and weight decay keep their meaning.

    Args:
        schedule: learning rate by number of updates done.
        config: settings, of which `eps` and `weight_decay` are used.
        param_axes: as for `make_optimizer`.

    Source: Jordan et al. 2024; its scale: Liu et al. 2025 (arXiv 2502.16982); `optax.contrib.muon`.
    """
    return optax.contrib.muon(
        schedule,
        weight_decay=config.weight_decay,
        adam_weight_decay=config.weight_decay,
        adam_b1=B1,
        adam_b2=B2,
        eps=config.eps,
        consistent_rms=_MUON_RMS,
        muon_weight_dimension_numbers=functools.partial(_matrices, param_axes),
    )


def _matrices(param_axes: ParamAxes, params: Any) -> Any:
    """Return input and output axes of each kernel; None for parameters that are not matrices.

    Heads and their width are one axis of the matrix; slots of languages are separate matrices.
    """

    def axes_of(path: Any, leaf: Any) -> optax.contrib.MuonDimensionNumbers | None:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not name.endswith("kernel"):
            return None
        names = param_axes_of(name, param_axes)
        axes = [axis for axis in range(leaf.ndim) if names[axis] != "slot"]
        inputs = 2 if names[axes[0]] == "heads" else 1
        if len(axes) <= inputs:
            return None
        return optax.contrib.MuonDimensionNumbers(tuple(axes[:inputs]), tuple(axes[inputs:]))

    return jax.tree_util.tree_map_with_path(axes_of, params)


def schedule_free(schedule: Schedule, config: Optimizer) -> optax.GradientTransformation:
    """Build schedule-free AdamW, which evaluates an average of the parameters (`averaged_params`).

    Args:
        schedule: warm-up and then a constant learning rate, by number of updates done.
        config: settings, of which `eps` and `weight_decay` are used.

    Source: Defazio et al. 2024 (arXiv 2405.15682); `optax.contrib.schedule_free`.
    """
    base = optax.chain(
        optax.scale_by_rms(B2, config.eps, eps_in_sqrt=False, bias_correction=True),
        optax.add_decayed_weights(config.weight_decay),
        optax.scale_by_learning_rate(schedule),
    )
    return optax.contrib.schedule_free(base, schedule, b1=_INTERPOLATION)


def averaged_params(opt_state: Any, params: Any) -> Any:
    """Return the average of the parameters that a schedule-free optimizer evaluates.

    Args:
        opt_state: state of a transformation from `make_optimizer`.
        params: the trained parameters, which are returned if the optimizer has no average.
    """
    states = _schedule_free_states(opt_state)
    return optax.contrib.schedule_free_eval_params(states[0], params) if states else params


def has_average(opt_state: Any) -> bool:
    """Return whether an optimizer, by its state or the shapes of it, evaluates an average."""
    return bool(_schedule_free_states(opt_state))


def _schedule_free_states(opt_state: Any) -> list[optax.contrib.ScheduleFreeState]:
    def is_state(node: Any) -> bool:
        return isinstance(node, optax.contrib.ScheduleFreeState)

    return [node for node in jax.tree.leaves(opt_state, is_leaf=is_state) if is_state(node)]
