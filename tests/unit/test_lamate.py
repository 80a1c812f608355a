"""LaMaTE: the adaptor's values, what is copied from an encoder, and what is frozen."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from scipy.special import erf

from mnmt_jax.config.sections import Data, Model, Optimizer
from mnmt_jax.design.layouts import LANGUAGE_MODELS, LAYOUTS, encoder_layers
from mnmt_jax.design.objective import States
from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.methods.lamate import LaMaTE
from mnmt_jax.model.flops import Sentence, train_flops
from mnmt_jax.model.network import Network, build_model
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.model.trainable_params import Trainable
from mnmt_jax.runs.parameters import write_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training.initialization import read_initial_params
from mnmt_jax.training.source_runs import SourceRunSpec
from tests.applied import apply
from tests.made_foreign import SIZES
from tests.made_params import assert_same, config_with, flat, write_random_run
from tests.random_params import random_params
from tests.sample_batches import make, random_pairs, small_config, unpacked
from tests.unit.made_text import vocabulary as made_vocabulary

LAYOUT, LM_LAYOUT = "encoder_adaptor_decoder", "lm_adaptor_decoder"
LAYERS = (4, 1, 1)


def model_of(
    group: int = 2, encoder: str = "freeze", layers=LAYERS, layout: str = LAYOUT, **sizes
) -> Model:
    return Model(layout, layers, methods=(LaMaTE(group, encoder),), **(SIZES | sizes))


def norm(states: np.ndarray, params) -> np.ndarray:
    centred = states - states.mean(-1, keepdims=True)
    normed = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5)
    return normed * params["scale"] + params["bias"]


def adaptor(groups, params) -> np.ndarray:
    """Return the input of the EncStack, by the formulas, in float64."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    fusion, mlp = params["adaptor_fusion"], params["adaptor_mlp"]
    gates = 1 / (1 + np.exp(-fusion["weight"]))
    total = sum(gate * np.asarray(h, np.float64) for gate, h in zip(gates, groups, strict=True))
    fused = norm(total / len(groups), params["adaptor_fusion_norm"])
    inner = fused @ mlp["wi"]["kernel"] + mlp["wi"]["bias"]
    inner = inner * (1 + erf(inner / np.sqrt(2))) / 2
    return inner @ mlp["wo"]["kernel"] + mlp["wo"]["bias"]


def enc_stack_input(self: Network, batch) -> jax.Array:
    """The source after the sublayers before the EncStack."""
    *_, layers = self._run(batch, self.plan.stages[:1], True)
    encoder, stack, _ = self.plan.stages
    context = dataclasses.replace(
        self._context(batch, True), layers=tuple(output.spans for output in layers)
    )
    spans, _ = self.apply_sublayers(encoder.after, layers[-1].spans, context)
    return self.apply_sublayers(stack.before, spans, context)[0]["source"]


@pytest.mark.parametrize("ends", ["pre", "post"])
def test_the_enc_stack_reads_the_fused_groups(ends):
    """The last group has the encoder's norm, the others are the residual stream."""
    config = small_config(LAYOUT, stage_layers=LAYERS, norm=ends, methods=(LaMaTE(2),))
    model, params = make(config)
    params["adaptor_fusion"]["weight"] = np.float32([-1.5, 0.7])
    batch = unpacked(LAYOUTS[LAYOUT], random_pairs(2))
    requests = (States(2, "source"), States(4, "source", ended=True))
    groups = apply(model, params, batch, requests, method=Network.states)
    entered = apply(model, params, batch, method=enc_stack_input)
    np.testing.assert_allclose(entered, adaptor(groups, params), atol=1e-5)


def read(run, model: Model, name: str = "encoder", instruction: str = "register"):
    """Return what a new run copies from a run."""
    spec, vocabulary = SourceRunSpec(run, name=name), made_vocabulary()
    shapes = parameter_shapes(model, vocabulary.size)
    config = dataclasses.replace(config_with(model), data=Data(instruction=instruction))
    return read_initial_params([spec], shapes, config, vocabulary)


def new_params(model: Model):
    shapes = parameter_shapes(model, made_vocabulary().size)
    return jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), shapes)


@pytest.mark.parametrize("layout", ["encoder_decoder", "register", "prefix", "two_stage"])
def test_the_encoder_of_any_layout_is_copied(layout, tmp_path):
    """Its source states are those of the run, where the norm at its end is not yet applied."""
    stages = (4, 2)[: len(LAYOUTS[layout].stages)]
    source, model = Model(layout, stages, **SIZES), model_of()
    arrays = write_random_run(tmp_path, source)
    initial = read(tmp_path, model)
    params = initial.replace(new_params(model))
    requests = (States(3, "source"),)

    def states(config: Model, params):
        network = build_model(config, made_vocabulary().size)
        batch = unpacked(LAYOUTS[config.layout], random_pairs(2))
        return apply(network, params, batch, requests, method=Network.states)

    np.testing.assert_allclose(states(model, params), states(source, arrays), atol=1e-5)
    assert_same(params["stage_0_norm"], arrays["stage_0_norm"])
    copied = {name.split("/")[0] for name in initial.sources}
    assert copied == {"embedding", *(f"layer_{n}" for n in range(4)), "stage_0_norm"}


def test_a_causal_language_model_is_copied(tmp_path):
    """Its states of a text are those of a source with the same tokens."""
    source, model = Model("causal_lm", (4,), **SIZES), model_of(layout=LM_LAYOUT)
    arrays = write_random_run(tmp_path, source)
    params = read(tmp_path, model, instruction="5").replace(new_params(model))
    batch = unpacked(LAYOUTS[LM_LAYOUT], random_pairs(2))
    text = {
        name.replace("source", "target"): array
        for name, array in batch.items()
        if name.startswith("source_") and name.replace("source", "target") in batch
    }

    def states(config: Model, params, batch, role: str):
        network = build_model(config, made_vocabulary().size)
        method = Network.features_and_states
        return apply(network, params, batch, (States(3, role),), method=method)[1]

    expected = states(source, arrays, text, "target")
    np.testing.assert_allclose(states(model, params, batch, "source"), expected, atol=1e-5)
    assert_same(params["stage_0_norm"], arrays["stage_0_norm"])


@pytest.mark.parametrize(
    ("layout", "instruction", "message"),
    [
        ("causal_lm", "1", "texts begin with the tag of their language, but sources do not with"),
        ("causal_lm", "3", "Data.instruction='3'; use '5'"),
        ("masked_lm", "5", "its Model.layout is 'masked_lm', but layers of a 'causal_lm'"),
    ],
)
def test_a_run_that_is_no_such_language_model_is_refused(layout, instruction, message, tmp_path):
    config = config_with(Model(layout, (4,), **SIZES))
    tagged = dataclasses.replace(config, data=Data(instruction="3"))
    write_random_run(tmp_path, tagged.model, config=tagged)
    with pytest.raises(UserError, match=f"^--initialize_from=encoder=.*{message}"):
        read(tmp_path, model_of(layout=LM_LAYOUT), instruction=instruction)


def test_a_language_model_of_texts_without_tags_reads_any_source(tmp_path):
    config = config_with(Model("causal_lm", (4,), **SIZES))
    untagged = dataclasses.replace(config, data=Data(instruction="2"))
    write_random_run(tmp_path, untagged.model, config=untagged)
    assert read(tmp_path, model_of(layout=LM_LAYOUT), instruction="3").sources


def test_a_position_table_is_part_of_the_encoder(tmp_path):
    ends = {"positions": ("learned", 40)}
    write_random_run(tmp_path, Model("masked_lm", (4,), **ends, **SIZES))
    model = model_of(**ends)
    assert "embedding_positions" in read(tmp_path, model).sources
    assert "embedding_positions" in LaMaTE().frozen_patterns(model)


@pytest.mark.parametrize(
    ("layout", "stages", "message"),
    [
        ("encoder_decoder", (3, 2), r"has 3 encoder layers, but .*\(4, 1, 1\) copies 4; lower"),
        ("two_stage_trigger", (3, 2), "has 3 encoder layers"),
        ("causal_lm", (4,), "has 0 encoder layers"),
    ],
)
def test_a_run_without_enough_encoder_layers_is_refused(layout, stages, message, tmp_path):
    write_random_run(tmp_path, Model(layout, stages, **SIZES))
    with pytest.raises(UserError, match=f"^--initialize_from=encoder=.*{message}"):
        read(tmp_path, model_of())


def test_an_encoder_of_other_source_tags_is_refused(tmp_path):
    source = config_with(Model("masked_lm", (4,), **SIZES))
    untagged = dataclasses.replace(source, data=Data(instruction="3"))
    write_random_run(tmp_path, untagged.model, config=untagged)
    message = r"no tag \(Data.instruction='3'\), but .*='register' has the tag of the target"
    with pytest.raises(UserError, match=message):
        read(tmp_path, model_of())
    assert read(tmp_path, model_of(), instruction="2").sources  # the same source as 3


def test_encoder_layers_by_layout():
    counts = {
        name: encoder_layers(layout.with_layers((3,) * len(layout.stages)))
        for name, layout in (LAYOUTS | LANGUAGE_MODELS).items()
    }
    assert counts == {
        "causal": 0,
        "prefix": 3,
        "prefix_trigger": 0,
        "register": 3,
        "register_open": 0,
        "two_stage": 6,
        "two_stage_trigger": 3,
        "two_stage_causal": 0,
        "encoder_decoder": 3,
        "encoder_decoder_register": 3,
        "encoder_adaptor_decoder": 6,
        "lm_adaptor_decoder": 0,
        "grafted": 3,
        "causal_lm": 0,
        "masked_lm": 3,
    }


def test_the_second_stage_copies_and_trains_all(tmp_path):
    model = model_of(encoder="tune")
    arrays = random_params(build_model(model, made_vocabulary().size))
    RunDirectory(tmp_path).prepare(config_with(model_of()), made_vocabulary(), has_checkpoint=False)
    write_params(tmp_path, jax.tree.map(LazyArray.of, arrays))
    initial = read(tmp_path, model, name="")
    assert initial.param_mappings == ()
    assert_same(initial.replace(new_params(model)), arrays)
    assert {*Trainable.from_config(model, Optimizer()).names(arrays)} == flat(arrays).keys()


def test_lora_beside_a_new_adaptor_and_decoder_is_refused(tmp_path):
    write_random_run(tmp_path, Model("encoder_decoder", (4, 1), **SIZES))
    with pytest.raises(UserError, match="has adaptor_fusion/weight.*and Model.lora_rank=2 would"):
        read(tmp_path, model_of(lora_rank=2))


def test_the_first_stage_trains_adaptor_and_decoder():
    model = model_of()
    trained = Trainable.from_config(model, Optimizer()).names(parameter_shapes(model, 20))
    assert {name.split("/")[0] for name in trained} == {
        *("adaptor_fusion", "adaptor_fusion_norm", "adaptor_mlp"),
        *("layer_4", "stage_1_norm", "layer_5", "stage_2_norm", "target_embedding"),
    }


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Model("encoder_decoder", (4, 1)), "set Model.layout='encoder_adaptor_decoder' or 'lm_"),
        (Model(LAYOUT, (6, 1, 1)), r"LaMaTE.group=4 does not divide the 6 layers .*\(6, 1, 1\)"),
    ],
)
def test_a_model_that_cannot_have_the_adaptor_is_refused(model, message):
    with pytest.raises(UserError, match=message):
        build_model(dataclasses.replace(model, methods=(LaMaTE(),)), 20)


def test_the_frozen_encoder_has_no_backward_pass():
    """Its layers cost a third of what they cost where they train."""
    sentence = Sentence(8, 8)

    def flops(encoder: str, layers: int) -> float:
        model = model_of(1, encoder, (layers, 1, 1))
        layout = LAYOUTS[LAYOUT].with_layers(model.stage_layers)
        trainable = Trainable.from_config(model, Optimizer())
        return train_flops(model, layout, 20, sentence, trainable=trainable)

    frozen, trained = (flops(encoder, 3) - flops(encoder, 2) for encoder in ("freeze", "tune"))
    assert 0 < frozen == pytest.approx(trained / 3)
