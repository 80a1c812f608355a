"""Routing of positions to branches: outputs and gradients of all implementations."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config.sections import Mesh
from mnmt_jax.distributed.sharding import jit_with_mesh, make_mesh, param_axes_of, tree_sharding
from mnmt_jax.methods.language_layers import LanguageMLP
from mnmt_jax.model.language_routing import ROUTINGS, Branches, choose_routing, route

ATOL = 2e-5
EMBED, HIDDEN = 6, 10
# Slots of a batch, and how many there are: a few, none at all, one alone, one of many, block after
# block of some and nothing of others.
CASES = {
    "mixed": (np.array([2, -1, 0, 0, 2, 1, -1, 2]), 3),
    "no slot": (np.full(5, -1), 2),
    "one slot": (np.full(40, 1), 3),
    "one position": (np.array([4]), 9),
    "absent slots": (np.random.default_rng(1).choice([-1, 0, 3, 6], 300), 7),
}


def random_case(slots: np.ndarray, count: int):
    rng = np.random.default_rng(0)
    shapes = ((EMBED, HIDDEN), (HIDDEN,), (HIDDEN, EMBED), (EMBED,))
    branches = (rng.standard_normal((count, *shape), np.float32) for shape in shapes)
    states, weights = rng.standard_normal((2, len(slots), EMBED), np.float32)
    return states, Branches(*branches), weights


def by_hand(states, slots, branches, weights):
    """Return outputs and gradients computed position by position."""
    out, by_states = np.zeros_like(states), np.zeros_like(states)
    sums = Branches(*map(np.zeros_like, branches))
    for position, slot in enumerate(slots):
        if slot < 0:
            continue
        first, first_bias, second, second_bias = (each[slot] for each in branches)
        inner = states[position] @ first + first_bias
        out[position] = np.maximum(inner, 0) @ second + second_bias
        by_inner = (second @ weights[position]) * (inner > 0)
        by_states[position] = first @ by_inner
        sums.first_kernel[slot] += np.outer(states[position], by_inner)
        sums.first_bias[slot] += by_inner
        sums.second_kernel[slot] += np.outer(np.maximum(inner, 0), weights[position])
        sums.second_bias[slot] += weights[position]
    return out, by_states, sums


@functools.cache
def computed(case: str, name: str):
    slots, count = CASES[case]
    states, branches, weights = random_case(slots, count)

    def both(states, branches):
        out, pull = jax.vjp(
            lambda s, b: ROUTINGS[name](s, jnp.asarray(slots), b, jax.nn.relu), states, branches
        )
        return out, *pull(jnp.asarray(weights))

    actual = jax.jit(both)(jnp.asarray(states), jax.tree.map(jnp.asarray, branches))
    return jax.tree.map(np.asarray, actual)


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("case", CASES)
def test_every_routing_equals_the_computation_by_hand(case, name):
    slots, count = CASES[case]
    states, branches, weights = random_case(slots, count)
    expected = by_hand(states, slots, branches, weights)
    for one, other in zip(
        jax.tree.leaves(computed(case, name)), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=ATOL * max(1, np.abs(other).max()))


@pytest.mark.parametrize("name", ROUTINGS)
def test_unused_branches_have_zero_gradients(name):
    _, _, by_branches = computed("absent slots", name)
    for leaf in by_branches:
        assert not leaf[[1, 2, 4, 5]].any()
        assert (np.abs(leaf[[0, 3, 6]]).reshape(3, -1).max(axis=1) > 0.1).all()
    out, by_states, _ = computed("no slot", name)
    assert not out.any() and not by_states.any()


@pytest.mark.parametrize("count", [4, 3], ids=["slots are split", "slots stay whole"])
def test_a_mesh_changes_nothing(count):
    """Rows over data and fsdp, the hidden width over tensor, the slots over fsdp if it divides."""
    rng = np.random.default_rng(2)
    slots = rng.integers(-1, count, (8, 5))
    states, branches, weights = random_case(slots.ravel(), count)
    shape = (*slots.shape, EMBED)
    states, weights = states.reshape(shape), weights.reshape(shape)

    def both(states, branches, slots):
        out, pull = jax.vjp(
            lambda s, b: route(s, slots, b, jax.nn.relu, routing="loop"), states, branches
        )
        return out, *pull(jnp.asarray(weights))

    mesh = make_mesh(Mesh(fsdp=2, tensor=2), jax.devices()[:8])
    named = {f"branch/{name.replace('_', '/')}": leaf for name, leaf in branches._asdict().items()}
    axes = LanguageMLP.axes
    shardings = [tree_sharding(mesh, {name: leaf}, axes)[name] for name, leaf in named.items()]
    assert {param_axes_of(name, axes)[0] for name in named} == {"slot"}
    is_split = [sharding.spec[0] for sharding in shardings]
    assert is_split == ["fsdp" if count == 4 else None] * 4
    placed = Branches(*map(jax.device_put, branches, shardings))
    actual = jit_with_mesh(mesh, both)(jnp.asarray(states), placed, jnp.asarray(slots))
    expected = jax.jit(both)(jnp.asarray(states), branches, jnp.asarray(slots))
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=ATOL)


@pytest.mark.parametrize("name", ROUTINGS)
def test_bfloat16_branches_sum_gradients_in_float32(name):
    """A gradient of one is 300 in float32; in bfloat16 257 is 256."""
    slots = jnp.zeros(300, jnp.int32)
    ones = Branches(*(jnp.ones(shape) for shape in ((9, 1, 1), (9, 1), (9, 1, 1), (9, 1))))
    states = jnp.ones((300, 1), jnp.bfloat16)

    def total(branches):
        out = ROUTINGS[name](states, slots, branches, jax.nn.relu)
        assert out.dtype == jnp.bfloat16
        return out.astype(jnp.float32).sum()

    gradient = jax.jit(jax.grad(total))(ones)
    assert gradient.second_kernel.dtype == jnp.float32
    assert abs(float(gradient.second_kernel[0, 0, 0]) - 600) <= 2


def test_choose_routing_gives_a_known_routing():
    chosen = {choose_routing(n, each) for n in (1, 4, 5, 99) for each in ("cpu", "gpu", "tpu")}
    assert chosen <= ROUTINGS.keys()
    assert choose_routing(99, "tpu") != "one_hot"
