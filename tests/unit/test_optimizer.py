"""Optimizers, schedules and clipping against hand-computed numbers and fairseq's Adam."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mnmt_jax.config.sections import Optimizer
from mnmt_jax.errors import UserError
from mnmt_jax.training.optimizer import (
    B1,
    B2,
    averaged_params,
    make_optimizer,
    make_schedule,
)

RATE_RTOL = 1e-6
STEP_RTOL = 2e-6


def rate(config, count, total_steps=1000):
    return float(make_schedule(config, total_steps)(jnp.asarray(count, jnp.int32)))


@pytest.mark.parametrize(
    ("config", "count", "expected"),
    [
        # MITRE: peak 2e-3 after 8000 updates, first rate 1e-7 (spec 6.3).
        (dict(learning_rate=2e-3, warmup_steps=8000, initial_learning_rate=1e-7), 0, 1e-7),
        (dict(learning_rate=2e-3, warmup_steps=8000, initial_learning_rate=1e-7), 8000, 2e-3),
        (
            dict(learning_rate=2e-3, warmup_steps=8000, initial_learning_rate=1e-7),
            300_000,
            3.26599e-4,
        ),
        (dict(learning_rate=2e-3, warmup_steps=8000, initial_learning_rate=1e-7), 4000, 1.00005e-3),
        # EC-40.
        (dict(learning_rate=5e-4, warmup_steps=4000), 0, 0.0),
        (dict(learning_rate=5e-4, warmup_steps=4000), 1, 1.25e-7),
        (dict(learning_rate=5e-4, warmup_steps=4000), 200_000, 7.07107e-5),
        # Fine-tuning: 0, 1e-4, 7.07e-5, 5.77e-5, ...
        (dict(learning_rate=1e-4, warmup_steps=1), 0, 0.0),
        (dict(learning_rate=1e-4, warmup_steps=1), 1, 1e-4),
        (dict(learning_rate=1e-4, warmup_steps=1), 2, 7.07107e-5),
        (dict(learning_rate=1e-4, warmup_steps=1), 3, 5.77350e-5),
        # OPUS deep at 50k: 1.980e-4 with peak 7e-4 (spec two_stage 6.3, 8.2).
        (dict(learning_rate=7e-4, warmup_steps=4000), 50_000, 1.97990e-4),
        # Cosine to zero at 1000, warm-up 100; half-way at 550.
        (dict(schedule="cosine", learning_rate=1e-3, warmup_steps=100), 50, 5e-4),
        (dict(schedule="cosine", learning_rate=1e-3, warmup_steps=100), 100, 1e-3),
        (dict(schedule="cosine", learning_rate=1e-3, warmup_steps=100), 550, 5e-4),
        (dict(schedule="cosine", learning_rate=1e-3, warmup_steps=100), 1000, 0.0),
        (dict(schedule="cosine", learning_rate=1e-3, warmup_steps=100), 2000, 0.0),
        (dict(schedule="constant", learning_rate=1e-3, warmup_steps=10), 5, 5e-4),
        (dict(schedule="constant", learning_rate=1e-3, warmup_steps=10), 10**6, 1e-3),
        (dict(schedule="constant", learning_rate=1e-3, warmup_steps=0), 0, 1e-3),
    ],
)
def test_schedule_landmarks(config, count, expected):
    assert rate(Optimizer(**config), count) == pytest.approx(expected, rel=3e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dict(warmup_steps=0), "warmup_steps=0: schedule 'inverse_sqrt' needs at least 1"),
        (dict(schedule="constant", warmup_steps=-1), "warmup_steps=-1"),
        (dict(schedule="cosine", warmup_steps=1000), "Train.steps=1000 must exceed"),
    ],
)
def test_invalid_schedules_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        make_schedule(Optimizer(**config), 1000)


def test_a_copy_without_updates_has_any_schedule():
    assert rate(Optimizer(schedule="cosine", warmup_steps=1000), 0, total_steps=0) == 0


def fairseq_adam(params, gradients, rates, config):
    """fairseq's `optim/adam.py` in double precision: one row of `gradients` per update."""
    p = np.asarray(params, np.float64)
    m, v = np.zeros_like(p), np.zeros_like(p)
    for t, (g, lr) in enumerate(zip(gradients, rates, strict=True), start=1):
        m = B1 * m + (1 - B1) * g
        v = B2 * v + (1 - B2) * g * g
        denominator = np.sqrt(v) + config.eps
        step_size = lr * math.sqrt(1 - B2**t) / (1 - B1**t)
        p = p + -config.weight_decay * lr * p
        p = p - step_size * m / denominator
    return p


def run(params, gradients, config, axes=None):
    optimizer = make_optimizer(config, len(gradients), axes or {})
    state = optimizer.init(params)

    @jax.jit
    def update(params, state, gradient):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    for gradient in gradients:
        params, state = update(params, state, gradient)
    return params, state


@pytest.mark.parametrize("eps", [1e-6, 1e-8, 1e-2])  # at 1e-2 the uncorrected form is visible
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_equals_fairseq(eps, weight_decay):
    rng = np.random.default_rng(0)
    config = Optimizer(
        learning_rate=0.1,
        warmup_steps=5,
        initial_learning_rate=0.01,
        eps=eps,
        weight_decay=weight_decay,
    )
    start = rng.normal(size=6).astype(np.float32)
    gradients = (rng.normal(size=(20, 6)) * 10.0 ** rng.integers(-3, 1, 6)).astype(np.float32)
    rates = [rate(config, k, 20) for k in range(20)]
    expected = fairseq_adam(start, gradients, rates, config)
    actual, state = run(
        {"w": jnp.asarray(start)}, [{"w": jnp.asarray(g)} for g in gradients], config
    )
    np.testing.assert_allclose(actual["w"] - start, expected - start, rtol=1e-4, atol=1e-6)
    assert int(state.updates) == 20


def test_epsilon_is_not_bias_corrected():
    """By hand: m = 0.1 g, v = 0.02 g^2, step = lr sqrt(0.02) / 0.1 * m / (sqrt(v) + eps)."""
    config = Optimizer(schedule="constant", learning_rate=1.0, warmup_steps=0, eps=0.1)
    params, _ = run({"w": jnp.zeros(1)}, [{"w": jnp.ones(1)}], config)
    by_hand = math.sqrt(0.02) / 0.1 * 0.1 / (math.sqrt(0.02) + 0.1)
    corrected = 1 / (1 + 0.1)
    assert abs(by_hand - corrected) > 0.1
    assert float(params["w"][0]) == pytest.approx(-by_hand, rel=STEP_RTOL)


def test_weight_decay_reaches_every_parameter():
    config = Optimizer(schedule="constant", learning_rate=0.5, warmup_steps=0, weight_decay=0.1)
    params = {"mlp": {"bias": jnp.full(2, 4.0)}, "norm": {"scale": jnp.full(2, 2.0)}}
    after, _ = run(params, [jax.tree.map(jnp.zeros_like, params)], config)
    np.testing.assert_allclose(after["mlp"]["bias"], 4.0 * (1 - 0.05), rtol=RATE_RTOL)
    np.testing.assert_allclose(after["norm"]["scale"], 2.0 * (1 - 0.05), rtol=RATE_RTOL)


def test_clipping_is_by_the_norm_of_all_gradients():
    config = Optimizer(schedule="constant", learning_rate=1.0, warmup_steps=0, clip_norm=1.0)
    params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    big = {"a": jnp.full(1, 3.0), "b": jnp.full(1, 4.0)}
    _, (_, state) = run(params, [big], config)
    np.testing.assert_allclose(state.first_moment["a"], 0.1 * 3 / 5, rtol=1e-5)
    small = jax.tree.map(lambda g: g * 0.1, big)
    _, (_, state) = run(params, [small], config)
    np.testing.assert_allclose(state.first_moment["b"], 0.1 * 0.4, rtol=RATE_RTOL)


def constant(**changes):
    return Optimizer(**{"schedule": "constant", "warmup_steps": 0, "learning_rate": 0.1, **changes})


def kernels(rng):
    return {
        "query": {"kernel": rng.normal(size=(6, 2, 3)), "bias": rng.normal(size=(2, 3))},
        "out": {"kernel": rng.normal(size=(2, 3, 4))},
        "branch": {"first": {"kernel": rng.normal(size=(2, 4, 3))}},
    }


@pytest.mark.usefixtures("relaxed_dtypes")
def test_muon_orthogonalises_kernels_and_leaves_the_rest_to_adam():
    """Newton-Schulz leaves singular values near 1; the scale is 0.2 sqrt(longer side)."""
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda a: jnp.zeros(a.shape), kernels(rng))
    gradient = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), kernels(rng))
    axes = {"branch/first/kernel": ("slot", "embed", "mlp")}
    after, _ = run(params, [gradient], constant(name="muon"), axes)
    matrices = [
        after["query"]["kernel"].reshape(6, 6),
        after["out"]["kernel"].reshape(6, 4),
        *after["branch"]["first"]["kernel"],
    ]
    for matrix in matrices:
        values = np.linalg.svd(matrix, compute_uv=False) / (0.1 * 0.2 * np.sqrt(max(matrix.shape)))
        assert 0.5 < values.min() and values.max() < 1.3, values
    first_step = 0.1 * (1 + B1 * (1 - B1) / (1 - B1**2))  # of Adam with Nesterov momentum
    expected = -first_step * np.sign(gradient["query"]["bias"])
    np.testing.assert_allclose(after["query"]["bias"], expected, rtol=1e-4)


@pytest.mark.usefixtures("relaxed_dtypes")
def test_muon_decays_all_weights():
    params = {"wi": {"kernel": jnp.full((2, 3), 4.0), "bias": jnp.full(3, 2.0)}}
    zeros = jax.tree.map(jnp.zeros_like, params)
    after, _ = run(params, [zeros], constant(name="muon", weight_decay=0.1))
    np.testing.assert_allclose(after["wi"]["kernel"], 4.0 * (1 - 0.01), rtol=RATE_RTOL)
    np.testing.assert_allclose(after["wi"]["bias"], 2.0 * (1 - 0.01), rtol=RATE_RTOL)


@pytest.mark.usefixtures("relaxed_dtypes")
@pytest.mark.parametrize("clip_norm", [0.0, 1e9])
def test_schedule_free_evaluates_the_average_of_its_iterates(clip_norm):
    """By hand, after Defazio et al.: z steps by RMSprop, x averages z, gradients are at y."""
    rng = np.random.default_rng(1)
    config = constant(name="schedule_free", eps=1e-8, clip_norm=clip_norm, weight_decay=0.1)
    gradients = rng.normal(size=(5, 3))
    x = z = y = start = rng.normal(size=3)
    moment = np.zeros(3)
    for t, gradient in enumerate(gradients, start=1):
        moment = B2 * moment + (1 - B2) * gradient**2
        step = gradient / (np.sqrt(moment / (1 - B2**t)) + 1e-8)
        z = z - 0.1 * (step + 0.1 * y)
        x = (1 - 1 / t) * x + z / t
        y = 0.1 * z + 0.9 * x
    after, state = run(
        {"w": jnp.asarray(start, jnp.float32)},
        [{"w": jnp.asarray(g, jnp.float32)} for g in gradients],
        config,
    )
    np.testing.assert_allclose(after["w"], y, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(averaged_params(state, after)["w"], x, rtol=1e-4, atol=1e-5)
    assert np.abs(x - y).max() > 5e-3


def test_schedule_free_needs_a_constant_rate_and_no_second_average():
    with pytest.raises(UserError, match="schedule='cosine' must be 'constant' with Optimizer.name"):
        Optimizer(name="schedule_free", schedule="cosine")
    with pytest.raises(UserError, match=r"ema_decay=0.9 must be 0 with Optimizer.name='schedule_f"):
        constant(name="schedule_free", ema_decay=0.9)
