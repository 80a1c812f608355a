"""The target's tag biases what the last encoder layers read, and nothing else."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config.sections import Mesh
from mnmt_jax.design.objective import States
from mnmt_jax.errors import UserError
from mnmt_jax.methods.lcs import LCS
from mnmt_jax.model.network import build_model
from tests.applied import apply, assert_same_on_a_mesh
from tests.property.test_contrastive_model import VOCABULARY, make_batch
from tests.property.test_plan import pairs
from tests.random_params import MILD, random_params
from tests.sample_batches import small_config

ATOL = 2e-5
METHOD = LCS(VOCABULARY.languages)


def make(method: LCS | None = METHOD, name: str = "encoder_decoder", **changes):
    sizes = {"stage_layers": (3, 1)} if name == "encoder_decoder" else {}
    methods = (method,) if method else ()
    return build_model(small_config(name, methods=methods, **sizes, **changes), VOCABULARY.size)


def given(rows):
    model = make(None)
    batch = make_batch(model.layout, rows)
    return batch, random_params(model, moments=MILD)


@pytest.mark.parametrize(
    ("method", "biased"),
    [
        (METHOD, (2, 3)),
        (dataclasses.replace(METHOD, inject="once"), (2,)),
        (dataclasses.replace(METHOD, first=1), (1, 2, 3)),
        (dataclasses.replace(METHOD, first=3, scaled=False), (3,)),
    ],
)
def test_states_are_those_of_layers_that_are_given_biased_ones(method, biased):
    """By hand: each layer applied by itself to states plus the tag's row of the table."""
    batch, params = given([[pair] for pair in pairs(3)])
    reads = tuple(States(layer) for layer in (1, 2, 3))
    found = apply(make(method), params, batch, reads, method="states")
    table = np.asarray(params["embedding"])
    rows = table[VOCABULARY.tag_ids[np.asarray(batch["target_lang"])[:, 0]]]
    bias = rows[:, None] * (table.shape[1] ** 0.5 if method.scaled else 1.0)
    plain = make(None)
    spans = ("tokens", "positions", "segment_ids")
    static = {f"source_{kind}": batch[f"source_{kind}"] for kind in spans}

    def one_layer(params, states, number):
        context = plain.apply({"params": params}, static, True, method="_context")
        bound = plain.bind({"params": params})
        stage = dataclasses.replace(bound.plan.static()[0].stage, layers=1)
        attention = bound._attention(stage, {}, context.segment_ids)
        within = dataclasses.replace(context, attention=attention)
        return bound.layer[number]({"source": states}, within)[0]["source"]

    run = jax.jit(one_layer, static_argnums=2)
    states = plain.apply({"params": params}, static, ["source"], method="_embed_spans")["source"]
    valid = np.asarray(batch["source_segment_ids"]) != 0
    for number, expected in enumerate(found):
        states = run(params, states + bias if number + 1 in biased else states, number)
        np.testing.assert_allclose(np.asarray(states)[valid], expected[valid], atol=ATOL)


def test_packed_beside_other_languages_it_is_what_it_is_alone():
    alone, params = given([[pair] for pair in pairs(3)])
    packed = make_batch(make().layout, [pairs(3)])
    expected, found = (apply(make(), params, batch) for batch in (alone, packed))
    for number, row in enumerate(expected):
        here = packed["target_segment_ids"][0] == number + 1
        np.testing.assert_allclose(found[0, here], row[: here.sum()], atol=ATOL)
    plain = apply(make(None), params, alone)
    assert np.abs(plain - expected).max() > 0.01


@pytest.mark.parametrize("name", ["encoder_decoder", "register"])
def test_a_step_reads_what_prefill_biased(name):
    model = make(name=name)
    batch = make_batch(model.layout, [[pair] for pair in pairs(3)])
    params = random_params(model, moments=MILD)
    logits = apply(model, params, batch)
    static = {key: array for key, array in batch.items() if not key.startswith("target_")}
    static["target_lang"] = batch["target_lang"]
    cache = apply(model, params, static, beam=1, max_steps=2, method="prefill")
    step = jax.jit(lambda p, t, c: model.apply({"params": p}, t, c, method="step"))
    for number in range(2):
        tokens = batch["target_tokens"][:, number, None]
        found, cache = step(params, tokens, jax.tree.map(jnp.asarray, cache))
        np.testing.assert_allclose(found[:, 0], logits[:, number], atol=ATOL)


def test_a_mesh_changes_nothing():
    model = make(heads=4)
    batch = make_batch(model.layout, [[pair] for pair in pairs(8)])
    params = random_params(model, moments=MILD)
    assert_same_on_a_mesh(model, params, batch, Mesh(fsdp=2, tensor=2), atol=ATOL)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"languages": ()}, r"LCS.languages=\(\): name the vocabulary's languages"),
        ({"first": 4}, "LCS.first=4: the first stage of layout 'encoder_decoder' has 3 layers"),
    ],
)
def test_mistakes_are_one_line(changes, message):
    with pytest.raises(UserError, match=message) as caught:
        make(dataclasses.replace(METHOD, **changes))
    assert "\n" not in str(caught.value)
