"""Tests of projections where the gradient of a bias is a product with ones: on TPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.model.modules import projection
from tests.sample_batches import small_config


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("features", "axis", "inputs"), [(6, -1, (4,)), ((3, 2), -1, (4,)), (5, (-2, -1), (3, 2))]
)
def test_a_tpu_computes_the_same_output_and_gradients(monkeypatch, features, axis, inputs, dtype):
    layer = projection(small_config("prefix", dtype=dtype), features, axis=axis)
    states = jax.random.normal(jax.random.key(0), (2, 7, *inputs))
    params = layer.init(jax.random.key(1), states)["params"]
    params["bias"] = jax.random.normal(jax.random.key(2), params["bias"].shape)
    weights = jax.random.normal(jax.random.key(3), layer.apply({"params": params}, states).shape)

    def loss(params, states):
        output = layer.apply({"params": params}, states)
        return (output.astype(jnp.float32) * weights).sum(), output

    gradient = jax.grad(loss, argnums=(0, 1), has_aux=True)
    expected = jax.jit(gradient)(params, states)
    monkeypatch.setattr("mnmt_jax.model.modules.platform", lambda: "tpu")
    jax.clear_caches()
    found = jax.jit(gradient)(params, states)
    assert "linear_call" in str(jax.make_jaxpr(loss)(params, states))
    tangent = jax.jvp(lambda states: loss(params, states)[0], (states,), (states,))[1]
    assert float(tangent) == pytest.approx(float((expected[0][1] * states).sum()), rel=0.02)
    rtol = 1e-5 if dtype == "float32" else 0.02  # a sum in bfloat16 is rounded
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol), found, expected
    )
