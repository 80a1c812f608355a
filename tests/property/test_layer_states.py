"""States of layers and alignment, of models: against logits, by hand, and sentence by sentence."""

from __future__ import annotations

import functools
import math
import types

import jax
import numpy as np
import pytest

from mnmt_jax.analysis import probe_features
from mnmt_jax.analysis import teacher_forcing as forced_batches
from mnmt_jax.analysis.attention_statistics import TOKEN_GROUPS, attention_statistics
from mnmt_jax.analysis.layer_states import (
    compute_layer_states,
    mean_states,
    sentence_states,
    state_locations,
)
from mnmt_jax.analysis.parallel_sentences import to_own_language
from mnmt_jax.analysis.probe_features import cached_features
from mnmt_jax.analysis.projection_2d import ProjectionSettings, project_states, run_tsne
from mnmt_jax.analysis.teacher_forcing import iterate_batches, make_forced_sentences
from mnmt_jax.data.instruction import INSTRUCTIONS
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.design.objective import States
from mnmt_jax.errors import UserError
from mnmt_jax.model.attention_weights import attention_specs, attention_weights
from mnmt_jax.model.network import build_model
from tests.random_params import MILD, random_params
from tests.sample_batches import small_config
from tests.unit.made_text import sentences, vocabulary

ATOL = 2e-5
LONGEST = 64
READ = ("source", "register", "target")
PAIRS = (("de", "en"), ("fr", "en"))


@functools.cache
def case(name):
    """A model with a vocabulary, and a few sentences, one direction with more than the other."""
    known = vocabulary()
    model = build_model(small_config(name, norm="pre"), known.size)
    params = random_params(model, moments=MILD)
    inference_model = InferenceModel(
        model, params, known, INSTRUCTIONS["register" if "reg" in name else "1"]
    )
    translator = types.SimpleNamespace(vocabulary=known)
    every = [
        make_forced_sentences(
            translator, pair, sentences(pair[0], count), sentences(pair[1], count)
        )
        for pair, count in zip(PAIRS, (3, 2), strict=True)
    ]
    return inference_model, every, state_locations(model.plan, READ), translator


@pytest.mark.parametrize("name", ["register", "encoder_decoder"])
def test_states_are_those_of_the_model(name):
    inference_model, every, places, _ = case(name)
    model, params = inference_model.model, inference_model.params
    rows = next(iterate_batches(inference_model, every, LONGEST))
    found = compute_layer_states(params, rows.batch, model=model, locations=places)
    states = dict(zip(places, map(np.asarray, found), strict=True))
    # What the target ends with gives the logits.
    end = states[States(model.layout.layers, "target", ended=True)]
    logits = np.asarray(jax.jit(model.apply)({"params": params}, rows.batch))
    table = np.asarray(params["embedding"])
    np.testing.assert_allclose(end @ table.T, logits, atol=1e-4)
    # The end is a norm of the layer before it, and layer 0 the embedding with fairseq's rows.
    last = states[States(model.layout.layers, "target")].astype(np.float64)
    norm = jax.tree.map(np.asarray, params[f"stage_{len(model.layout.stages) - 1}_norm"])
    centred = last - last.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(scaled * norm["scale"] + norm["bias"], end, atol=1e-4)
    embed = table.shape[1]
    rates = 10000.0 ** -(np.arange(embed // 2) / (embed // 2 - 1))
    angles = (rows.batch["source_positions"][..., None] + 2) * rates
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    expected = table[rows.batch["source_tokens"]] * math.sqrt(embed) + waves
    np.testing.assert_allclose(states[States(0)], expected, atol=ATOL)
    # The mean of each sentence, of the batch and of the sentence by itself.
    means = sentence_states(inference_model, every, LONGEST, places)
    assert [each.shape[0] for each in means.values()] == [3, 2]
    for number, place in enumerate(places):
        valid = rows.batch[f"{place.role}_segment_ids"][1] != 0
        by_hand = states[place][1][valid].mean(axis=0)
        np.testing.assert_allclose(means[every[0]][1, number], by_hand, atol=ATOL)
    (one,) = (each for each in iterate_batches(inference_model, [every[1]], LONGEST))
    alone = {name: array[1:2] for name, array in one.batch.items()}
    alone = np.asarray(mean_states(params, alone, model=model, locations=places))
    np.testing.assert_allclose(means[every[1]][1], alone[0], atol=ATOL)


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_every_layout_has_states_and_alignment(name):
    """By shapes alone: nothing is compiled."""
    inference_model, every, places, _ = case(name)
    model = inference_model.model
    batch = next(iterate_batches(inference_model, every, LONGEST)).batch
    read = functools.partial(mean_states, model=model, locations=places)
    found = jax.eval_shape(read, inference_model.params, batch)
    assert found.shape == (3, len(places), model.config.embed)
    roles = {place.role for place in places}
    assert roles == set(READ) & set(model.layout.embedded_roles())
    passed = {role: model.layout.layers_with(role) for role in roles}
    for role, layers in passed.items():
        plain = [p.layer for p in places if p.role == role and not p.ended]
        assert plain == [0, *layers]
    reading = [p for p in attention_specs(model.plan) if p.query == "target"]
    assert any({"source", "register"} & set(p.keys) for p in reading)


def test_layers_that_are_not_there_are_refused():
    inference_model, every, _, _ = case("encoder_decoder")
    with pytest.raises(UserError, match="no source states after layer 3; choose from 0, 1, 2$"):
        state_locations(inference_model.model.plan, ("source", "register"), (1, 3))
    with pytest.raises(
        UserError, match="in layer 2 only the source attends to .* choose from 3, 4$"
    ):
        attention_statistics(inference_model, every, LONGEST, (2,))


def test_alignment_is_read_off_the_weights():
    inference_model, every, _, _ = case("register")
    found = attention_statistics(inference_model, every, LONGEST)["directions"]
    assert [(f["source"], f["sentences"]) for f in found] == [("de", 3), ("fr", 2)]
    told = [(one["layer"], one["query"], list(one["choices"])) for one in found[0]["layers"]]
    assert told == [
        (1, "register", ["source"]),
        (1, "target", ["register"]),
        (2, "register", ["source"]),
        (2, "target", ["register"]),
    ]
    for one in found[0]["layers"]:
        assert sum(one["mass"].values()) == pytest.approx(1)
        own = {"register": {*TOKEN_GROUPS, "register"}, "target": {"register", "target"}}
        assert one["mass"].keys() == own[one["query"]]
    # The registers of layer 2 and the tag, by loops over the second direction.
    (place,) = [
        p
        for p in attention_specs(inference_model.model.plan)
        if (p.layer, p.query) == (2, "register")
    ]
    rows = next(iterate_batches(inference_model, [every[1]], LONGEST))
    (weights,) = attention_weights(
        inference_model.params, rows.batch, model=inference_model.model, specs=(place,)
    )
    tags, firsts = [], []
    for sentence in range(2):
        length = int((rows.batch["source_segment_ids"][sentence] != 0).sum())
        heads = np.asarray(weights)[sentence].mean(axis=0)
        tags.append(np.mean([heads[register, 0] for register in range(length)]))
        firsts.append(np.mean([max(heads[register, :length]) for register in range(length)]))
    assert found[1]["layers"][2]["mass"]["tag"] == pytest.approx(np.mean(tags), rel=1e-5)
    first = found[1]["layers"][2]["choices"]["source"]["first"]
    assert first == pytest.approx(np.mean(firsts), rel=1e-5)


def test_features_are_of_every_source_token_and_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr(forced_batches, "_ROWS", 2)  # several batches, one of them not full
    inference_model, every, _, _ = case("encoder_decoder")
    again = make_forced_sentences(
        case("encoder_decoder")[3], ("de", "fr"), every[0].sources, every[0].targets
    )
    every = [*every, again]
    places = state_locations(inference_model.model.plan, ("source",), (1, 2))
    asked = {"max_length": LONGEST, "locations": places}
    found = cached_features(
        tmp_path, inference_model, every, **asked, provenance={"split": "test", "p": 1}
    )
    counts = [len(one.source) + 2 for forced in every for one in forced.examples]
    assert len(found.ids) == sum(counts) == len(found.states(0))
    assert found.positions.tolist() == [p for count in counts for p in range(count)]
    starts = np.cumsum([0, *counts[:-1]])
    assert set(found.ids[starts].tolist()) == {
        inference_model.vocabulary.tag_id(c) for c in ("en", "fr")
    }
    # The texts of de -> fr are those of de -> en.
    assert found.texts[starts].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    rows = next(iterate_batches(inference_model, [every[1]], LONGEST))
    states = compute_layer_states(
        inference_model.params, rows.batch, model=inference_model.model, locations=places
    )
    own = slice(starts[4], starts[4] + counts[4])
    for number in range(len(places)):
        expected = np.asarray(states[number])[1, : counts[4]]
        np.testing.assert_allclose(found.states(number)[own], expected, atol=ATOL)

    def refuse(*given):
        raise AssertionError("extracted again")

    monkeypatch.setattr(probe_features, "_extract", refuse)
    same = cached_features(
        tmp_path, inference_model, every, **asked, provenance={"split": "test", "p": 1}
    )
    assert same.digest == found.digest
    np.testing.assert_array_equal(same.states(1), found.states(1))
    for changed in ({"provenance": {"split": "test", "p": 2}}, {"max_length": LONGEST - 1}):
        given = {**asked, "provenance": {"split": "test", "p": 1}, **changed}
        with pytest.raises(AssertionError, match="extracted again"):
            cached_features(tmp_path, inference_model, every, **given)
    assert len(list(tmp_path.iterdir())) == 1  # what failed has left nothing


def test_sentences_go_into_their_own_language_once():
    _, every, _, translator = case("encoder_decoder")
    (pair, source, target), second = to_own_language(translator, every)
    assert pair is every[0] and source.direction == ("de", "de")
    assert target.direction == ("en", "en") and target.sources == pair.targets
    assert [e.target_lang for e in target.examples] == [e.source_lang for e in target.examples]
    assert second[2] is not target and len(second[2].examples) == 2
    first, again = to_own_language(translator, [pair, pair])
    assert first[1] is again[1] and first[2] is again[2]


def test_planes_have_the_points_of_each_class():
    inference_model, every, _, _ = case("encoder_decoder")
    places = state_locations(inference_model.model.plan, ("source",), (1,))
    found = project_states(inference_model, every, LONGEST, places)["planes"]
    assert [(p["layer"], p["ended"]) for p in found] == [(1, False)]
    pooled = sentence_states(inference_model, every, LONGEST, places)
    expected = run_tsne(np.concatenate([pooled[each][:, 0] for each in every]))
    points = [c["points"] for c in found[0]["classes"]]
    np.testing.assert_allclose(points[0], expected[:3], atol=1e-3)
    np.testing.assert_allclose(points[1], expected[3:], atol=1e-3)
    tokens = project_states(
        inference_model, every, LONGEST, places, ProjectionSettings(tokens=True)
    )["planes"]
    sizes = [sum(len(one.source) + 2 for one in forced.examples) for forced in every]
    assert [len(c["points"]) for c in tokens[0]["classes"]] == sizes
    with pytest.raises(UserError, match="^2 points are too few for t-SNE, which needs 4"):
        project_states(inference_model, [every[1]], LONGEST, places)
