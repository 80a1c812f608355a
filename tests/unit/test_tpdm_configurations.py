"""TPDM's models and runs: parameter counts of Table 8, and the settings of each file."""

import dataclasses

import pytest

from mnmt_jax.config.loading import load_config
from mnmt_jax.cost.configurations import GIN_CONFIGS, parameter_counts
from mnmt_jax.cost.describe import describe
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.methods.cut_residual import CutResidual
from mnmt_jax.methods.tables import Tables
from mnmt_jax.methods.tpdm import TPDM
from mnmt_jax.model.sublayers import make_plan

SIZES = {"source_length": 8, "target_length": 8, "beam": 1}
SMALL, BASE = (3, 256, 1024, 4), (6, 512, 2048, 8)  # section 4.3.1; the small mlp by the count


def load(name, *bindings):
    return load_config([str(GIN_CONFIGS / f"{name}.gin")], bindings)


def model(name, *bindings):
    return load(f"models/{name}", *bindings).model


@pytest.mark.parametrize(
    ("name", "published", "total", "critic"),
    [
        ("encoder_decoder_tpdm_small", "30.781", 30_781_440, 0),
        ("tpdm_small", "31.046", 31_046_144, 789_760),
        ("encoder_decoder_tpdm_base", "94.642", 94_642_176, 0),
        ("tpdm_base", "95.696", 95_695_872, 3_152_384),
    ],
)
def test_table_8(name, published, total, critic):
    """Counts of position_disentangle.md 7: the output of `describe`, with a separate critic."""
    config = model(name)
    actual = describe(config, config.vocab_size, **SIZES)
    counts = actual["parameters"]
    assert counts["total"] == counts["learnable"] == total
    assert f"{total / 1e6:.3f}" == published
    assert actual.get("parameters_beside", {}) == ({"critic": critic} if critic else {})
    assert sum(counts.values()) == 2 * total + total  # the components, total and learnable


@pytest.mark.parametrize(("norms", "per_width"), [(0, 4), (2, 8), (3, 10)])
def test_table_8_determines_the_norms_of_the_heads(norms, per_width):
    """Three LayerNorms are 6d; two heads are 4d^2 + 4d in any form."""
    more = [
        parameter_counts(model(f"tpdm_{size}", f"TPDM.norms={norms}"))["total"]
        - parameter_counts(model(f"encoder_decoder_tpdm_{size}"))["total"]
        for size in ("small", "base")
    ]
    assert more == [4 * width**2 + per_width * width for width in (256, 512)]


@pytest.mark.parametrize(("size", "dims", "layer"), [("small", SMALL, 2), ("base", BASE, 4)])
def test_the_models_differ_only_in_their_methods(size, dims, layer):
    base = model(f"encoder_decoder_tpdm_{size}")
    layers, *widths = dims
    assert (base.layout, base.stage_layers) == ("encoder_decoder", (layers, layers))
    assert [base.embed, base.mlp, base.heads] == widths and base.norm == "post"
    assert base.methods == (Tables(),) and layer == layers // 2 + 1
    for name, method in (
        ("residual", CutResidual(layer)),
        ("tpdm", TPDM(layer)),
        ("gtpdm", TPDM(layer, gated=True)),
    ):
        prefix = f"{name}_tpdm" if name == "residual" else name
        assert model(f"{prefix}_{size}") == dataclasses.replace(base, methods=(Tables(), method))
    plan = make_plan(base, get_layout(base.layout, base.stage_layers))
    assert [table.name for table in plan.tables] == ["embedding", "target_embedding"]
    assert [head.table for head in plan.heads] == ["target_embedding"]


@pytest.mark.parametrize(
    ("bindings", "attention", "mlp"),
    [
        ((), (False, "post"), (True, "post")),
        (("CutResidual.norm='pre'",), (False, "pre"), (True, "pre")),
        (("CutResidual.sublayer='mlp'",), (True, "post"), (False, "post")),
    ],
)
def test_both_variants_of_mnmt_rc(bindings, attention, mlp):
    """The cut connection and the norms of layer 4; other layers are unchanged."""
    config = model("residual_tpdm_base", *bindings)
    plan = make_plan(config, get_layout(config.layout, config.stage_layers))
    layers = [
        {each.name: (each.residual, each.norm) for each in layer} for _, layer in plan.layers()
    ]
    assert layers[3] == {"attention": attention, "mlp": mlp}
    whole = [row for number, row in enumerate(layers) if number != 3]
    assert {kind for row in whole for kind in row.values()} == {(True, "post")}


def test_each_row_of_table_2_changes_one_field():
    full = model("tpdm_small")
    (tables, method) = full.methods
    for name, change in (
        ("without_information", {"information": 0.0}),
        ("without_alignment", {"alignment": 0.0}),
        ("sinusoidal_anchors", {"anchors": "sinusoidal"}),
    ):
        expected = tables, dataclasses.replace(method, **change)
        actual = model(f"ablations/tpdm_small_{name}")
        assert actual == dataclasses.replace(full, methods=expected)
        terms = {term.name for term in actual.methods[1].objectives()}
        assert terms == {"information", "alignment"} - {name.removeprefix("without_")}


@pytest.mark.parametrize(
    ("whole", "changed", "positions", "rows"),
    [
        ("tpdm_small", "tpdm_small_learned_positions", ("learned", 1024), 1024),
        (
            "encoder_decoder_tpdm_small",
            "encoder_decoder_tpdm_small_learned_positions",
            ("learned", 1024),
            1024,
        ),
        ("encoder_decoder_tpdm_base", "encoder_decoder_tpdm_base_without_positions", (), 0),
    ],
)
def test_positions_of_both_sides_are_learned_or_absent(whole, changed, positions, rows):
    before, after = model(whole), model(f"ablations/{changed}")
    assert after == dataclasses.replace(before, positions=positions)
    more = parameter_counts(after)["total"] - parameter_counts(before)["total"]
    assert more == 2 * rows * before.embed


def test_the_runs_differ_in_steps_and_validation():
    """The means of positions are of 8,000 tokens, a GPU's; four of these make an update.

    What validates is as long as each corpus has it.
    """
    runs = {name: load(f"runs/{name}") for name in ("multiun", "europarl_centric")}
    assert {name: run.train.steps for name, run in runs.items()} == {
        "multiun": 500_000,
        "europarl_centric": 300_000,
    }
    (first, second) = runs.values()
    train = dataclasses.replace(second.train, steps=first.train.steps)
    data = dataclasses.replace(second.data, validation_examples=1000)
    assert dataclasses.replace(second, train=train, data=data) == first
    assert second.data.validation_examples == 2000
    assert first.data.rows * first.data.source_length == 8000
    assert first.data.validation_examples == 1000 and first.train.best_by == "supervised"
