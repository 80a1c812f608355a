"""Attribution against exact values and Riemann sums, completeness, and the model's block."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.analysis.attribution import (
    COMPONENT_OUTPUTS,
    BranchedBlock,
    attribute_block,
    conductance,
    gauss_legendre_nodes,
    integrated_gradients,
)
from mnmt_jax.analysis.branches import branch_layers
from mnmt_jax.analysis.defaults import NODES
from mnmt_jax.design.objective import Intermediate, States
from mnmt_jax.errors import UserError
from mnmt_jax.model.forward_passes import ForwardPasses
from mnmt_jax.model.intermediates import BRANCH_INPUT
from mnmt_jax.model.network import build_model
from tests.property.test_contrastive_model import make_batch
from tests.property.test_language_layers import MOMENTS, case, make
from tests.property.test_plan import pairs
from tests.random_params import random_params
from tests.sample_batches import small_config

EMBED, TOKENS = 16, 5
STEPS = 2000
MANY = 400  # nodes, where the gradient jumps


@pytest.fixture(scope="module", params=["relu", "gelu"])
def taken_apart(request):
    """Return a block with a branch of its second language, parameters, states and activation."""
    model, batch, params = case("encoder_decoder")
    config = dataclasses.replace(model.config, activation=request.param)
    model = build_model(config, model.vocab_size)
    (layer, *_) = branch_layers(model)
    states = np.random.default_rng(1).normal(size=(TOKENS, EMBED)).astype(np.float32)
    block = BranchedBlock(model, params, layer, jnp.asarray(1))
    return block, params[layer.path[0]][layer.path[1]], jnp.asarray(states), request.param


def test_quadrature_is_exact_for_polynomials():
    points, weights = gauss_legendre_nodes(4)
    for power in range(8):
        assert float((weights * points**power).sum()) == pytest.approx(1 / (power + 1), abs=1e-6)
    assert len(gauss_legendre_nodes()[0]) == NODES == 50


def test_a_linear_function_is_attributed_exactly():
    rng = np.random.default_rng(0)
    weight, inner, outer = (
        jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((4,), (4, 3), (3,))
    )
    states = jnp.asarray(rng.normal(size=(2, 4)), jnp.float32)
    actual = integrated_gradients(lambda at: at @ weight + 7.0, states, 3)
    np.testing.assert_allclose(actual, states * weight[None], atol=1e-6)
    units = conductance(lambda at: at @ inner + 5.0, lambda at: at @ outer, states, 3)
    np.testing.assert_allclose(units, (states @ inner) * outer[None], atol=1e-6)


def test_attributions_equal_a_brute_force_riemann_sum(taken_apart):
    """A Riemann sum of 2,000 steps in float64 with derivatives by hand, for every unit."""
    block, params, states, name = taken_apart
    nodes = MANY if name == "relu" else NODES
    expected, total = riemann(params, np.asarray(states, np.float64), name)
    inner, outer = block.inner(), block.outer()
    for output in COMPONENT_OUTPUTS:
        actual = conductance(inner[output], outer[output], states, nodes)
        assert actual.shape == expected[output].shape
        np.testing.assert_allclose(actual, expected[output], atol=2e-3, err_msg=output)
        assert np.abs(expected[output]).max() > 0.05
    actual = integrated_gradients(block.value, states, nodes)
    np.testing.assert_allclose(actual, total, atol=2e-3)


def riemann(params, states, name):
    """Conductance of each output's units and integrated gradients of f, by midpoints."""
    parts = {"ffn": of_linear(params, "wi", "wo"), "lsl": of_branch(params["branch"], 1)}
    sums = {output: 0.0 for output in COMPONENT_OUTPUTS}
    total = 0.0
    for step in range(STEPS):
        at = states * (step + 0.5) / STEPS
        for component, (first, bias, second, scale) in parts.items():
            slope = derivative(at @ first + bias, name)
            moved = states @ first
            into = second.sum(axis=1) * scale
            sums[f"{component}1"] += slope * moved * into / STEPS
            sums[f"{component}2"] += (slope * moved) @ second * scale / STEPS
            total = total + states * ((slope * into) @ first.T) / STEPS
    return sums, total


def of_linear(params, *names):
    first, second = (np.asarray(params[name]["kernel"], np.float64) for name in names)
    return first, np.asarray(params[names[0]]["bias"], np.float64), second, 1.0


def of_branch(branch, slot):
    own = {name: jax.tree.map(lambda leaf: leaf[slot], branch[name]) for name in branch}
    return *of_linear(own, "first", "second")[:3], float(own["scale"])


def derivative(units, name):
    if name == "relu":
        return (units > 0).astype(np.float64)
    normal = np.vectorize(math.erf)(units / math.sqrt(2))
    return 0.5 * (1 + normal) + units * np.exp(-(units**2) / 2) / math.sqrt(2 * math.pi)


def test_sums_are_complete(taken_apart):
    """Integrated gradients and both rows of the components add up to f(x) - f(0)."""
    block, _, states, name = taken_apart
    few = jax.jit(lambda at: attribute_block(block, at))(states)
    actual = few if name == "gelu" else jax.jit(lambda at: attribute_block(block, at, MANY))(states)
    gained = np.asarray(block.value(states) - block.value(jnp.zeros_like(states)))
    np.testing.assert_allclose(actual["output"], gained, atol=1e-5)
    allowed = 1e-3 * np.abs(gained).max()
    for row in ("1", "2"):
        total = actual["signed"][f"ffn{row}"] + actual["signed"][f"lsl{row}"]
        np.testing.assert_allclose(total, gained, atol=allowed)
    assert np.abs(actual["error"]).max() < allowed
    # The error of few nodes where the gradient jumps is told.
    assert (np.abs(few["error"]).max() > allowed) == (name == "relu")
    for output in COMPONENT_OUTPUTS:
        assert (actual["absolute"][output] >= np.abs(actual["signed"][output]) - 1e-5).all()


def test_the_attributed_function_is_the_block_of_the_model():
    """With post-norm, the output of a layer is the norm of x plus its change."""
    model = make("encoder_decoder", norm="post")
    batch = make_batch(model.layout, [[pair] for pair in pairs(6)])
    params = random_params(model, moments=MOMENTS)
    layer = branch_layers(model)[-1]
    assert (layer.number, layer.path) == (4, ("layer_3", "mlp"))
    tap, after = Intermediate(f"layer_3/mlp/{BRANCH_INPUT}", "target"), States(4, "target")

    @jax.jit
    def run(params, batch):
        passes = ForwardPasses(model, params, batch, requests=(tap, after))
        entered = passes.read(tap)
        changes = []
        for row, slot in enumerate(
            jnp.asarray(layer.kind.settings.slots)[batch["target_lang"][:, 0]]
        ):
            block = BranchedBlock(model, params, layer, slot)
            inner = block.inner()
            shared, own = inner["ffn2"](entered[row]), block.scale * inner["lsl2"](entered[row])
            np.testing.assert_equal(shared.shape, own.shape)
            changes.append((shared + own, block.value(entered[row])))
        return entered, [jnp.stack(each) for each in zip(*changes, strict=True)], passes.read(after)

    entered, (change, value), expected = jax.tree.map(np.asarray, run(params, batch))
    np.testing.assert_allclose(value, change.sum(axis=-1), atol=1e-4)
    moved, norm = entered + change, params["layer_3"]["mlp_norm"]
    centred = moved - moved.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    actual = scaled * np.asarray(norm["scale"]) + np.asarray(norm["bias"])
    valid = np.asarray(batch["target_segment_ids"]) != 0
    np.testing.assert_allclose(actual[valid], expected[valid], atol=1e-4)
    assert set(np.asarray(batch["target_lang"])[:, 0]) == {1, 2}


def test_a_language_without_a_branch_has_zero_attributions():
    model, _, params = case("encoder_decoder")
    (layer, *_) = branch_layers(model)
    assert layer.kind.settings.slots[0] == -1
    states = jnp.ones((2, EMBED))
    block = BranchedBlock(model, params, layer, jnp.asarray(-1))
    actual = jax.jit(lambda at: attribute_block(block, at, 8))(states)
    for row in ("lsl1", "lsl2"):
        assert not np.any(actual["signed"][row]) and not np.any(actual["absolute"][row])
    assert np.all(actual["absolute"]["ffn1"] > 0)


def test_a_model_without_branches_is_an_error():
    with pytest.raises(UserError, match="no language-specific layers, which this analysis needs"):
        branch_layers(build_model(small_config("encoder_decoder"), 60))
