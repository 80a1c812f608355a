"""Layers as data: what a probe sublayer is told, and plans whose layers differ."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from mnmt_jax.config.sections import Mesh, Model
from mnmt_jax.data.converter import Example
from mnmt_jax.design.layouts import LANGUAGES, LAYOUTS
from mnmt_jax.design.plan import Kind, Layer, Sublayer
from mnmt_jax.errors import UserError
from mnmt_jax.model import layer_stack
from mnmt_jax.model.key_values import reorder
from mnmt_jax.model.network import Network, build_model
from tests.applied import apply, assert_same_on_a_mesh
from tests.property.test_contrastive_model import LENGTHS, VOCABULARY, make_batch
from tests.random_params import MILD, random_params
from tests.sample_batches import VOCAB, random_pairs, small_config, unpacked

ATOL = 2e-5
NAMES = ("register", "two_stage_trigger", "encoder_decoder")


class Told(nn.Module, Kind):
    """Adds what it is told: rows of a table by the two languages, and the position."""

    config: Model

    has_dropout = True
    component = "told"
    languages = LANGUAGES

    @nn.compact
    def change(self, states, place):
        table = self.param("table", nn.initializers.normal(1.0), (4, self.config.embed))
        source, target = (place.language(name) for name in ("source_lang", "target_lang"))
        positions = place.positions[..., None].astype(jnp.float32)
        return table[target] + 0.5 * table[source] + 0.1 * positions


def telling(name: str, **changes) -> Network:
    """A model of a layout whose every layer ends in a probe."""
    plain = build_model(small_config(name, **changes), VOCABULARY.size)
    probe = Sublayer("told", Told(plain.config))
    return plain.clone(plan=plain.plan.with_layers(lambda number, layer: (*layer, probe)))


def pairs(count: int) -> list[Example]:
    """Sentence pairs of differing languages and lengths."""
    rng = np.random.default_rng(0)
    return [
        Example(rng.integers(3, 57, 2 + n % 3), rng.integers(3, 57, 3 + n % 2), n % 3, 1 + n % 2)
        for n in range(count)
    ]


def random_told(model: Network) -> dict:
    return random_params(model, moments=MILD | {"table": (0, 0.5)})


@pytest.mark.parametrize("attention", ["split", "dense"])
@pytest.mark.parametrize("name", NAMES)
def test_every_position_is_told_of_its_own_pair(name, attention):
    """Packed beside pairs of other languages it is told what it is told alone."""
    model, given = telling(name, attention=attention), pairs(3)
    packed, alone = (make_batch(model.layout, rows) for rows in ([given], [[p] for p in given]))
    params = random_told(model)
    expected, found = (apply(model, params, batch) for batch in (alone, packed))
    for number, row in enumerate(expected):
        here = packed["target_segment_ids"][0] == number + 1
        np.testing.assert_allclose(found[0, here], row[: here.sum()], atol=ATOL)
    other = alone | {"target_lang": 3 - alone["target_lang"]}
    assert np.abs(apply(model, params, other) - expected).max() > 0.01


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_told_what_training_is(name):
    """With beams that change places: each has the language of its sentence, at every step."""
    model = telling(name)
    batch = make_batch(model.layout, [[pair] for pair in pairs(3)], LENGTHS)
    params = random_told(model)
    logits = apply(model, params, batch)
    static = {key: array for key, array in batch.items() if not key.startswith("target_")}
    static["target_lang"] = batch["target_lang"]
    steps = int((batch["target_segment_ids"] != 0).sum(axis=1).min())
    options = {"beam": 2, "max_steps": steps, "method": "prefill"}
    cache = jax.tree.map(jnp.asarray, apply(model, params, static, **options))
    step = jax.jit(lambda p, t, c: model.apply({"params": p}, t, c, method="step"))
    for number in range(steps):
        tokens = jnp.repeat(batch["target_tokens"][:, number, None], 2, axis=1)
        found, cache = step(params, tokens, cache)
        cache = reorder(cache, jnp.asarray([[1, 0]] * 3))
        for beam in range(2):
            np.testing.assert_allclose(found[:, beam], logits[:, number], atol=ATOL)


def test_a_mesh_changes_nothing_of_it():
    model = telling("register", heads=4)
    batch = make_batch(model.layout, [[pair] for pair in pairs(8)])
    params = random_told(model)
    assert_same_on_a_mesh(model, params, batch, Mesh(fsdp=4), atol=ATOL)


def test_a_batch_without_languages_is_enough_until_a_layer_asks():
    batch = unpacked(LAYOUTS["register"], random_pairs(2))
    with pytest.raises(ValueError, match="a layer asks for 'source_lang'"):
        jax.eval_shape(telling("register").init, jax.random.key(0), batch)


def test_a_network_has_the_configuration_of_its_layers():
    """Fields that only the network reads may differ."""
    batch = unpacked(LAYOUTS["register"], random_pairs(2))
    model = build_model(small_config("register"), VOCAB)
    config = dataclasses.replace(model.config, remat=True, attention="dense")
    jax.eval_shape(model.clone(config=config).init, jax.random.key(0), batch)
    config = dataclasses.replace(model.config, dtype="bfloat16")
    with pytest.raises(UserError, match="sublayer 'stage_0_norm' has `Model` settings of its own"):
        jax.eval_shape(model.clone(config=config).init, jax.random.key(0), batch)


def without_residual(model: Network, changed: int) -> Network:
    """The same parameters; the feed-forward change of one layer takes the states' place."""

    def edit(number: int, layer: Layer) -> Layer:
        *others, mlp = layer
        return (*others, dataclasses.replace(mlp, residual=number != changed))

    return model.clone(plan=model.plan.with_layers(edit))


def test_a_layer_without_its_residual_is_not_looped_as_one_with(monkeypatch):
    plain = build_model(small_config("prefix", stage_layers=(4,)), VOCAB)
    changed = without_residual(plain, 2)
    batch = unpacked(LAYOUTS["prefix"], random_pairs(2))
    params = random_params(plain)
    shapes = jax.eval_shape(changed.init, jax.random.key(0), batch)["params"]
    assert jax.tree.structure(shapes) == jax.tree.structure(params)
    expected = apply(changed, params, batch)
    monkeypatch.setattr(layer_stack, "_LOOPED_FROM", 3)
    for model, is_looped in ((plain, True), (changed, False)):
        program = str(jax.make_jaxpr(model.apply)({"params": params}, batch))
        assert ("scan" in program) == is_looped
    np.testing.assert_array_equal(apply(changed, params, batch), expected)
    assert np.abs(apply(plain, params, batch) - expected).max() > 0.01
