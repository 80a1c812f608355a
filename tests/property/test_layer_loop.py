"""Many layers run as a loop: the same numbers as one after the other."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import linen as nn

from mnmt_jax.config.sections import Mesh
from mnmt_jax.decoding.weight_precision import round_weights
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.design.objective import States
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.model import layer_stack
from mnmt_jax.model.block import Block
from mnmt_jax.model.intermediates import INTERMEDIATES
from mnmt_jax.model.network import build_model
from tests.applied import apply
from tests.random_params import random_params
from tests.sample_batches import VOCAB, random_pairs, small_config, unpacked

LAYERS = {"register": (3,), "two_stage": (1, 3), "encoder_decoder": (3, 1)}
LAYER = 2  # whose states are an output besides
RTOL = 2e-5  # of the largest value: sums are taken in another order


def run(model, params, batch, rng=None):
    """Features, states after a layer, and the gradient if layers are recomputed."""

    def loss(params):
        found = model.apply(
            {"params": params},
            batch,
            (States(LAYER),),
            rng is None,
            method="features_and_states",
            rngs=None if rng is None else {"dropout": rng},
        )
        found = jax.tree.leaves(found)
        return sum((array**2).sum() for array in found), found

    if not model.config.remat:
        return jax.jit(loss)(params)[1]
    (_, found), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return *found, gradients


def prefill(model, params, batch):
    static = {name: a for name, a in batch.items() if not name.startswith("target")}
    return apply(model, params, static, beam=2, max_steps=3, method="prefill")


def assert_close(left, right):
    """Compares trees; some gradients (key biases) are rounding alone: one scale for all."""
    atol = RTOL * max(np.abs(leaf).max() for leaf in jax.tree.leaves(right))
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


@pytest.mark.parametrize("name", LAYERS)
def test_a_loop_computes_what_its_layers_do(name, monkeypatch):
    config = small_config(name, stage_layers=LAYERS[name], dropout=0.1, remat=name == "two_stage")
    model = build_model(config, VOCAB)
    batch = unpacked(LAYOUTS[name], random_pairs(3))
    params = random_params(model)
    assert "scan" not in str(jax.make_jaxpr(model.apply)({"params": params}, batch))
    expected, cache = run(model, params, batch), prefill(model, params, batch)
    monkeypatch.setattr(layer_stack, "_LOOPED_FROM", 3)
    monkeypatch.setattr(layer_stack, "_UNROLLED", 1)
    assert "scan" in str(jax.make_jaxpr(model.apply)({"params": params}, batch))
    for found, wanted in zip(run(model, params, batch), expected, strict=True):
        assert_close(found, wanted)
    monkeypatch.setattr("mnmt_jax.model.network.platform", lambda: "tpu")
    jax.clear_caches()
    assert_close(prefill(model, params, batch), cache)


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_weights_in_fewer_bits_pass_a_loop(weights, monkeypatch):
    """Also where a mesh collects what it splits."""
    config = small_config("register", stage_layers=(3,))
    model = build_model(config, VOCAB)
    batch = unpacked(LAYOUTS["register"], random_pairs(4))
    stored = random_params(model)
    params = round_weights(stored, weights, ("embedding",))
    for number in range(3):
        params[f"layer_{number}"]["mlp"] = stored[f"layer_{number}"]["mlp"]
    expected = prefill(model, params, batch)
    monkeypatch.setattr(layer_stack, "_LOOPED_FROM", 3)
    monkeypatch.setattr(layer_stack, "_UNROLLED", 1)
    monkeypatch.setattr("mnmt_jax.model.network.platform", lambda: "tpu")
    for devices in (1, 2):
        jax.clear_caches()
        with jax.set_mesh(make_mesh(Mesh(fsdp=devices), jax.devices()[:devices])):
            found = prefill(model, params, batch)
        assert_close(found, expected)


def test_rounds_draw_dropout_of_their_own(monkeypatch):
    """Equal layers with equal input would leave equal states if they dropped the same units."""
    monkeypatch.setattr(layer_stack, "_LOOPED_FROM", 3)
    config = small_config("prefix", stage_layers=(4,), dropout=0.5, norm="pre")
    model = build_model(config, VOCAB)
    batch = unpacked(LAYOUTS["prefix"], random_pairs(2))
    params = random_params(model)
    layer = params["layer_0"]
    for number in range(4):
        params[f"layer_{number}"] = jax.tree.map(np.zeros_like, layer)
        params[f"layer_{number}"]["mlp"]["wo"]["bias"] = layer["mlp"]["wo"]["bias"]

    def states(layer):
        rngs = {"dropout": jax.random.key(0)}
        reads = (States(layer),)
        return apply(model, params, batch, reads, False, method="states", rngs=rngs)[0]

    after = [states(layer) for layer in (1, 2, 3, 4)]
    assert np.abs(after[1] - after[0]).max() > 0.1
    assert np.abs((after[1] - after[0]) - after[0]).max() > 0.1


def test_layers_that_differ_are_not_looped(monkeypatch):
    monkeypatch.setattr(layer_stack, "_LOOPED_FROM", 3)
    config = small_config(
        "prefix", stage_layers=(4,), lora_rank=2, lora=("layer_1/attention/query",)
    )
    model = build_model(config, VOCAB)
    batch = unpacked(LAYOUTS["prefix"], random_pairs(2))
    params = random_params(model)
    assert "lora_a" in params["layer_1"]["attention"]["query"]
    assert "scan" not in str(jax.make_jaxpr(model.apply)({"params": params}, batch))
    everywhere = dataclasses.replace(config, lora=("attention/query",))
    model = build_model(everywhere, VOCAB)
    params = random_params(model)
    assert "scan" in str(jax.make_jaxpr(model.apply)({"params": params}, batch))


@pytest.mark.parametrize("name", LAYERS)
def test_layers_alike_are_traced_once_and_compute_what_each_does(name, monkeypatch):
    """Recorded values (`INTERMEDIATES`) carry the names of all modules, so then each is traced."""
    config = small_config(
        name, stage_layers=LAYERS[name], lora_rank=2, lora=("layer_1/attention/query",)
    )
    model = build_model(config, VOCAB)
    batch = unpacked(LAYOUTS[name], random_pairs(3))
    params = random_params(model)
    traced = []
    call = Block.__call__

    def counted(self, spans, context):
        traced.append(self.name)
        return call(self, spans, context)

    monkeypatch.setattr(Block, "__call__", nn.module.wrap_method_once(counted))
    jax.clear_caches()
    found = apply(model, params, batch)
    alike = {"register": [0, 1], "two_stage": [0, 1, 0], "encoder_decoder": [0, 1, 3]}[name]
    assert traced == [f"layer_{number}" for number in alike]
    traced.clear()
    each, _ = model.apply({"params": params}, batch, mutable=[INTERMEDIATES])
    assert traced == [f"layer_{number}" for number in range(sum(LAYERS[name]))]
    assert_close(found, each)
    cache = prefill(model, params, batch)
    traced.clear()
    apply(model, params, np.ones((3, 2), np.int32), cache, method="step")
    alike = {"register": [0, 1], "two_stage": [1, 0], "encoder_decoder": [3]}[name]
    assert traced == [f"layer_{number}" for number in alike]


def test_embedded_tokens_are_dropped():
    config = small_config("prefix", stage_layers=(1,), dropout=0.5, norm="pre")
    model, batch = build_model(config, VOCAB), unpacked(LAYOUTS["prefix"], random_pairs(6))
    params = random_params(model)
    params["layer_0"] = jax.tree.map(np.zeros_like, params["layer_0"])
    reads, rngs = (States(1),), {"dropout": jax.random.key(0)}
    (whole,) = apply(model, params, batch, reads, True, method="states")
    (left,) = apply(model, params, batch, reads, False, method="states", rngs=rngs)
    kept = left != 0
    np.testing.assert_allclose(left[kept], 2 * whole[kept], rtol=1e-5)
    assert 0.4 < kept.mean() < 0.6


@pytest.mark.parametrize("where", ["attention", "memory_attention"])
def test_attention_weights_are_dropped(where):
    """Each kind of attention alone: the other passes nothing."""
    sizes = {"stage_layers": (1, 1), "dropout": 0.0, "attention_dropout": 0.5}
    model = build_model(small_config("encoder_decoder", **sizes), VOCAB)
    batch = unpacked(LAYOUTS["encoder_decoder"], random_pairs(4))
    params = random_params(model)
    for layer in ("layer_0", "layer_1"):
        for name in params[layer].keys() & {"attention", "memory_attention"} - {where}:
            params[layer][name] = jax.tree.map(np.zeros_like, params[layer][name])
    still = apply(model, params, batch)
    first, second = (
        apply(model, params, batch, False, method="logits", rngs={"dropout": jax.random.key(n)})
        for n in (0, 1)
    )
    assert np.abs(first - still).max() > 1e-3 and np.abs(first - second).max() > 1e-3
