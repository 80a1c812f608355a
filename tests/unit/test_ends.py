"""What stands at the two ends of the network and between the maps of a feed-forward, as data."""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np
import pytest

from mnmt_jax.config.sections import Model
from mnmt_jax.methods.adaption import Adaption
from mnmt_jax.model.modules import ACTIVATIONS
from mnmt_jax.model.network import build_model
from mnmt_jax.model.sublayers import FeedForward
from tests.sample_batches import VOCAB, small_config


def test_gelu_is_the_exact_one():
    """The tanh form is off by up to 5e-4."""
    points = np.linspace(-5, 5, 201, dtype=np.float32)
    expected = [x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in points.astype(float)]
    np.testing.assert_allclose(ACTIVATIONS["gelu"](points), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (FeedForward(3), "gelu"),
        (FeedForward(3, activation="relu"), "relu"),
        (Adaption(3)._kind("input"), "relu"),
    ],
)
def test_a_feed_forward_has_the_model_s_activation_or_its_own(kind, expected):
    config = Model(embed=4, heads=2, activation="gelu")
    module, states = kind.module(config), np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    params = module.init(jax.random.key(0), states, True)
    wi, wo = (jax.tree.map(np.asarray, params["params"][name]) for name in ("wi", "wo"))
    inner = np.asarray(ACTIVATIONS[expected](states @ wi["kernel"] + wi["bias"]))
    found = module.apply(params, states, True)
    np.testing.assert_allclose(found, inner @ wo["kernel"] + wo["bias"], atol=1e-6)


def test_every_plain_layer_has_the_model_s_activation():
    config = small_config("two_stage", activation="gelu")
    for model, expected in (
        (config, "gelu"),
        (dataclasses.replace(config, activation="relu"), "relu"),
    ):
        layers = [layer for _, layer in build_model(model, VOCAB).plan.layers()]
        found = {
            each.kind.module(model).activation for each in sum(layers, ()) if each.name == "mlp"
        }
        assert found == {expected}
