"""Decoding on all devices of a process: what one device finds, however they are arranged."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from mnmt_jax.config.sections import Mesh, Model
from mnmt_jax.decoding import continuous_batching
from mnmt_jax.decoding.language_model import LanguageModel
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.distributed import local
from mnmt_jax.errors import UserError
from tests.unit.made_language_model import made_language_model, write_made_run
from tests.unit.made_translator import (
    LINES,
    assert_alike,
    assert_equal_scores,
    disturbed_translators,
    made_translator,
)

GIVEN = {"source": "en", "target": ["fr", "de", "fr", "de", "fr", "de", "fr"]}
MANY = [line[: 9 + 4 * (place % 5)] for place, line in enumerate(LINES * 3)]
INTO = {"source": "en", "target": ["fr", "de", "en"] * 7}
TRAINED_ON = Mesh(fsdp=3, tensor=5)  # devices that are not here


@pytest.fixture(autouse=True)
def all_devices(one_local_device, monkeypatch):
    monkeypatch.setattr(local, "local_devices", jax.local_devices)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    translator = made_translator(layout="encoder_decoder")
    config = dataclasses.replace(translator.config, mesh=TRAINED_ON)
    translator = Translator(config, translator.vocabulary, translator.inference_model.params)
    return write_made_run(tmp_path_factory.mktemp("runs") / "run", translator)


@pytest.mark.parametrize("mesh", [(), ("Mesh.fsdp=2", "Mesh.tensor=2")], ids=str)
@pytest.mark.parametrize("contrast", [0.0, 0.4])
def test_eight_devices_translate_and_score_as_one(mesh, contrast, run):
    alone = Translator.load(run, mesh=None)
    together = Translator.load(run, bindings=mesh)
    assert dict(together.inference_model.mesh.shape)["data"] == (2 if mesh else 8)
    asked = {**GIVEN, "source_contrast": contrast}
    expected = alone.translate_nbest(LINES, **asked)
    assert len({translation.text for translation in expected}) > 3
    disturbed = disturbed_translators(alone)
    moved = [model.translate_nbest(LINES, **asked) for model in disturbed]
    assert_alike(together.translate_nbest(LINES, **asked), expected, moved)
    references = [translation.text for translation in expected]
    actual, score, *others = (
        model.score(LINES, references, **GIVEN) for model in (together, alone, *disturbed)
    )
    assert_equal_scores(actual, score, others)


def test_eight_devices_translate_with_a_glossary_as_one(run):
    glossary = {"house": ["drei", "Haus und"], "two": "!deux"}
    alone = Translator.load(run, mesh=None)
    expected = alone.translate_nbest(LINES, **GIVEN, glossary=glossary)
    together = Translator.load(run, bindings=["Mesh.fsdp=2", "Mesh.tensor=2"])
    moved = [
        model.translate_nbest(LINES, **GIVEN, glossary=glossary)
        for model in disturbed_translators(alone)
    ]
    assert_alike(together.translate_nbest(LINES, **GIVEN, glossary=glossary), expected, moved)
    plain = alone.translate_nbest(LINES, **GIVEN)
    assert [one == other for one, other in zip(expected, plain, strict=True)].count(False) > 3


def test_eight_devices_translate_with_int8_as_one(run):
    bindings = ["Decode.weights='int8'"]
    alone = Translator.load(run, mesh=None, bindings=bindings)
    expected = alone.translate_nbest(LINES, **GIVEN)
    for mesh in (("Mesh.tensor=2",), ("Mesh.fsdp=2", "Mesh.tensor=2")):
        together = Translator.load(run, bindings=[*bindings, *mesh])
        assert_alike(together.translate_nbest(LINES, **GIVEN), expected)
    layer = together.inference_model.params["layer_0"]
    for kernel, inputs in (
        (layer["mlp"]["wi"]["kernel"], 1),
        (layer["attention"]["query"]["kernel"], 1),
        (layer["attention"]["out"]["kernel"], 2),
    ):
        values, scale = (
            each.sharding.shard_shape(each.shape) for each in (kernel.values, kernel.scale)
        )
        assert scale == values[inputs:] and values != kernel.values.shape
    stored = Translator.load(run, mesh=None).translate_nbest(LINES, **GIVEN)
    assert [each.score for each in stored] != [each.score for each in expected]


def test_eight_devices_translate_with_an_ensemble_as_one(run, tmp_path):
    """In int8, and ranked by chrF."""
    second = made_translator(layout="encoder_decoder", changes=(("mlp", 40),))
    write_made_run(tmp_path / "second", second)
    bindings = [f"Decode.ensemble=('{tmp_path}/second',)", "Decode.weights='int8'"]
    asked = {**GIVEN, "utility": "chrf"}
    alone = Translator.load(run, mesh=None, bindings=bindings)
    expected = alone.translate_nbest(LINES, **asked)
    together = Translator.load(run, bindings=[*bindings, "Mesh.fsdp=2", "Mesh.tensor=2"])
    assert_alike(together.translate_nbest(LINES, **asked), expected)
    one = Translator.load(run, mesh=None, bindings=bindings[1:]).translate_nbest(LINES, **asked)
    assert [each.score for each in one] != [each.score for each in expected]


@pytest.mark.parametrize("layout", ["causal_lm", "masked_lm"])
def test_eight_devices_read_and_draw_text_as_one(layout, tmp_path):
    run = write_made_run(tmp_path / "run", made_language_model(layout))
    alone, together = LanguageModel.load(run, mesh=None), LanguageModel.load(run)
    assert together.inference_model.mesh.size == 8
    found, expected = (each.score(LINES[:3], language="en") for each in (together, alone))
    np.testing.assert_allclose(
        *([s.log_prob for s in each] for each in (found, expected)), rtol=1e-5
    )
    if layout == "causal_lm":
        drawn = [each.sample(LINES[:2], language="en", count=3) for each in (together, alone)]
        assert drawn[0] == drawn[1] and len(set(drawn[0])) > 3


def test_parameters_are_split_where_a_device_has_no_room_for_them(run, monkeypatch):
    model, local_room = Model(heads=4, mlp=24), local._room
    shapes = {}
    for size in (10, 11, 21, 1000):
        monkeypatch.setattr(local, "_room", lambda device, **_: 10)
        shapes[size] = tuple(
            local.local_mesh(Mesh(), (model.heads, model.mlp), size).shape.values()
        )
    assert shapes == {10: (8, 1, 1), 11: (4, 1, 2), 21: (2, 1, 4), 1000: (2, 1, 4)}
    memory = types.SimpleNamespace(memory_stats=lambda: {"bytes_limit": 100, "bytes_in_use": 60})
    rooms = [local_room(memory, count_used_memory=counted) for counted in (False, True)]
    assert rooms == [50, 20]
    monkeypatch.setattr(local, "_room", lambda device, **_: 1)
    split = Translator.load(run)
    assert dict(split.inference_model.mesh.shape) == {"data": 4, "fsdp": 1, "tensor": 2}
    wi = split.inference_model.params["layer_0"]["mlp"]["wi"]["kernel"]
    assert wi.sharding.shard_shape(wi.shape)[1] == wi.shape[1] // 2
    alone = Translator.load(run, mesh=None)
    expected, *moved = (
        model.translate_nbest(LINES, **GIVEN) for model in (alone, *disturbed_translators(alone))
    )
    assert_alike(split.translate_nbest(LINES, **GIVEN), expected, moved)


@pytest.mark.parametrize("mesh", [(), ("Mesh.fsdp=2", "Mesh.tensor=2")], ids=str)
def test_sentences_take_turns_on_eight_devices(mesh, run):
    """In one program, though a free row may be on another device than who waits for it."""
    given = {
        "bindings": (
            *mesh,
            "Decode.batch=16",
            "Decode.max_length=16",
            "Decode.max_length_per_source=1.0",
        )
    }
    alone = Translator.load(run, mesh=None, **given)
    expected, *moved = (
        model.translate_nbest(MANY, **INTO) for model in (alone, *disturbed_translators(alone))
    )
    together = Translator.load(run, **given)
    before = continuous_batching._admit_and_search._cache_size()
    found = together.translate_nbest(MANY, **INTO)
    assert continuous_batching._admit_and_search._cache_size() - before == 1
    assert len({translation.text for translation in expected}) > 10
    assert_alike(found, expected, moved)


def test_a_mesh_that_does_not_divide_the_devices_is_refused(run):
    with pytest.raises(UserError, match="Mesh.fsdp=3 x Mesh.tensor=1 must divide the 8 devices"):
        Translator.load(run, bindings=["Mesh.fsdp=3"])
