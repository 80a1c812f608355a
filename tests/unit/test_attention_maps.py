"""Attention maps: the model's own weights, the drawn masks, and a softmax by hand."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.model.attention import core
from mnmt_jax.model.attention_weights import attention_specs, attention_weights
from tests.drawn_masks import read_pictures
from tests.property.test_model import row_of
from tests.sample_batches import make, small_config

NAMES = ("encoder_decoder", "encoder_decoder_register", "register", "two_stage_trigger")
ATOL = 1e-6


def case(name: str):
    """Return a model, its parameters, a row, and the drawn masks."""
    stages, edges = read_pictures(name)
    layout = LAYOUTS[name].with_layers(small_config(name).stage_layers)
    batch = row_of(layout, stages)
    model, params = make(small_config(name, norm="post", attention="dense"))
    return model, params, batch, stages, edges


@pytest.mark.parametrize("name", NAMES)
def test_maps_equal_the_attention_weights_of_the_model(name, monkeypatch):
    model, params, batch, pictures, edges = case(name)
    specs = attention_specs(model.plan)
    actual = jax.tree.map(np.asarray, attention_weights(params, batch, model=model, specs=specs))
    weights_of_model = list(weights_of_forward(model, params, batch, monkeypatch))
    maps = dict(zip(specs, actual, strict=True))
    compared = number = 0
    for part, picture in zip(model.plan.stages, pictures, strict=True):
        for _ in part.layers:
            number += 1
            layer_specs = [spec for spec in specs if spec.layer == number]
            joined, memory = (
                weights_of_model.pop(0),
                weights_of_model.pop(0) if part.stage.memory else None,
            )
            for spec in layer_specs:
                cross = "cross" in spec.title
                drawn = (
                    edges[0].matrix
                    if cross
                    else np.concatenate([picture.block(spec.query, key) for key in spec.keys], 1)
                )
                expected = memory if cross else cut(joined, part.stage, spec, batch)
                real = batch[f"{spec.query}_segment_ids"][0] != 0
                weights = maps[spec][0][:, real]
                np.testing.assert_allclose(weights, expected[0][:, real], atol=ATOL)
                np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=ATOL)
                seen = np.broadcast_to(drawn[real], weights.shape)
                assert (weights[~seen] == 0).all() and (weights[seen] > 0).all()
                compared += weights.size
    assert not weights_of_model and compared > 150


def weights_of_forward(model, params, batch, monkeypatch):
    """Return the softmax weights of the model's forward pass, in the order of its layers."""
    recorded, plain = [], core.masked_softmax

    def taking(logits, mask):
        recorded.append(plain(logits, mask))
        return recorded[-1]

    monkeypatch.setattr(core, "masked_softmax", taking)
    with jax.disable_jit():  # layers alike are traced once, and one of a trace is not to be had
        model.apply({"params": params}, batch)
    monkeypatch.undo()
    return [np.asarray(each) for each in recorded]


def cut(joined, stage, spec, batch):
    """Return the weights of a map's queries and keys from those over the whole row of a stage."""
    ends = np.cumsum([batch[f"{role}_tokens"].shape[1] for role in stage.roles])
    spans = {
        role: range(end - batch[f"{role}_tokens"].shape[1], end)
        for role, end in zip(stage.roles, ends, strict=True)
    }
    columns = [column for key in spec.keys for column in spans[key]]
    return joined[:, :, list(spans[spec.query])][..., columns]


def test_the_first_layer_equals_a_softmax_by_hand():
    """In NumPy from the parameters: without sines and scale it reads the embeddings."""
    stages, _ = read_pictures("encoder_decoder")
    layout = LAYOUTS["encoder_decoder"].with_layers((1, 1))
    batch = row_of(layout, stages)
    changes = {"norm": "post", "positions": (), "embedding_scale": False}
    model, params = make(small_config("encoder_decoder", stage_layers=(1, 1), **changes))
    first = attention_specs(model.plan)[0]
    assert (first.title, first.query, first.layer) == ("encoder self-attention", "source", 1)
    (actual,) = attention_weights(params, batch, model=model, specs=(first,))
    of, vectors = params["layer_0"]["attention"], np.asarray(params["embedding"], np.float64)
    states = vectors[batch["source_tokens"][0]]
    queries, keys = (
        np.einsum("lm,mhd->lhd", states, of[name]["kernel"]) + np.asarray(of[name]["bias"])
        for name in ("query", "key")
    )
    logits = np.einsum("qhd,khd->hqk", queries, keys) / np.sqrt(queries.shape[-1])
    ids = batch["source_segment_ids"][0]
    exponents = np.exp(logits) * (ids[:, None] == ids[None])
    expected = exponents / exponents.sum(axis=-1, keepdims=True)
    real = ids != 0
    assert real.sum() == 3
    np.testing.assert_allclose(np.asarray(actual)[0][:, real], expected[:, real], atol=1e-5)


def test_every_map_is_titled():
    titles = {}
    for name in ("encoder_decoder", "register", "two_stage_trigger"):
        model, *_ = case(name)
        specs = attention_specs(model.plan)
        titles[name] = [(p.layer, p.title, p.query, p.keys) for p in specs]
    source, target = ("source",), ("target",)
    assert titles["encoder_decoder"][1:4] == [
        (2, "encoder self-attention", "source", source),
        (3, "decoder self-attention", "target", target),
        (3, "decoder cross-attention", "target", source),
    ]
    assert titles["register"][:3] == [
        (1, "self-attention", "source", source),
        (1, "self-attention", "register", ("source", "register")),
        (1, "self-attention", "target", ("register", "target")),
    ]
    assert [len([t for t in titles["two_stage_trigger"] if t[0] == n]) for n in (1, 3)] == [1, 3]
