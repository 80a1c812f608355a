"""Graformer as a method: requirements, FLOPs, and copying of a complete run.

What it takes of two runs, and what trains, `tests/parity/test_grafting.py` holds to the authors'.
"""

from __future__ import annotations

import dataclasses
import re
import types

import jax
import numpy as np
import pytest

from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Model, Optimizer, Train
from mnmt_jax.cost.configurations import GIN_CONFIGS
from mnmt_jax.design.layouts import LANGUAGE_MODELS, LAYOUTS, get_layout
from mnmt_jax.design.method import all_param_mappings
from mnmt_jax.design.objective import States
from mnmt_jax.errors import UserError
from mnmt_jax.methods.graformer import Graformer
from mnmt_jax.methods.graft import Graft
from mnmt_jax.methods.lamate import LaMaTE
from mnmt_jax.methods.tables import Tables
from mnmt_jax.model.flops import Sentence, train_flops
from mnmt_jax.model.network import build_model
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.model.trainable_params import Trainable, join
from mnmt_jax.runs.fingerprint import param_path
from mnmt_jax.runs.parameters import load_params
from mnmt_jax.training.initialization import read_initial_params
from mnmt_jax.training.param_mapping import mapped_param_sources
from mnmt_jax.training.source_runs import SourceRunSpec
from tests.made_foreign import SIZES
from tests.made_params import assert_same, config_with, random_params, read_all, write_random_run
from tests.sample_batches import VOCAB, pack, random_pairs, small_config, spans_of, unpacked
from tests.unit.made_text import vocabulary as made_vocabulary

ENDS = {"positions": ("learned", 40), "activation": "gelu", "embedding_scale": False}
TINY = Model("grafted", (2, 1, 1), methods=(Graformer(encoder_layers=1),), **ENDS, **SIZES)


def start(folder, model: Model, train=()):
    config = config_with(model)
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, methods=train))
    like = parameter_shapes(model, made_vocabulary().size)
    return read_initial_params([SourceRunSpec(folder)], like, config, made_vocabulary())


@pytest.mark.parametrize("of", [Graformer(encoder_layers=1), Graformer(True, "none", "none")])
def test_a_graformer_run_is_copied_completely(of, tmp_path):
    """Also an imported run, which has no recorded source runs."""
    given = write_random_run(tmp_path, dataclasses.replace(TINY, methods=(of,)))
    mapped = start(tmp_path, TINY)
    assert mapped.param_mappings == ()
    initial = jax.device_put(read_all(random_params(TINY, made_vocabulary().size, seed=1)))
    assert_same(mapped.replace(initial), given)


GRAFTING = Graformer(encoder_layers=1)
SET_TWICE = "'tables' and another method both set the embedding tables"


def test_a_run_of_another_model_needs_source_runs(tmp_path):
    write_random_run(tmp_path, Model("encoder_decoder", (2, 1), **SIZES))
    with pytest.raises(UserError, match="parameters are copied from mlm, lm; give --init"):
        start(tmp_path, TINY)


def test_source_runs_of_other_methods_are_still_required(tmp_path):
    write_random_run(tmp_path, TINY)
    with pytest.raises(UserError, match="parameters are copied from other; give --init"):
        start(tmp_path, TINY, (Graft((("other", "embedding", "embedding"),)),))


def grafted(root, config, source_runs):
    """Return the parameters that a graft of 2 masked and 2 causal layers copies.

    Their parameters are not read where their kind is wrong.
    """
    for name, (layout, layers) in source_runs.items():
        methods = () if layout in LANGUAGE_MODELS else (Tables(target=True),)
        write_random_run(root / name, Model(layout, layers, methods=methods, **ENDS, **SIZES))
    specs = [SourceRunSpec(root / name, name=name) for name in source_runs]
    like = parameter_shapes(config.model, made_vocabulary().size)
    return read_initial_params(specs, like, config, made_vocabulary())


GRAFT = Model("grafted", (3, 2, 1), methods=(Graformer(encoder_layers=2),), **ENDS, **SIZES)


@pytest.mark.parametrize(
    ("source_runs", "message"),
    [
        (
            {"mlm": ("causal_lm", (2,)), "lm": ("masked_lm", (2,))},
            r"mlm=\S*mlm: its Model.layout is 'causal_lm', .* layers of a 'masked_lm' are copied",
        ),
        (
            {"mlm": ("encoder_decoder", (2, 2)), "lm": ("causal_lm", (2,))},
            r"mlm=\S*mlm: its Model.layout is 'encoder_decoder', .* a 'masked_lm'",
        ),
        (
            {"mlm": ("masked_lm", (2,)), "lm": ("prefix", (2,))},
            r"lm=\S*lm: its Model.layout is 'prefix', .* a 'causal_lm'",
        ),
        (
            {"mlm": ("masked_lm", (1,)), "lm": ("causal_lm", (2,))},
            r"mlm=\S*mlm: has 1 layer, but Graformer.encoder_layers=2 copies 2; lower that",
        ),
        (
            {"mlm": ("masked_lm", (2,)), "lm": ("causal_lm", (1,))},
            r"lm=\S*lm: has 1 layer, but Model.stage_layers=\(3, 2, 1\) in the middle copies 2",
        ),
    ],
)
def test_a_source_run_of_wrong_layout_or_depth_is_named(source_runs, message, tmp_path):
    with pytest.raises(UserError, match=f"^--initialize_from={message}") as caught:
        grafted(tmp_path, config_with(GRAFT), source_runs)
    assert "\n" not in str(caught.value)


def test_the_layers_copied_from_a_deeper_model_are_reported(tmp_path):
    source_runs = {"mlm": ("masked_lm", (4,)), "lm": ("causal_lm", (3,))}
    mlm, lm, new = grafted(tmp_path, config_with(GRAFT), source_runs).report
    mapped, left = mlm.split("; not used ")
    assert "layer_{0-1}/mlp, " in mapped and "layer_{2-3}/mlp, " in left
    assert "layer_{0-1}/mlp, " in lm and "; not used layer_2/attention, " in lm
    assert new.startswith("new: layer_2/attention, layer_5/attention, ")


@pytest.mark.parametrize("layout", ["register", "two_stage", "prefix", "encoder_decoder"])
def test_a_translation_model_can_be_the_source(layout, tmp_path):
    """Our extension: layers that read only the source compute the same states in the graft.

    Of a model of one stack these are its layers, whose other roles the source does not see.
    """
    shape = {"norm": "pre", **SIZES}
    stages = (2, 2)[: len(LAYOUTS[layout].stages)]
    write_random_run(tmp_path / "nmt", Model(layout, stages, **shape))
    write_random_run(tmp_path / "lm", Model("causal_lm", (1,), **shape), seed=1)
    method = Graformer(encoder="none")
    model = Model("grafted", (2, 1, 1), methods=(method,), **shape)
    parts = tuple(("nmt", part, part) for part in ("embedding", "layer_{0-1}"))
    config = config_with(model)
    config = dataclasses.replace(config, train=Train(methods=(Graft(parts),)))
    specs = [SourceRunSpec(tmp_path / name, name=name) for name in ("nmt", "lm")]
    size = made_vocabulary().size
    mapped = read_initial_params(specs, parameter_shapes(model, size), config, made_vocabulary())
    initial = jax.device_put(read_all(random_params(model, size, seed=2)))
    grafted = mapped.replace(initial)
    given = load_params(tmp_path / "nmt")[0]
    reads = (States(2, "source"),)

    def source(model: Model, params) -> np.ndarray:
        batch = unpacked(get_layout(model.layout, model.stage_layers), random_pairs(3))
        network = build_model(model, size)
        return np.asarray(network.apply({"params": params}, batch, reads, method="states")[0])

    np.testing.assert_allclose(
        source(model, grafted), source(Model(layout, stages, **shape), given), atol=1e-5
    )
    lm = load_params(tmp_path / "lm")[0]
    assert_same(grafted["layer_2"], lm["layer_0"])


@pytest.mark.parametrize(
    ("layout", "layers", "methods", "message"),
    [
        ("encoder_decoder", (2, 2), Graformer(), "set Model.layout='grafted'"),
        ("two_stage", (2, 2), Graformer(), "no layers of the target alone"),
        ("masked_lm", (2,), Graformer(), "no layers of the target alone"),
        ("grafted", (2, 1, 1), Graformer(), "encoder_layers=6, but the source passes 2 layers"),
        ("grafted", (2, 1, 1), (GRAFTING, Tables()), SET_TWICE),
        ("grafted", (2, 1, 1), (Tables(), GRAFTING), SET_TWICE),
        (
            "encoder_adaptor_decoder",
            (2, 1, 1),
            (LaMaTE(group=1), Tables(target=False, output=True)),
            SET_TWICE,
        ),
    ],
)
def test_unsupported_models_are_refused(layout, layers, methods, message):
    methods = methods if isinstance(methods, tuple) else (methods,)
    with pytest.raises(UserError, match=re.escape(message)):
        build_model(Model(layout, layers, methods=methods, **SIZES), VOCAB)


@pytest.mark.parametrize("methods", [(), (Tables(),), (Tables(output=True),)])
def test_the_trigger_has_the_vector_of_the_first_target_input(methods):
    """It is a copy of it, also where the target has a table of its own."""
    plan = build_model(Model("two_stage_trigger", (1, 1), methods=methods, **SIZES), VOCAB).plan
    assert plan.table_of("trigger") == plan.table_of("target")
    assert (plan.table_of("source") != plan.table_of("target")) is bool(methods)


RULES = {
    "all": Graformer(encoder_layers=2, decoder="tune"),
    "paper": Graformer(encoder_layers=2),
    "released": Graformer(encoder_layers=2, encoder="freeze"),
}


@pytest.fixture(scope="module")
def flops():
    """Return the compiled and the counted FLOPs for loss and gradient of a pair."""
    actual = {}
    for rule, method in RULES.items():
        sizes = dict(embed=64, mlp=128, heads=4, stage_layers=(3, 2, 2), norm="pre")
        model = small_config("grafted", **sizes, **ENDS, methods=(method,))
        layout = get_layout("grafted", model.stage_layers)
        spans = spans_of(layout, [3] * 30, [4] * 23, 15)
        batch = pack([[spans]], {role: len(tokens) for role, tokens in spans.items()})
        network, trainable = build_model(model, VOCAB), Trainable.from_config(model, Optimizer())

        def loss(part, rest, batch, network=network):
            return (network.apply({"params": join(part, rest)}, batch) ** 2).sum()

        params = jax.eval_shape(network.init, jax.random.key(0), batch)["params"]
        program = jax.jit(jax.grad(loss)).lower(*trainable.split(params), batch).compile()
        counted = train_flops(model, layout, VOCAB, Sentence(32, 24), trainable=trainable)
        actual[rule] = program.cost_analysis()["flops"], counted
    return actual


@pytest.mark.parametrize("rule", RULES)
def test_frozen_parameters_cost_no_gradient(rule, flops):
    """Frozen models below new layers have only a forward pass; the compiler agrees."""
    executed, counted = flops[rule]
    assert 1 < executed / counted < 1.10


def test_frozen_models_save_their_gradient_flops(flops):
    """Two thirds of 2 of 4 target layers and of their table's products, by the paper's rule."""
    (all_executed, _), (paper, _), (released, _) = (flops[rule] for rule in RULES)
    assert 0.70 < paper / all_executed < 0.85
    assert 0.85 * paper > released


SMALL = (
    "Model.embed=4",
    "Model.mlp=4",
    "Model.heads=1",
    "Model.positions=('learned', 2)",
    "Model.vocab_size=9",
)
MODELS = GIN_CONFIGS / "models"
SETTINGS = GIN_CONFIGS / "runs" / "settings"


def freshly_drawn(files) -> set[str]:
    """Return the modules that are not copied from language models of 6 layers.

    A layer of which nothing is taken is named by its number alone.
    """
    config = load_config([str(MODELS / file) for file in files], SMALL)
    alone = dataclasses.replace(config.model, stage_layers=(6,), methods=())

    def names(model) -> set[str]:
        leaves = jax.tree_util.tree_leaves_with_path(parameter_shapes(model, 9))
        return {param_path(path) for path, _ in leaves}

    source_layers = {}
    for name, layout in (("mlm", "masked_lm"), ("lm", "causal_lm")):
        arrays = dict.fromkeys(names(dataclasses.replace(alone, layout=layout)))
        source_layers[name] = types.SimpleNamespace(arrays=arrays)
    own = names(config.model)
    mapped = mapped_param_sources(all_param_mappings(config), source_layers, own)
    touched = {name.split("/")[0] for name in mapped}
    parts = (name.split("/") for name in own - mapped.keys() if name.startswith("layer"))
    return {"/".join(part[: 2 if part[0] in touched else 1]) for part in parts}


def layers(*spans: tuple[int, int]) -> set[str]:
    return {f"layer_{number}" for span in spans for number in range(*span)}


def inside(number: int, *names: str) -> set[str]:
    return {f"layer_{number}/{name}" for name in names}


GRAFTED = inside(6, "attention", "mlp", "mlp_norm")
READING = ("memory_attention", "memory_attention_norm")
ABOVE = inside(18, "attention", "mlp", "mlp_norm", *READING)
TUNED = {name for n in (*range(6), *range(12, 18)) for name in inside(n, "tuning", "tuning_norm")}
READERS = {name for number in range(12, 18) for name in inside(number, *READING)}


@pytest.mark.parametrize(
    ("files", "new"),
    [
        (["grafted_graformer.gin"], GRAFTED | ABOVE | layers((7, 12), (19, 24))),
        (["ablations/graformer_row_1.gin"], GRAFTED | layers((7, 24))),
        (["ablations/graformer_row_3.gin"], ABOVE | layers((0, 12), (19, 24))),
        (["ablations/graformer_row_5.gin"], GRAFTED | ABOVE | layers((7, 12), (19, 24))),
        (["ablations/graformer_row_7.gin"], GRAFTED | ABOVE | layers((7, 12), (19, 24))),
        (["ablations/graformer_decoder_1.gin"], GRAFTED | ABOVE | layers((7, 12))),
        (
            ["encoder_decoder_graformer.gin", SETTINGS / "graft_direct.gin"],
            READERS | layers((6, 12), (18, 24)),
        ),
        (
            ["adapter_graformer.gin", SETTINGS / "graft_adapter.gin"],
            READERS | TUNED | layers((6, 12), (18, 24)),
        ),
    ],
)
def test_published_models_copy_the_parameters_in_their_table(files, new):
    """All but the layers above those of the language models, and modules that these lack."""
    assert freshly_drawn(files) == new
