"""Initialisation from several source runs by parameter mappings."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import operator
import re
import shutil

import jax
import numpy as np
import pytest

from mnmt_jax.config.loading import load_config, save_config
from mnmt_jax.config.sections import Mesh, Model, Optimizer, Train
from mnmt_jax.design.param_mapping import ParamMapping
from mnmt_jax.distributed.sharding import make_mesh, tree_sharding
from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.methods.graft import Graft
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.runs.parameters import load_params, write_params
from mnmt_jax.runs.run_directory import RunDirectory, changed_fields
from mnmt_jax.training.initialization import read_initial_params
from mnmt_jax.training.source_runs import SourceRunSpec
from mnmt_jax.training.train import train
from tests.made_foreign import SIZES
from tests.made_params import config_with, flat, random_params, read_all, write_random_run
from tests.made_run import make_cache, make_config, one_device, saved
from tests.run_commands import ROOT, command
from tests.unit.made_text import vocabulary as made_vocabulary

NEW = Model(layout="encoder_decoder", stage_layers=(1, 3), **SIZES)
SOURCE_MODELS = {
    "mlm": Model(layout="encoder_decoder", stage_layers=(1, 1), **SIZES),
    "lm": Model(layout="causal", stage_layers=(2,), **SIZES),
}
PARTS = (
    ("mlm", "embedding", "embedding"),
    ("mlm", "layer_0", "layer_0"),
    ("mlm", "stage_0_norm/scale", "stage_0_norm/scale"),
    ("lm", "layer_{0-1}", "layer_{1-2}"),
    ("lm", "stage_0_norm", "layer_3/attention_norm"),
    ("lm", "stage_0_norm", "layer_3/mlp_norm"),
    ("lm", "stage_0_norm", "stage_1_norm"),
    ("lm", "layer_{0-0}/mlp/wi", "layer_{3-3}/mlp/wi"),
)


@pytest.fixture(scope="module")
def source_runs(tmp_path_factory):
    """Return the folders of two runs, and their parameters by path."""
    root = tmp_path_factory.mktemp("givers")
    params_of = {
        name: write_random_run(root / name, model) for name, model in SOURCE_MODELS.items()
    }
    return {name: root / name for name in SOURCE_MODELS}, {
        name: flat(params_of[name]) for name in params_of
    }


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("data") / "cache")


def specs(folders, **changes) -> list[SourceRunSpec]:
    return [SourceRunSpec(folder, name=name) for name, folder in (folders | changes).items()]


def expected(arrays, initial: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the parameters that the mappings give, written out."""
    mlm, lm, actual = arrays["mlm"], arrays["lm"], dict(initial)
    for name in initial:
        head, _, rest = name.partition("/")
        if name in ("embedding", "stage_0_norm/scale") or head == "layer_0":
            actual[name] = mlm[name]
        elif head in ("layer_1", "layer_2") and "memory" not in rest:
            actual[name] = lm[f"layer_{int(head[-1]) - 1}/{rest}"]
        elif head == "stage_1_norm" or name.startswith(("layer_3/attention_n", "layer_3/mlp_n")):
            actual[name] = lm[f"stage_0_norm/{name.rpartition('/')[2]}"]
        elif name.startswith("layer_3/mlp/wi/"):
            actual[name] = lm["layer_0/" + rest]
    return actual


def assert_all_equal(actual: dict, desired: dict) -> None:
    assert actual.keys() == desired.keys()
    for name, array in desired.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)


def start(folders, parts, model: Model = NEW, frozen=(), **changes):
    config = dataclasses.replace(config_with(model), optimizer=Optimizer(frozen=frozen))
    config = dataclasses.replace(config, train=Train(methods=(Graft(parts),) if parts else ()))
    like = parameter_shapes(model, made_vocabulary().size)
    return read_initial_params(specs(folders, **changes), like, config, made_vocabulary())


def test_every_array_is_copied_or_randomly_initialised(source_runs):
    folders, arrays = source_runs
    initial = read_all(random_params(NEW, made_vocabulary().size, seed=1))
    initial = jax.device_put(initial, tree_sharding(make_mesh(Mesh(fsdp=2, tensor=2)), initial))
    mapped = start(folders, PARTS)
    replaced = mapped.replace(initial)
    assert jax.tree.all(jax.tree.map(lambda a, b: a.sharding == b.sharding, replaced, initial))
    actual, desired = flat(replaced), expected(arrays, flat(initial))
    assert_all_equal(actual, desired)
    assert sum(actual[name] is not array for name, array in desired.items()) > 56
    mlm, lm, new = mapped.report
    assert mlm.startswith(f"'mlm' started from {folders['mlm']}, step 0: 18 arrays of embedding, ")
    # Of its second layer, the decoder's, nothing was asked; of the norm, the scale alone.
    assert "not used layer_1/attention" in mlm and mlm.endswith("stage_1_norm/scale")
    assert lm.startswith("'lm' ") and lm.endswith("not used embedding")
    assert "layer_{1-3}/memory_attention" in new and new.startswith("new: layer_3/attent")


def test_ranges_are_mapped_in_order():
    move = ParamMapping("lm", "layer_{0-2}/mlp", "layer_{9-11}/mlp")
    assert list(move.expand()) == [(f"layer_{n}/mlp", f"layer_{n + 9}/mlp") for n in range(3)]
    assert list(ParamMapping("lm", "embedding", "table").expand()) == [("embedding", "table")]


def test_the_mappings_in_the_documentation_are_valid(tmp_path):
    page = (ROOT / "docs" / "finetuning.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```gin\n(Train.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "graft.gin").write_text(block)
    moves = load_config([str(tmp_path / "graft.gin")]).train.methods[0].param_mappings(Model())
    assert {move.run_name for move in moves} == {"enc", "lm"}
    shapes = parameter_shapes(dataclasses.replace(NEW, stage_layers=(12, 12)), 80)
    for move in moves:
        for _, put in move.expand():
            assert functools.reduce(operator.getitem, put.split("/"), shapes) is not None


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ("('lm', 'a', 'b')", r"Graft.parts=.* a tuple of tuples, such as \(\('lm', 'a', 'b'\),\)"),
        ("(('lm', 'a'),)", r"Graft.parts=\('lm', 'a'\) must be the name of a source run"),
        ("(('lm', 'a', 3),)", "Graft.parts=.* must be a string in quotes"),
        ("(('l=m', 'a', 'b'),)", "'l=m' is not a valid name of a source run"),
        ("(('lm', 'layer_*', 'b'),)", "'layer_.' must be a path such as 'layer_0/mlp', with one"),
        ("(('lm', 'a_{1-0}', 'b_{1-0}'),)", "'a_{1-0}' must be a path"),
        ("(('lm', 'a_{0-1}/b_{0-1}', 'b_{0-1}'),)", "'a_{0-1}/b_{0-1}' must be a path"),
        ("(('lm', 'a_{0-5}', 'b_{6-8}'),)", "maps 6 paths to 3; make both ranges equally long"),
        ("(('lm', 'a', 'b_{6-8}'),)", "maps 1 paths to 3"),
    ],
)
def test_invalid_mappings_are_refused_with_their_location(parts, message, tmp_path):
    file = tmp_path / "own.gin"
    file.write_text(f"Train.methods = ('graft',)\nGraft.parts = {parts}\n")
    with pytest.raises(UserError, match=rf"own.gin:2: .*{message}") as caught:
        load_config([str(file)])
    assert "\n" not in str(caught.value)


def test_a_graft_is_saved_and_can_be_resumed(tmp_path):
    file = tmp_path / "own.gin"
    file.write_text(f"WHERE = 'embedding'\nTrain.methods = ('graft',)\nGraft.parts = {PARTS!r}\n")
    config = load_config([str(file)], ["Graft.parts=[['lm', 'embedding', %WHERE]]"])
    assert config.train.methods == (Graft((("lm", "embedding", "embedding"),)),)
    save_config(config, tmp_path / "config.gin")
    assert load_config([], run=tmp_path / "config.gin") == config
    plain = load_config([])
    assert changed_fields(config, plain) == changed_fields(plain, config) == []
    instructcl = load_config([], ["Train.methods=('instructcl',)"])
    assert len(changed_fields(config, instructcl)) == 1


@pytest.mark.parametrize(
    ("parts", "changes", "message"),
    [
        ((("lm", "layr_0", "layer_0"),), {}, "'lm' has no 'layr_0'; did you mean layer_0"),
        ((("lm", "layer_{0-2}", "layer_{0-2}"),), {}, "'lm' has no 'layer_2'; did you mean"),
        ((("lm", "layer_0/mlp", "layer_9/mlp"),), {}, "new model has no 'layer_9/mlp'; did you"),
        ((("lm", "layer_0", "embedding"),), {}, "has attention, .*'embedding' has no parts"),
        (
            (("lm", "layer_0/mlp", "layer_0/attention"),),
            {},
            "has wi, wo and 'layer_0/att.* has key",
        ),
        (
            (("lm", "layer_0/mlp/wi", "layer_0/mlp/wo"),),
            {},
            r"\(24,\) there \('layer_0/mlp/wi/b.*\(16,\) h",
        ),
        (
            (("lm", "layer_0", "layer_0"), ("mlm", "layer_1/mlp", "layer_0/mlp")),
            {},
            r"\('mlm', .*: 'layer_0/mlp/wi/bias' is already the target of \('lm', .*; remove one",
        ),
        (PARTS, {"x": "RUN"}, "--initialize_from=x=RUN: parameters are copied from mlm, lm; give"),
        (PARTS, {"lm": None}, "copies from a run that is not named; give --initialize_from=lm=RUN"),
        (PARTS, {"lm": None, "mlm": None}, r"\('mlm', .*give --initialize_from=mlm=RUN"),
        (PARTS, {"": "RUN"}, "--initialize_from=RUN: parameters are copied from mlm, lm"),
        (
            (),
            {"lm": None},
            "mlm: no method copies parameters from 'mlm'.*or name parts in Graft.parts",
        ),
        ((), {"mlm": None}, "--initialize_from=lm=.*no method copies"),
    ],
)
def test_mismatched_parameters_are_one_error_line(source_runs, parts, changes, message):
    folders = {name: folder for name, folder in (source_runs[0] | changes).items() if folder}
    used = {part[0] for part in parts}
    if not changes:
        folders = {name: folder for name, folder in folders.items() if name in used}
    with pytest.raises(UserError, match=message) as caught:
        start(folders, parts)
    assert "\n" not in str(caught.value)


def test_two_source_runs_of_equal_name_and_an_empty_graft_are_refused(source_runs):
    config = config_with(NEW)
    twice = [SourceRunSpec(folder, name="lm") for folder in source_runs[0].values()]
    with pytest.raises(UserError, match="lm: its name is not unique; give each name once"):
        read_initial_params(twice, {}, config, made_vocabulary())
    with pytest.raises(UserError, match="several runs need NAME=RUN each"):
        read_initial_params([SourceRunSpec("a"), SourceRunSpec("b")], {}, config, made_vocabulary())
    empty = dataclasses.replace(config, train=Train(methods=(Graft(),)))
    with pytest.raises(UserError, match=r"Graft.parts=\(\) names no parameters"):
        read_initial_params([], {}, empty, made_vocabulary())


def test_settings_invisible_in_shapes_are_compared(source_runs, tmp_path):
    """Pre- and post-norm have the same shapes; an embedding is the same under both."""
    folders = {"lm": source_runs[0]["lm"]}
    other = dataclasses.replace(NEW, norm="post", positions=("sinusoidal", 100.0))
    message = "Model.norm is 'pre' there, 'post' here; Model.positions is .*10000.0"
    for part in ("layer_0", "layer_0/mlp"):
        with pytest.raises(UserError, match=f"--initialize_from=lm=.*: {message}"):
            start(folders, (("lm", part, part),), other)
    assert start(folders, (("lm", "embedding", "embedding"),), other)
    wider = dataclasses.replace(NEW, mlp=32)
    with pytest.raises(UserError, match=r"'layer_0/mlp/wi/bias' is \(24,\) there, \(32,\) here"):
        start(folders, (("lm", "layer_0", "layer_0"),), wider)
    assert start(folders, (("lm", "layer_0/attention", "layer_0/attention"),), wider)


def test_copying_a_table_needs_the_same_vocabulary(source_runs, tmp_path):
    other = dataclasses.replace(made_vocabulary(), languages=("de", "en", "fr"))
    write_random_run(tmp_path / "other", SOURCE_MODELS["lm"], vocabulary=other)
    folders = {"lm": tmp_path / "other"}
    remedy = f"make the cache with --vocabulary={tmp_path / 'other' / 'vocabulary'}"
    with pytest.raises(UserError, match=f"vocabulary, on which 'embedding' depends.*{remedy}"):
        start(folders, (("lm", "layer_0", "layer_0"), ("lm", "embedding", "embedding")))
    assert start(folders, (("lm", "layer_0", "layer_0"),))


def test_no_weight_is_copied_without_its_lora(tmp_path):
    """LoRA of parameters that are not copied is ignored."""
    model = dataclasses.replace(SOURCE_MODELS["lm"], lora_rank=2, lora=("query",))
    folder = tmp_path / "tuned"
    RunDirectory(folder).prepare(config_with(model), made_vocabulary(), has_checkpoint=False)
    shapes = parameter_shapes(model, made_vocabulary().size)
    write_params(folder, jax.tree.map(lambda a: LazyArray.of(np.ones(a.shape, a.dtype)), shapes))
    for part in ("layer_0", "layer_0/attention/query/kernel"):
        with pytest.raises(UserError, match=r"lm=.*new model has no LoRA; merge.*lora_rank=2"):
            start({"lm": folder}, (("lm", part, part),))
    assert start({"lm": folder}, (("lm", "layer_0/mlp", "layer_0/mlp"),))
    same = dataclasses.replace(NEW, lora_rank=2, lora=("query",))
    part = ("lm", "layer_0", "layer_3")
    with pytest.raises(UserError, match="no source run has .*, and Model.lora_rank=2 would freeze"):
        start({"lm": folder}, (part,), same)
    mapped = start({"lm": folder}, (part,), same, frozen=("layer_3/attention",))
    assert "layer_3/attention/query/lora_a" in mapped.sources


def flags(folders, cache, workdir) -> list[str]:
    """Return the flags of a command that creates the run without an update."""
    bound = {"Data.cache": str(cache), "Data.rows": 8, "Train.steps": 0}
    bound |= {f"Model.{name}": getattr(NEW, name) for name in ("layout", "stage_layers", *SIZES)}
    bound |= {"Train.methods": ("graft",), "Graft.parts": PARTS}
    bound |= {"Data.source_length": 16, "Data.target_length": 16}
    runs = [f"--initialize_from={name}={folder}" for name, folder in folders.items()]
    gin = [f"--gin.{name}={value!r}" for name, value in bound.items()]
    return [f"--workdir={workdir}", *runs, "--initialize_step=lm=0", *gin]


def test_the_command_makes_the_same_run_on_any_mesh(source_runs, cache, tmp_path, capfd):
    folders, arrays = source_runs
    for name, meshes in (("one", one_device()), ("eight", contextlib.nullcontext())):
        split = ["--gin.Mesh.fsdp=2", "--gin.Mesh.tensor=2"] if name == "eight" else []
        with meshes:
            command("train", *flags(folders, cache, tmp_path / name), *split)
    one, eight = (flat(load_params(tmp_path / name)[0]) for name in ("one", "eight"))
    assert_all_equal(eight, one)
    assert_all_equal(one, expected(arrays, one))
    rest = [name for name in one if name.startswith("layer_3/attention/") and "kernel" in name]
    assert len(rest) == 4 and all(one[name].std() > 0 for name in rest)
    captured = capfd.readouterr()
    assert "'lm' started from" in captured.out + captured.err
    origin = json.loads((tmp_path / "one" / "origin.json").read_text(encoding="utf-8"))
    assert origin["origin"] == f"mlm={folders['mlm']}, lm={folders['lm']}"
    assert "; new: " in origin["report"] and "not used embedding" in origin["report"]
    assert origin["moves"] == [list(part) for part in PARTS]


def test_a_graft_is_the_sole_source_of_another_run(tmp_path):
    """With the graft among its methods, as in `--gin_file=RUN/config.gin`, or without it."""
    config = dataclasses.replace(config_with(NEW), train=Train(methods=(Graft(PARTS),)))
    arrays = flat(write_random_run(tmp_path / "run", NEW, config=config))
    vocabulary, sources = made_vocabulary(), [SourceRunSpec(tmp_path / "run")]
    shapes = parameter_shapes(NEW, vocabulary.size)
    for other in (config, config_with(NEW)):
        initial = read_initial_params(sources, shapes, other, vocabulary)
        copies = {name: source.array for name, source in initial.sources.items()}
        assert_all_equal(copies, arrays)
    changed = dataclasses.replace(config, train=Train(methods=(Graft(PARTS[:1]),)))
    with pytest.raises(UserError, match="parameters are copied from mlm; give"):
        read_initial_params(sources, shapes, changed, vocabulary)


def test_resuming_does_not_copy_again(source_runs, cache, tmp_path):
    """With a changed source run, a missing one, and settings without the graft."""
    folders = {name: tmp_path / name for name in source_runs[0]}
    for name, folder in source_runs[0].items():
        shutil.copytree(folder, folders[name])
    model = {"layout": NEW.layout, "stage_layers": NEW.stage_layers}
    settings = {"log_every": 1, "eval_every": 100, "save_every": 100, "methods": (Graft(PARTS),)}

    def config(steps: int, **changes):
        return make_config(cache, model=model, train=settings | {"steps": steps} | changes)

    with one_device():
        train(config(2), tmp_path / "whole", specs(folders))
        train(config(0), tmp_path / "parts", specs(folders))
        shutil.rmtree(folders["lm"])
        write_random_run(folders["lm"], SOURCE_MODELS["lm"], seed=5)
        shutil.rmtree(folders["mlm"])
        train(config(1), tmp_path / "parts", specs(folders))
        train(config(2, methods=()), tmp_path / "parts")
        whole, parts = (saved(tmp_path / name, 2) for name in ("whole", "parts"))
        assert_all_equal(parts, whole)
        with pytest.raises(UserError, match="mlm/config.gin: no such file"):
            train(config(2), tmp_path / "new", specs(folders))
    assert not (tmp_path / "new" / "config.gin").exists()
    first = flat(load_params(tmp_path / "whole")[0])
    copies = [first[f"{name}/scale"] for name in ("layer_3/attention_norm", "stage_1_norm")]
    assert not np.array_equal(*copies)  # each is trained by itself


@pytest.mark.parametrize(
    ("given_flags", "desired"),
    [
        (["--initialize_from=RUN"], [SourceRunSpec("RUN")]),
        (["--initialize_from=RUN", "--initialize_step=best"], [SourceRunSpec("RUN", "best")]),
        (["--initialize_from=RUN", "--initialize_step=²"], [SourceRunSpec("RUN", "²")]),
        (["--initialize_from=here=there"], [SourceRunSpec("here=there")]),
        (["--initialize_from=lm=here=there"], [SourceRunSpec("here=there", name="lm")]),
        (["--initialize_from=gs://b/a=c"], [SourceRunSpec("gs://b/a=c")]),
        (["--initialize_from=../a=c"], [SourceRunSpec("../a=c")]),
        (
            ["--initialize_from=a=A", "--initialize_from=b=B", "--initialize_step=a=3"],
            [SourceRunSpec("A", 3, "a"), SourceRunSpec("B", None, "b")],
        ),
        (
            ["--initialize_from=a=A", "--initialize_from=b=B", "--initialize_step=average"]
            + ["--initialize_step=b=7"],
            [SourceRunSpec("A", "average", "a"), SourceRunSpec("B", 7, "b")],
        ),
        ([], []),
    ],
)
def test_source_runs_and_steps_on_the_command_line(given_flags, desired, tmp_path, monkeypatch):
    (tmp_path / "here=there").mkdir()
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr("mnmt_jax.training.train.train", lambda *rest, scorer: seen.append(rest[2]))
    command("train", "--workdir=new", *given_flags)
    assert seen == [tuple(desired)]


@pytest.mark.parametrize(
    ("given_flags", "message"),
    [
        (["--initialize_step=3"], "step=3: needs --initialize_from=RUN"),
        (["--initialize_from=a=A", "--initialize_step=b=3"], "b=3: needs --initialize_from=b=RUN"),
        (
            ["--initialize_from=a=A", "--initialize_step=1", "--initialize_step=2"],
            "--initialize_step=2: this name has two steps",
        ),
    ],
)
def test_invalid_steps_of_source_runs_are_refused(given_flags, message):
    with pytest.raises(UserError, match=message):
        command("train", "--workdir=new", *given_flags)
