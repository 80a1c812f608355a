"""Dropout masks: their rate, and independence of elements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from mnmt_jax.config.loading import load_config
from mnmt_jax.distributed.dropout_mask import MULTIPLIERS, keep_by_hash
from mnmt_jax.model.dropout import Dropout
from mnmt_jax.runs.run_directory import changed_fields

SHARE = 0.9
SHAPE = (4, 8, 64, 128)


def apply(states, rng, deterministic=False, rate=1 - SHARE):
    return Dropout(rate).apply({}, states, deterministic, rngs={"dropout": rng})


def random_mask(seed: int) -> np.ndarray:
    """Return which of `SHAPE` are kept, as numbers of mean 0 and deviation 1."""
    keep = np.asarray(keep_by_hash(jax.random.key(seed), SHARE, SHAPE), np.float64)
    return (keep - SHARE) / np.sqrt(SHARE * (1 - SHARE))


def z(values: np.ndarray) -> float:
    """Return how many deviations the sum of independent such numbers is away from 0."""
    return float(values.sum() / np.sqrt(values.size))


def test_the_fraction_of_kept_elements_is_one_minus_the_rate():
    for share in (0.5, 0.9, 0.999):
        keep = np.concatenate([keep_by_hash(jax.random.key(i), share, SHAPE) for i in range(8)])
        deviation = np.sqrt(share * (1 - share) / keep.size)
        assert abs(keep.mean() - share) < 5 * deviation
    own = random_mask(0)
    for axis, size in enumerate(SHAPE):  # no place along any axis is luckier than others
        sums = np.moveaxis(own, axis, 0).reshape(size, -1).sum(axis=1) / np.sqrt(own.size / size)
        assert np.abs(sums).max() < 5 and sums.var() < 2.5


def test_masks_of_positions_and_layers_are_independent():
    own, other = random_mask(0), random_mask(1)
    assert abs(z(own * other)) < 5
    for axis, size in enumerate(SHAPE):
        for shift in (1, 2, size // 2):
            assert abs(z(own * np.roll(own, shift, axis))) < 5, (axis, shift)
        for bits in (1, 2, size // 2):  # what a hash of exclusive ors might repeat
            assert abs(z(own * own.take(np.arange(size) ^ bits, axis))) < 5, (axis, bits)
    rows = own.reshape(-1, SHAPE[-1])
    pairs = (rows @ rows.T / SHAPE[-1])[np.triu_indices(len(rows), 1)]
    assert pairs.std() * np.sqrt(SHAPE[-1]) == pytest.approx(1, abs=0.02)


def test_a_mesh_changes_nothing():
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"))
    states = np.ones(SHAPE, np.float32)
    placed = jax.device_put(
        states, NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "tensor", None, None))
    )
    run = jax.jit(apply)
    np.testing.assert_array_equal(run(placed, jax.random.key(3)), run(states, jax.random.key(3)))


def test_kept_elements_are_scaled_and_dropped_ones_have_no_gradient():
    states, rng = jax.random.normal(jax.random.key(0), (32, 48)), jax.random.key(1)
    actual, gradient = jax.value_and_grad(lambda x: jnp.sum(apply(x, rng)))(states)
    left = apply(states, rng)
    dropped = np.asarray(left) == 0
    assert 0 < dropped.mean() < 0.2
    np.testing.assert_allclose(left[~dropped], states[~dropped] / np.float32(SHARE), rtol=1e-6)
    assert actual == pytest.approx(float(left.sum()), rel=1e-5)
    np.testing.assert_array_equal(np.asarray(gradient) == 0, dropped)
    np.testing.assert_array_equal(apply(states, rng, deterministic=True), states)
    np.testing.assert_array_equal(apply(states, rng, rate=0.0), states)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_raw_keys_and_device_generators_are_supported(impl):
    """Raw keys are t5x's; those of `rbg` draw by the device's generator."""
    states = jnp.ones((64, 128))
    key = jax.random.key(5, impl=impl)
    left = apply(states, key)
    assert 0.85 < (np.asarray(left) != 0).mean() < 0.95
    program = jax.jit(apply).lower(states, key).as_text()
    assert (str(MULTIPLIERS[0]) in program) == (impl == "threefry2x32")
    assert ("rng_bit_generator" in program) == (impl == "rbg")
    if impl == "threefry2x32":
        np.testing.assert_array_equal(left, apply(states, jax.random.key_data(key)))


@pytest.mark.parametrize(
    ("before", "after", "rate", "is_refused"),
    [
        ("split", "dense", 0.1, True),
        ("dense", "fused", 0.1, True),
        ("split", "fused", 0.1, False),
        ("split", "dense", 0.0, False),
    ],
)
def test_a_run_continues_with_attention_that_draws_the_same_masks(before, after, rate, is_refused):
    """`dense` draws one mask for the keys of all roles, the others one for each role."""
    configs = [
        load_config([], [f"Model.attention='{name}'", f"Model.attention_dropout={rate}"])
        for name in (before, after)
    ]
    reason = f"Model.attention was '{before}', now '{after}' (with Model.attention_dropout 'dense'"
    assert [line[: len(reason)] for line in changed_fields(*configs)] == [reason] * is_refused
