"""Initialisation from another run, of the same or another structure."""

from __future__ import annotations

import dataclasses
import re
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config.sections import Config, Model, Optimizer, Train
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.methods.adaption import Adaption
from mnmt_jax.methods.graformer import Graformer
from mnmt_jax.methods.graft import Graft
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.methods.tables import Tables
from mnmt_jax.methods.tpdm import TPDM
from mnmt_jax.methods.tuning_layers import TuningLayers
from mnmt_jax.model.lora import split_lora
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.model.sublayers import make_plan
from mnmt_jax.model.trainable_params import Trainable
from mnmt_jax.runs.fingerprint import param_path
from mnmt_jax.runs.parameters import load_params, write_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training.initialization import read_initial_params
from mnmt_jax.training.layer_order import source_names, source_tables
from mnmt_jax.training.source_runs import SourceRun, SourceRunSpec
from mnmt_jax.training.train import train
from tests.made_foreign import SIZES
from tests.made_params import assert_same, config_with, random_params, read_all, write_random_run
from tests.made_run import make_cache, make_config
from tests.unit.made_text import vocabulary as made_vocabulary

pytestmark = pytest.mark.usefixtures("one_device")

ENCODER_DECODER = Model(layout="encoder_decoder", stage_layers=(2, 4), **SIZES)


@pytest.fixture(scope="module")
def source_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "given"
    return folder, write_random_run(folder, ENCODER_DECODER)


def start(source_run, model: Model) -> tuple[dict, dict, str]:
    """Return the random parameters, those after initialisation from the run, and the report."""
    vocabulary = made_vocabulary()
    initial = jax.tree.map(jnp.asarray, read_all(random_params(model, vocabulary.size, seed=1)))
    params, report = start_from(source_run[0], initial, model)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))
    return initial, params, report


def start_from(folder, initial: dict, model: Model) -> tuple[dict, str]:
    """Return the parameters after initialisation from the run, and the report."""
    mapped = read_initial_params(
        [SourceRunSpec(folder)], initial, config_with(model), made_vocabulary()
    )
    (report,) = mapped.report
    return mapped.replace(initial), report


def test_a_model_of_equal_structure_copies_all_parameters(source_run):
    _, params, report = start(source_run, ENCODER_DECODER)
    assert_same(params, source_run[1])
    assert "new:" not in report and "not used" not in report


@pytest.mark.parametrize("layout", ["two_stage", "two_stage_trigger", "two_stage_causal"])
def test_two_stage_models_copy_the_decoder(source_run, layout):
    model = Model(layout=layout, stage_layers=(1, 3), methods=(Adaption(8),), **SIZES)
    initial, params, report = start(source_run, model)
    old = source_run[1]
    for layer in range(4):
        expected = dict(old[f"layer_{layer + 2}"])
        del expected["memory_attention"], expected["memory_attention_norm"]
        assert_same(params[f"layer_{layer}"], expected)
    for norm in ("stage_0_norm", "stage_1_norm"):
        assert_same(params[norm], old["stage_1_norm"])
    np.testing.assert_array_equal(params["embedding"], old["embedding"])
    for module in ("adaption_input", "adaption_output"):
        assert_same(params[module], jax.tree.map(np.asarray, initial[module]))
    assert "new: adaption_input/wi, adaption_input/wo" in report
    assert "/memory_attention" in report.split("not used")[1]


@pytest.mark.parametrize("layout", ["prefix", "causal", "prefix_trigger", "register"])
def test_decoder_only_models_copy_the_decoder(source_run, layout):
    _, params, report = start(source_run, Model(layout=layout, stage_layers=(4,), **SIZES))
    assert_same(params["layer_3"]["mlp"], source_run[1]["layer_5"]["mlp"])
    assert_same(params["stage_0_norm"], source_run[1]["stage_1_norm"])
    assert "new:" not in report


def test_a_smaller_encoder_decoder_copies_both_halves_of_the_decoder(source_run):
    model = Model(layout="encoder_decoder", stage_layers=(2, 2), **SIZES)
    _, params, _ = start(source_run, model)
    assert "memory_attention" not in params["layer_1"]
    for layer in range(4):
        expected = dict(source_run[1][f"layer_{layer + 2}"])
        if layer < 2:
            del expected["memory_attention"], expected["memory_attention_norm"]
        assert_same(params[f"layer_{layer}"], expected)


def test_decoder_only_models_copy_all_layers_from_each_other(tmp_path):
    folder = tmp_path / "prefix"
    old = write_random_run(folder, Model(layout="prefix", stage_layers=(4,), **SIZES))
    _, params, _ = start((folder, old), Model(layout="two_stage", stage_layers=(2, 2), **SIZES))
    for layer in range(4):
        assert_same(params[f"layer_{layer}"], old[f"layer_{layer}"])


def lora_params(model: Model, seed: int) -> dict:
    """Random parameters of a model with LoRA."""
    rng = np.random.default_rng(seed)
    shapes = parameter_shapes(model, made_vocabulary().size)
    return jax.tree.map(lambda a: rng.normal(0, 1, a.shape).astype(np.float32), shapes)


@pytest.mark.parametrize("layout", ["encoder_decoder", "two_stage"])
def test_lora_is_initialised_beside_copied_parameters(source_run, layout):
    """On the same structure, and on one that takes the decoder."""
    stages = {"encoder_decoder": (2, 4), "two_stage": (2, 2)}[layout]
    model = Model(layout=layout, stage_layers=stages, lora_rank=2, **SIZES)
    plain = dataclasses.replace(model, lora_rank=0)
    initial = jax.tree.map(jnp.asarray, lora_params(model, seed=1))
    _, expected, _ = start(source_run, plain)
    params, report = start_from(source_run[0], initial, model)
    own, base = split_lora(params)
    assert_same(base, expected)
    assert_same(own, split_lora(initial)[0])
    assert f"new: LoRA of layer_{{0-{sum(stages) - 1}}}/attention" in report


def test_lora_is_copied_to_lora_and_never_dropped(tmp_path):
    model = Model(layout="prefix", stage_layers=(2,), lora_rank=2, **SIZES)
    old = lora_params(model, seed=0)
    folder = tmp_path / "tuned"
    RunDirectory(folder).prepare(config_with(model), made_vocabulary(), has_checkpoint=False)
    write_params(folder, jax.tree.map(LazyArray.of, old))

    def take(model):
        initial = jax.tree.map(jnp.asarray, lora_params(model, seed=1))
        return start_from(folder, initial, model)[0]

    assert_same(take(model), old)
    for changes in ({"lora_rank": 0}, {"lora": ("query",)}):
        with pytest.raises(UserError, match=r"new model has no LoRA; merge.*Model.lora_rank=2"):
            take(dataclasses.replace(model, **changes))
    with pytest.raises(UserError, match=r"lora_a' is \(16, 2\) there, \(16, 3\) here"):
        take(dataclasses.replace(model, lora_rank=3))


TWO_STAGE = Model("two_stage", (1, 1), **SIZES)
GRAFTED = Model("grafted", (2, 1, 1), **SIZES)
BRANCHES = LanguageLayers(("en", "de", "fr"), mlp=8, frozen=("de",))


@pytest.mark.parametrize(
    ("model", "frozen", "message"),
    [
        (
            dataclasses.replace(TWO_STAGE, methods=(Adaption(8),), lora_rank=2),
            (),
            "has adaption_input/wi, .*, and Model.lora_rank=2 would freeze .* in Optimizer.frozen",
        ),
        (
            dataclasses.replace(TWO_STAGE, methods=(TPDM(1),), lora_rank=2),
            (),
            "has layer_0/disentangle, and Model.lora_rank=2",
        ),
        (
            dataclasses.replace(TWO_STAGE, methods=(TuningLayers(),)),
            ("layer_0", "embedding"),
            r"has layer_0/tuning, .*, and Optimizer.frozen=\('layer_0', 'embedding'\) would",
        ),
        (
            dataclasses.replace(TWO_STAGE, methods=(BRANCHES,)),
            (),
            r"has layer_1/mlp, and LanguageLayers.frozen=\('de',\) would",
        ),
    ],
)
def test_random_parameters_that_would_be_frozen_are_refused(model, frozen, message, tmp_path):
    """They train where Optimizer.frozen names the copied parameters alone."""
    write_random_run(tmp_path, TWO_STAGE)
    shapes = parameter_shapes(model, made_vocabulary().size)

    def read(model: Model, frozen: tuple[str, ...]) -> Config:
        config = dataclasses.replace(config_with(model), optimizer=Optimizer(frozen=frozen))
        assert read_initial_params([SourceRunSpec(tmp_path)], shapes, config, made_vocabulary())
        return config

    with pytest.raises(UserError, match=f"^--initialize_from=.*: no source run {message}"):
        read(model, frozen)
    trains_all = tuple(
        dataclasses.replace(m, frozen=()) if m is BRANCHES else m for m in model.methods
    )
    model = dataclasses.replace(model, methods=trains_all)
    config = read(model, ("layer_*/attention", "layer_*/mlp/wi", "embedding"))
    trained = Trainable.from_config(model, config.optimizer)
    assert all(
        trained.trains(name)
        for name in map(param_path, (p for p, _ in jax.tree_util.tree_leaves_with_path(shapes)))
        if name.startswith("adaption") or "/tuning/" in name or "/disentangle/" in name
    )


@pytest.mark.parametrize(
    ("methods", "frozen", "message"),
    [
        ((), ("embedding",), r"Optimizer.frozen=\('embedding',\) .*: embedding would"),
        ((BRANCHES,), (), r"LanguageLayers.frozen=\('de',\) .*: layer_1/mlp would"),
    ],
)
def test_frozen_parameters_need_a_run_to_initialise_from(methods, frozen, message):
    model = dataclasses.replace(ENCODER_DECODER, stage_layers=(1, 1), methods=methods)
    config = dataclasses.replace(config_with(model), optimizer=Optimizer(frozen=frozen))
    shapes = parameter_shapes(model, made_vocabulary().size)
    with pytest.raises(UserError, match=f"{message} stay at random values; name a trained run"):
        read_initial_params((), shapes, config, made_vocabulary())
    assert read_initial_params((), shapes, config_with(ENCODER_DECODER), made_vocabulary()) is None


def branches(languages: tuple[str, ...], centre: str) -> Model:
    method = LanguageLayers(languages, without=(centre,), mlp=8)
    return Model("encoder_decoder", (1, 1), methods=(method,), **SIZES)


@pytest.mark.parametrize(
    ("languages", "centre", "parts", "there_here"),
    [
        (("en", "de", "fr"), "de", (), ("de, fr", "en, fr")),
        (("en", "de", "fr"), "de", (("x", "layer_1", "layer_1"),), ("de, fr", "en, fr")),
        (("fr", "de", "en"), "en", (("x", "layer_1", "layer_1"),), ("de, fr", "fr, de")),
        (("nl", "en", "de", "fr"), "en", (("x", "layer_1", "layer_1"),), ("de, fr", "nl, de, fr")),
    ],
)
def test_branches_are_copied_between_the_same_languages_only(
    languages, centre, parts, there_here, tmp_path
):
    """The slots of a parameter are those of languages, whose number alone is in its shape."""
    there = branches(("en", "de", "fr"), "en")
    write_random_run(tmp_path, there)

    def read(model: Model) -> None:
        methods = (Graft(parts),) if parts else ()
        config = dataclasses.replace(config_with(model), train=Train(methods=methods))
        shapes = parameter_shapes(model, made_vocabulary().size)
        spec = SourceRunSpec(tmp_path, name="x" if parts else "")
        mapped = read_initial_params([spec], shapes, config, made_vocabulary())
        assert mapped and "layer_1/mlp/branch/scale" in mapped.sources

    before, after = (re.escape(codes) for codes in there_here)
    slots = "'layer_1/mlp/branch/[a-z/]*'"
    with pytest.raises(UserError, match=rf"{slots} has .*\({before}\) there, .*\({after}\) here"):
        read(branches(languages, centre))
    read(there)
    if parts:
        read(branches(("eng", "de", "fra_Latn"), "eng"))


def test_new_parameters_in_frozen_layers_of_a_method_are_refused(tmp_path):
    for name, layout, layers in (("mlm", "masked_lm", (2,)), ("lm", "causal_lm", (1,))):
        write_random_run(tmp_path / name, Model(layout, layers, **SIZES))
    specs = [SourceRunSpec(tmp_path / name, name=name) for name in ("mlm", "lm")]

    def read(**settings: str) -> None:
        methods = Graformer(encoder_layers=2, **settings), TuningLayers()
        model = dataclasses.replace(GRAFTED, methods=methods)
        shapes = parameter_shapes(model, made_vocabulary().size)
        read_initial_params(specs, shapes, config_with(model), made_vocabulary())

    with pytest.raises(UserError, match="has layer_2/tuning, .*Graformer.decoder='freeze' would"):
        read()
    read(decoder="tune")


def test_published_sizes_can_be_copied():
    """The counts of the paper: 12 decoder layers give 12 or 6 + 6, 24 give 24 or 12 + 12."""
    for layers in (12, 24):
        before = get_layout("encoder_decoder", (layers, layers))
        for name, stages in (("prefix", (layers,)), ("two_stage", (layers // 2,) * 2)):
            names = source_names(before, get_layout(name, stages))
            assert names["layer_0"] == f"layer_{layers}"
            assert names[f"layer_{layers - 1}"] == f"layer_{2 * layers - 1}"


def test_separate_tables_start_as_a_shared_one(source_run):
    model = dataclasses.replace(ENCODER_DECODER, methods=(Tables(),))
    _, params, report = start(source_run, model)
    assert_same({**params, "target_embedding": params["embedding"]}, params)
    np.testing.assert_array_equal(params["embedding"], source_run[1]["embedding"])
    assert "target_embedding from embedding" in report
    assert "new:" not in report and "not used" not in report


def test_a_decoder_is_copied_with_its_own_table(tmp_path):
    old = write_random_run(tmp_path, dataclasses.replace(ENCODER_DECODER, methods=(Tables(),)))
    _, params, report = start((tmp_path, old), Model("prefix", (4,), **SIZES))
    np.testing.assert_array_equal(params["embedding"], old["target_embedding"])
    assert "embedding from target_embedding; not used embedding" in report


SHARED, OUTPUT = (), (Tables(target=False, output=True),)
SPLIT, ALL = (Tables(),), (Tables(output=True),)
NAMES = ("embedding", "target_embedding", "output_embedding")


@pytest.mark.parametrize(
    ("methods", "new_layout", "new_methods", "expected"),
    [
        (SHARED, "encoder_decoder", ALL, ("embedding",) * 3),
        (SPLIT, "encoder_decoder", ALL, (NAMES[0], NAMES[1], NAMES[1])),
        (OUTPUT, "encoder_decoder", OUTPUT, (NAMES[0], NAMES[2])),
        (ALL, "encoder_decoder", ALL, NAMES),
        (ALL, "prefix_trigger", ALL, (NAMES[1], NAMES[1], NAMES[2])),
        (ALL, "prefix", OUTPUT, NAMES[1:]),
        (SPLIT, "register", SHARED, NAMES[1:2]),
        (SPLIT, "encoder_decoder", SHARED, "embedding and target_embedding"),
        (OUTPUT, "encoder_decoder", SHARED, "embedding and output_embedding"),
        (ALL, "prefix", SHARED, "target_embedding and output_embedding"),
    ],
)
def test_tables_are_copied_by_role(methods, new_layout, new_methods, expected):
    """Positions follow the tables that embed."""
    layers = (2, 4) if new_layout == "encoder_decoder" else (4,)
    before, after = (
        make_plan(Model(layout, stages, methods=edits, **SIZES), get_layout(layout, stages))
        for layout, stages, edits in (
            ("encoder_decoder", (2, 4), methods),
            (new_layout, layers, new_methods),
        )
    )
    if isinstance(expected, str):
        with pytest.raises(UserError, match=f"^--x: .* start as {expected} of that .*'tables' in"):
            source_tables(before, after, "--x")
        return
    sources = source_tables(before, after, "--x")
    for table, source in zip(after.tables, expected, strict=True):
        assert sources[table.name] == source
        positions = f"{source}_positions" if table.embeds else None
        assert sources.get(f"{table.name}_positions") == positions


def test_heads_of_a_method_keep_their_tables():
    model = Model("grafted", (2, 1, 1), methods=(Graformer(encoder_layers=2),), **SIZES)
    plan = make_plan(model, get_layout(model.layout, model.stage_layers))
    assert source_tables(plan, plan, "--x").items() >= {(name, name) for name in NAMES}


def test_only_the_widths_of_copied_layers_are_compared(tmp_path):
    """A decoder can be copied whatever the width of its encoder."""
    source = dataclasses.replace(ENCODER_DECODER, stage_mlp=(8, 24))
    arrays = write_random_run(tmp_path, source)
    _, params, _ = start((tmp_path, arrays), Model("two_stage", (2, 2), **SIZES))
    assert_same(params["layer_3"]["mlp"], arrays["layer_5"]["mlp"])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Model(layout="prefix", stage_layers=(3,), **SIZES), "'prefix' has 3.*has 4 with a target"),
        (
            dataclasses.replace(ENCODER_DECODER, mlp=32, norm="post"),
            "Model.norm is 'pre' there, 'post' here; make them equal",
        ),
        (
            dataclasses.replace(ENCODER_DECODER, stage_mlp=(24, 32)),
            r"'layer_2/mlp/wi/bias' is \(24,\) there, \(32,\) here; make the sizes equal",
        ),
    ],
)
def test_models_of_other_sizes_are_refused(source_run, model, message):
    with pytest.raises(UserError, match=message):
        start(source_run, model)


def test_another_vocabulary_is_refused(source_run):
    other = dataclasses.replace(made_vocabulary(), languages=("de", "en", "fr"))
    with pytest.raises(UserError, match="make the cache with --vocabulary"):
        read_initial_params([SourceRunSpec(source_run[0])], {}, config_with(ENCODER_DECODER), other)
    in_bucket = RunDirectory(source_run[0], types.SimpleNamespace(bucket=Path("bucket")))
    source = SourceRun(SourceRunSpec("gs://bucket"), in_bucket, config_with(ENCODER_DECODER))
    with pytest.raises(UserError, match="copy bucket/vocabulary to a .* --vocabulary=vocabulary$"):
        source.check_all(config_with(ENCODER_DECODER), other)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "small"
    model = Model(layout="encoder_decoder", stage_layers=(1, 1), **SIZES)
    return (
        folder,
        write_random_run(folder, model),
        make_cache(tmp_path_factory.mktemp("data") / "cache"),
    )


def test_training_starts_from_the_run_and_resumes_without_it(small, tmp_path):
    """The first update has rate zero, so its checkpoint holds what the training started from."""
    source_run, expected, cache = small
    folder = tmp_path / "new"
    model = {"layout": "prefix", "stage_layers": (1,), **SIZES}
    settings = {"steps": 1, "log_every": 1, "eval_every": 100, "save_every": 100}
    config = make_config(cache, model=model, train=settings)
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=2))
    train(config, folder, [SourceRunSpec(source_run, 0)])
    params, step = load_params(folder)
    train(longer, folder, [SourceRunSpec(tmp_path / "gone")])  # continuing does not look at it
    after, later = load_params(folder)
    assert (step, later) == (1, 2)
    assert_same(params["layer_0"]["mlp"], expected["layer_1"]["mlp"])
    np.testing.assert_array_equal(params["embedding"], expected["embedding"])
    assert not np.array_equal(after["embedding"], params["embedding"])
    assert "step 0" in RunDirectory(folder).origin_file.read_text()


def test_lora_needs_a_run_to_initialise_from(small, tmp_path):
    config = make_config(small[2], model={"lora_rank": 2})
    with pytest.raises(UserError, match="Model.lora_rank=2 without --initialize_from"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "config.gin").exists()


def test_an_imported_run_cannot_be_resumed(small):
    folder, _, cache = small
    before = RunDirectory(folder).config()
    changes = {"data": {"tasks": tuple(TokenCache.open(cache).tasks_with("train"))}}
    config = make_config(cache, model=dataclasses.asdict(before.model), **changes)
    RunDirectory(folder).prepare(config, made_vocabulary(), has_checkpoint=False)
    with pytest.raises(UserError, match="has parameters but no training state.*--initialize_from"):
        train(config, folder)
