"""Shapes of parameters: identical layers are traced once, and the shapes are the initialiser's."""

from __future__ import annotations

import jax
import pytest

from mnmt_jax.config.sections import Model
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.methods.adaption import Adaption
from mnmt_jax.methods.cut_residual import CutResidual
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.methods.tpdm import TPDM
from mnmt_jax.model.network import build_model
from mnmt_jax.model.shapes import parameter_shapes, without_repeated_layers
from tests.sample_batches import VOCAB, random_pairs, small_config, unpacked
from tests.toy_heads import TwoHeads


def configured(layout: str, *methods, stages: tuple[int, ...], **changes) -> Model:
    return small_config(layout, stage_layers=stages, methods=methods, **changes)


MODELS = {
    "plain": configured("register", stages=(4,)),
    "more than nine layers": configured("prefix", stages=(11,), norm="pre"),
    "two stages": configured("encoder_decoder", stages=(3, 2)),
    "sublayers around a stage": configured("two_stage_trigger", Adaption(8), stages=(2, 3)),
    "other layers in between": configured(
        "encoder_decoder",
        LanguageLayers(("en", "de"), layers=(2, 5), mlp=8),
        CutResidual(2, norm="pre"),
        stages=(4, 3),
    ),
    "a part outside the pass": configured("encoder_decoder", TPDM(3), stages=(4, 2)),
    "a head in the middle": configured("prefix", TwoHeads(3), stages=(5,)),
    "lora in all layers": configured("prefix", stages=(3,), lora_rank=2, lora=("attention/query",)),
    "lora in one layer": configured("prefix", stages=(3,), lora_rank=2, lora=("layer_1/*/query",)),
    "lora in some layers": configured("prefix", stages=(3,), lora_rank=2, lora=("*_[02]/mlp/wi",)),
}


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_shapes_are_those_of_the_initialiser(config):
    model = build_model(config, VOCAB)
    batch = unpacked(LAYOUTS[config.layout], random_pairs(1))
    batch |= {name: jax.numpy.zeros((1, 1), "int32") for name in model.plan.languages()}
    expected = jax.eval_shape(model.init, jax.random.key(0), batch)["params"]
    actual = parameter_shapes(config, VOCAB)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    assert jax.tree.leaves(actual) == jax.tree.leaves(expected)
    assert len([name for name in actual if name.startswith("layer_")]) == model.layout.layers


def test_identical_layers_of_a_stage_are_traced_once():
    plan = build_model(MODELS["other layers in between"], VOCAB).plan
    shorter, first_identical = without_repeated_layers(plan)
    assert first_identical == (0, 1, 0, 0, 2, 3, 3)  # branches in layers 2 and 5
    assert [len(stage.layers) for stage in shorter.stages] == [2, 2]
    assert [stage.layers for stage in shorter.layout.stages] == [2, 2]
