"""Model.stage_mlp: feed-forward layers of another width in each stage."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from flax import traverse_util

from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Model
from mnmt_jax.cost.configurations import parameter_counts
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.design.plan import Sublayer
from mnmt_jax.errors import UserError
from mnmt_jax.interop import fairseq, huggingface
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.methods.tpdm import TPDM
from mnmt_jax.methods.tuning_layers import TuningLayers
from mnmt_jax.model.flops import Sentence, forward_flops
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.model.sublayers import FeedForward, plain_plan
from mnmt_jax.papers.experiments import experiments, training_config
from mnmt_jax.papers.tables import find_table, load_papers
from tests.sample_batches import VOCAB, make, pack, small_config, spans_of


def _made(name: str, widths: tuple[int, ...]):
    layers = (2,) * len(widths)
    config = small_config(
        name, embed=64, mlp=16, heads=4, stage_layers=layers, stage_mlp=widths, methods=()
    )
    layout = LAYOUTS[name].with_layers(layers)
    spans = spans_of(layout, [3] * 30, [4] * 23, 15)
    batch = pack([[spans]], {role: len(tokens) for role, tokens in spans.items()})
    return config, layout, batch, *make(config)


@pytest.mark.parametrize("name", ["encoder_decoder", "two_stage"])
def test_stages_have_their_widths(name):
    """Shapes of the parameters, and FLOPs against the compiler's count."""
    config, layout, batch, model, params = _made(name, (48, 256))
    widths = [params[f"layer_{number}"]["mlp"]["wi"]["kernel"].shape for number in range(4)]
    assert widths == [(64, 48)] * 2 + [(64, 256)] * 2
    compiled = jax.jit(lambda p, b: model.apply({"params": p}, b)).lower(params, batch).compile()
    counted = forward_flops(config, layout, VOCAB, Sentence(source=32, target=24))
    assert counted < compiled.cost_analysis()["flops"] < 1.10 * counted


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (LanguageLayers(("en", "de"), mlp=8), {"layer_2/mlp": 40, "layer_3/mlp": 40}),
        (TuningLayers(), {"layer_0/tuning": 24, "layer_3/tuning": 40}),
        (TuningLayers(mlp=8), {"layer_0/tuning": 8, "layer_3/tuning": 8}),
        (TPDM(layer=1), {"critic/mlp": 24}),
        (TPDM(layer=2), {"critic/mlp": 24}),
    ],
)
def test_methods_keep_the_widths_of_the_stages(method, expected):
    sizes = {"embed": 16, "mlp": 12, "heads": 2, "stage_mlp": (24, 40)}
    model = Model("encoder_decoder", (2, 2), methods=(method,), **sizes)
    shapes = traverse_util.flatten_dict(parameter_shapes(model, VOCAB), sep="/")
    widths = {name: shapes[f"{name}/wi/kernel"].shape[1] for name in expected}
    assert widths == expected
    assert shapes["layer_0/mlp/wi/kernel"].shape == (16, 24)


def test_the_critic_of_a_later_stage_has_its_width():
    model = Model("two_stage", (1, 1), embed=16, heads=2, stage_mlp=(24, 40), methods=(TPDM(2),))
    assert parameter_shapes(model, VOCAB)["critic"]["mlp"]["wi"]["kernel"].shape == (16, 40)


@pytest.mark.parametrize(("dropout", "expected"), [(None, 0.2), (0.0, 0.0), (0.4, 0.4)])
def test_a_feed_forward_with_branches_keeps_its_settings(dropout, expected):
    model = Model("encoder_decoder", (1, 1), embed=16, heads=2, dropout=0.2)
    plan = plain_plan(model, LAYOUTS["encoder_decoder"].with_layers((1, 1)))
    shared = FeedForward(model, 24, activation="gelu", dropout=dropout)
    plan = plan.with_layers(lambda _, layer: (*layer[:-1], Sublayer("mlp", shared, "pre")))
    edited = LanguageLayers(("en", "de")).edit(plan, model)
    kind = list(edited.layers())[1][1][-1].kind
    assert (kind.hidden, kind.activation, kind.dropout) == (24, "gelu", expected)


def test_equal_widths_are_those_of_mlp():
    _, _, batch, model, params = _made("two_stage", (16, 16))
    config = dataclasses.replace(model.config, stage_mlp=())
    same, other = make(config)
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, other)
    np.testing.assert_array_equal(
        model.apply({"params": params}, batch), same.apply({"params": params}, batch)
    )


def test_parameters_of_table_4(relaxed_dtypes):
    """The rows have the same number of parameters, 4,723,200 more than the plain model."""
    paper, table = load_papers()["two_stage"], find_table("two_stage/table4")
    counts = {}
    for row in table.rows:
        (experiment,) = experiments(paper, table, row).values()
        counts[row.name] = parameter_counts(training_config(experiment).model)["total"]
    plain = parameter_counts(load_config(["gin_configs/models/two_stage_ted19.gin"]).model)["total"]
    wider = [count for name, count in counts.items() if "wider" in name]
    assert wider == [plain + 12 * 384 * (2 * 512 + 1)] * 3
    assert counts["TDO + adaption"] == plain + 2 * (2 * 512 * 2048 + 2048 + 512)


def test_the_number_of_widths_is_checked():
    with pytest.raises(UserError, match=r"Model.stage_mlp=\(8, 8\) must have one width per stage"):
        Model(stage_layers=(2,), stage_mlp=(8, 8))
    with pytest.raises(UserError, match=r"Model.stage_mlp=\(8, 0\) must be at least 1"):
        Model(stage_layers=(2, 2), stage_mlp=(8, 0))


@pytest.mark.parametrize("check", [fairseq._export_arguments, huggingface._kind_for])
def test_other_toolkits_have_one_width(check):
    model = ["Model.layout='encoder_decoder'", "Model.stage_layers=(1, 1)"]
    bindings = [*model, "Data.instruction='5'", "Model.stage_mlp=(8, 16)"]
    with pytest.raises(UserError, match=r"as wide as each other, not \(8, 16\).*Model.stage_mlp="):
        check(load_config([], bindings))
    check(load_config([], [*bindings, "Model.stage_mlp=()"]))
