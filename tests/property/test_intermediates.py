"""What sublayers hand out: read by its path, and absent from the program when nobody reads it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.design.objective import Intermediate, States
from mnmt_jax.design.plan import Layer
from mnmt_jax.errors import UserError
from mnmt_jax.methods import language_layers
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.model import layer_stack as model_module
from mnmt_jax.model import sublayers
from mnmt_jax.model.forward_passes import ForwardPasses
from mnmt_jax.model.intermediates import KEYS, QUERIES, record
from mnmt_jax.model.network import Network, build_model
from mnmt_jax.model.sublayers import FeedForward
from tests.random_params import random_params
from tests.sample_batches import VOCAB, random_pairs, small_config, unpacked

LAYERS = 4  # two of a loop, and the two that never are
TAPS = Intermediate("layer_1/mlp/likeness"), Intermediate("layer_2/mlp/likeness")


class Handing(FeedForward):
    """A feed-forward that hands out what nothing else needs: how alike its states are."""

    def change(self, states, place):
        record(self, place, "likeness", jnp.einsum("bqm,bkm->bqk", states, states))
        return super().change(states, place)


def handing(layer: Layer) -> Layer:
    (*rest, mlp) = layer
    return *rest, dataclasses.replace(mlp, kind=Handing(mlp.kind.config, mlp.kind.hidden))


@pytest.fixture(scope="module")
def case():
    """A plain model, the same with intermediates, parameters of both, and a batch."""
    config = small_config("prefix", stage_layers=(LAYERS,), norm="post")
    plain = build_model(config, VOCAB)
    plan = plain.plan.with_layers(lambda number, layer: handing(layer))
    batch = unpacked(LAYOUTS["prefix"], random_pairs(3))
    params = random_params(plain)
    return plain, Network(config, plan, VOCAB), params, batch


def compiled(model: Network, params, batch, reads=()):
    def run(params, batch):
        passes = ForwardPasses(model, params, batch, requests=reads)
        return passes.features, [passes.read(each) for each in reads]

    return jax.jit(run).lower(params, batch).compile()


def test_nothing_is_left_of_what_nobody_reads(case):
    plain, model, params, batch = case
    expected, found = (compiled(each, params, batch) for each in (plain, model))
    assert found.cost_analysis()["flops"] == expected.cost_analysis()["flops"]
    assert found.as_text().count(" dot(") == expected.as_text().count(" dot(")
    read = compiled(model, params, batch, TAPS)
    assert read.cost_analysis()["flops"] > expected.cost_analysis()["flops"]


def test_the_layers_own_intermediates_are_no_part_of_a_program_that_reads_none(monkeypatch):
    """Word by word: queries and keys of attention, and what enters a feed-forward with branches."""
    method = LanguageLayers(("en", "de"), mlp=8, dropout=0.0)
    model = build_model(small_config("encoder_decoder", methods=(method,)), VOCAB)
    batch = unpacked(LAYOUTS["encoder_decoder"], random_pairs(3))
    batch |= {"target_lang": np.ones((3, 1), np.int32)}
    params = random_params(model)
    own = tuple(Intermediate(f"layer_1/attention/{each}") for each in (QUERIES, KEYS))

    def program(reads=()):
        def run(params, batch):
            passes = ForwardPasses(model, params, batch, requests=reads)
            return passes.features, [passes.read(each) for each in reads]

        return jax.jit(run).lower(params, batch).as_text()

    plain, reading = program(), program(own)
    for module in (sublayers, language_layers):
        monkeypatch.setattr(module, "record", lambda *given: None)
    assert program() == plain != reading


@pytest.mark.parametrize("remat", [False, True])
def test_what_is_read_is_what_was_handed_out(remat, case):
    """With norms after, the states that enter a layer's feed-forward are not those that leave."""
    _, model, params, batch = case
    model = model.clone(config=dataclasses.replace(model.config, remat=remat))
    reads = (*TAPS, Intermediate(TAPS[0].path, "target"), States(2))
    features, found = compiled(model, params, batch, reads)(params, batch)
    source, target = (batch[f"{role}_tokens"].shape[1] for role in ("source", "target"))
    shapes = [array.shape for array in found]
    assert shapes == [(3, source, source)] * 2 + [(3, target, target), (3, source, 16)]
    assert np.abs(np.asarray(found[0]) - np.asarray(found[1])).max() > 0.1
    expected = compiled(model, params, batch)(params, batch)[0]
    np.testing.assert_array_equal(features, expected)


def test_a_loop_is_none_where_something_is_read(case, monkeypatch):
    """A loop hands nothing out: its layers run one by one then, and compute the same."""
    monkeypatch.setattr(model_module, "_LOOPED_FROM", LAYERS)
    _, model, params, batch = case
    looped = compiled(model, params, batch)
    assert " while(" in looped.as_text()
    read = compiled(model, params, batch, TAPS)
    assert " while(" not in read.as_text()
    np.testing.assert_allclose(read(params, batch)[0], looped(params, batch)[0], atol=2e-5)


def test_what_nobody_hands_out_cannot_be_read(case):
    plain, _, params, batch = case
    with pytest.raises(UserError, match="^Intermediate.'layer_1/mlp/likeness', 'source'.: no subl"):
        compiled(plain, params, batch, TAPS)
