"""Adapters: LoRA saved separately, loaded and merged, and invalid adapters."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from mnmt_jax.config.loading import save_config
from mnmt_jax.config.sections import Config, Data, Decode, Mesh, Model, Optimizer, Train
from mnmt_jax.data.document_context import Context
from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.interop.adapters import load_adapter, merge_adapter, save_adapter
from mnmt_jax.interop.exporting import export_checkpoint
from mnmt_jax.interop.safetensors import read_safetensors
from mnmt_jax.methods.adaption import Adaption
from mnmt_jax.methods.tpdm import TPDM
from mnmt_jax.model.lora import split_lora
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.runs.new_run import write_run
from mnmt_jax.runs.parameters import load_params
from mnmt_jax.runs.run_directory import RunDirectory
from tests.made_params import assert_same
from tests.unit.made_text import vocabulary as made_vocabulary

MODEL = Model(layout="register", stage_layers=(2,), embed=16, mlp=24, heads=2)
TASKS = {"made_en_de": ("en", "de")}
CONTEXTS = {"made_en_de": Context(64)}
LORA = dataclasses.replace(MODEL, lora_rank=3, lora=("query", "out"))


def config_of(model: Model, **optimizer) -> Config:
    data = Data(instruction="register")
    return Config(data, model, Optimizer(**optimizer), Train(), Decode(), Mesh())


def random_tree(model: Model, seed: int) -> dict:
    """Return random parameters; the base is the same with and without LoRA."""
    lora, base = split_lora(parameter_shapes(model, made_vocabulary().size))
    trees = []
    for number, tree in enumerate((lora, base)):
        rng = np.random.default_rng((seed, number))
        trees.append(
            jax.tree.map(lambda a, r=rng: r.normal(0, 0.3, a.shape).astype(np.float32), tree)
        )
    lora, base = trees
    for layer, attention in lora.items():
        for projection, arrays in attention["attention"].items():
            base[layer]["attention"][projection] |= arrays
    return base


def make_run(folder: Path, model: Model, seed: int = 0, **optimizer) -> dict:
    params = random_tree(model, seed)
    lazy = jax.tree.map(LazyArray.of, params)
    config = config_of(model, **optimizer)
    record = {"origin": ("runs/base", "made"), "tasks": TASKS if model.lora_rank else None}
    record["contexts"] = CONTEXTS
    write_run(folder, config, made_vocabulary(), lazy, **record)
    return params


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Make a base, a run with LoRA on it, and its adapter."""
    folder = tmp_path_factory.mktemp("adapters")
    base = make_run(folder / "base", MODEL)
    tuned = make_run(folder / "tuned", LORA)
    assert_same(split_lora(tuned)[1], base)
    save_adapter(folder / "tuned", folder / "adapter")
    return folder, base, tuned


def test_an_adapter_contains_only_lora(runs):
    folder, _, tuned = runs
    assert {p.name for p in (folder / "adapter").iterdir()} == {
        "adapter.json",
        "adapter.safetensors",
    }
    actual = read_safetensors(folder / "adapter" / "adapter.safetensors")
    assert set(actual) == {
        f"layer_{layer}/attention/{projection}/{matrix}"
        for layer in (0, 1)
        for projection in ("query", "out")
        for matrix in ("lora_a", "lora_b")
    }
    np.testing.assert_array_equal(
        actual["layer_1/attention/out/lora_a"].read(),
        tuned["layer_1"]["attention"]["out"]["lora_a"],
    )
    facts = json.loads((folder / "adapter" / "adapter.json").read_text())
    assert (facts["lora_rank"], facts["lora"], facts["step"]) == (3, ["query", "out"], 0)
    assert facts["base"]["origin"] == "runs/base" and facts["base"]["fingerprint"] > 0


def test_an_adapter_loaded_onto_its_base_equals_the_run(runs, tmp_path):
    folder, _, tuned = runs
    load_adapter(folder / "base", folder / "adapter", tmp_path / "again")
    assert_same(load_params(tmp_path / "again")[0], tuned)
    again = RunDirectory(tmp_path / "again")
    assert again.config() == RunDirectory(folder / "tuned").config()
    assert "with the LoRA of" in again.origin_file.read_text()
    assert again.trained_tasks() == TASKS and not (folder / "base" / "tasks.json").exists()
    assert again.trained_contexts() == CONTEXTS


def test_an_adapter_on_a_base_with_frozen_parameters_trains_alone(runs, tmp_path):
    folder, base, _ = runs
    assert_same(make_run(tmp_path / "base", MODEL, frozen=("embedding",)), base)
    load_adapter(tmp_path / "base", folder / "adapter", tmp_path / "again")
    assert RunDirectory(tmp_path / "again").config().optimizer.frozen == ()
    save_adapter(tmp_path / "again", tmp_path / "adapter")


def test_an_adapter_of_earlier_versions_has_no_contexts(runs, tmp_path):
    folder, _, tuned = runs
    shutil.copytree(folder / "adapter", tmp_path / "adapter")
    without("contexts")(tmp_path / "adapter" / "adapter.json", None)
    load_adapter(folder / "base", tmp_path / "adapter", tmp_path / "again")
    assert_same(load_params(tmp_path / "again")[0], tuned)
    again = RunDirectory(tmp_path / "again")
    assert again.trained_tasks() == TASKS and again.trained_contexts() == {}


def test_the_adapter_sets_the_instruction(runs, tmp_path):
    """A base may have been fine-tuned with another instruction than it was trained with."""
    folder, _, _ = runs
    shutil.copytree(folder / "tuned", tmp_path / "tuned")
    config = config_of(LORA)
    data = dataclasses.replace(config.data, instruction="1")
    save_config(dataclasses.replace(config, data=data), tmp_path / "tuned" / "config.gin")
    save_adapter(tmp_path / "tuned", tmp_path / "adapter")
    load_adapter(folder / "base", tmp_path / "adapter", tmp_path / "again")
    assert RunDirectory(tmp_path / "again").config().data.instruction == "1"
    assert RunDirectory(folder / "base").config().data.instruction == "register"


def test_merged_weights_are_w_plus_a_b(runs, tmp_path):
    folder, base, tuned = runs
    merge_adapter(folder / "tuned", tmp_path / "merged")
    assert RunDirectory(tmp_path / "merged").config().model.lora_rank == 0
    assert RunDirectory(tmp_path / "merged").trained_tasks() == TASKS
    assert RunDirectory(tmp_path / "merged").trained_contexts() == CONTEXTS
    merged, _ = load_params(tmp_path / "merged")
    changed = 0
    for path, actual in jax.tree_util.tree_leaves_with_path(merged):
        names = [entry.key for entry in path]
        expected, lora = base, tuned
        for name in names:
            expected, above, lora = expected[name], lora, lora.get(name)
        if names[-2:] in (["query", "kernel"], ["out", "kernel"]):
            letters = "mr,rhd->mhd" if names[-2] == "query" else "hdr,rm->hdm"
            expected = expected + np.einsum(letters, above["lora_a"], above["lora_b"])
            changed += 1
            np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7)
        else:
            np.testing.assert_array_equal(actual, expected)
    assert changed == 4


def test_an_export_is_merged(runs, tmp_path):
    folder, _, _ = runs
    merge_adapter(folder / "tuned", tmp_path / "merged")
    for name, run in (("one", folder / "tuned"), ("two", tmp_path / "merged")):
        export_checkpoint("huggingface", run, tmp_path / name)
    one, two = (
        {n: t.read() for n, t in read_safetensors(tmp_path / name / "model.safetensors").items()}
        for name in ("one", "two")
    )
    assert_same(one, two)


def refuse(message: str, action, *arguments, absent: Path):
    with pytest.raises(UserError, match=message) as caught:
        action(*arguments)
    assert "\n" not in str(caught.value)
    assert not absent.exists()


def test_another_base_is_refused(runs, tmp_path):
    folder, _, _ = runs
    out = tmp_path / "out"
    make_run(tmp_path / "other", MODEL, seed=1)
    load = load_adapter, tmp_path / "other", folder / "adapter", out
    refuse("not the parameters that .*adapter was trained on; those are of runs/base", *load,
           absent=out)  # fmt: skip
    stages = dataclasses.replace(MODEL, stage_mlp=(32,))
    make_run(tmp_path / "stages", stages)
    load = load_adapter, tmp_path / "stages", folder / "adapter", out
    refuse(r"another model: Model.stage_mlp is \[32\], the adapter's \[\]", *load, absent=out)
    wider = dataclasses.replace(MODEL, mlp=32, layout="register_open")
    make_run(tmp_path / "wider", wider)
    load = load_adapter, tmp_path / "wider", folder / "adapter", out
    refuse("Model.layout is 'register_open', the adapter's 'register'; Model.mlp is 32", *load,
           absent=out)  # fmt: skip
    load = load_adapter, folder / "tuned", folder / "adapter", out
    refuse("has LoRA already", *load, absent=out)


def test_a_base_with_other_settings_of_a_method(tmp_path):
    """A rate of dropout is no other model; a width is, and is named."""
    methods = [(Adaption(24, 0.1),), (Adaption(24, 0.3),), (Adaption(32, 0.1),)]
    base, tuned, other = [
        Model("two_stage", (1, 1), embed=16, mlp=24, heads=2, methods=chosen) for chosen in methods
    ]
    make_run(tmp_path / "base", base)
    make_run(tmp_path / "tuned", dataclasses.replace(tuned, lora_rank=2))
    make_run(tmp_path / "other", other)
    save_adapter(tmp_path / "tuned", tmp_path / "adapter")
    load_adapter(tmp_path / "base", tmp_path / "adapter", tmp_path / "again")
    load = load_adapter, tmp_path / "other", tmp_path / "adapter", tmp_path / "out"
    message = r"another model: Adaption.mlp is 32, the adapter's 24$"
    refuse(message, *load, absent=tmp_path / "out")


def test_runs_without_lora_are_refused(runs, tmp_path):
    folder, _, _ = runs
    out = tmp_path / "out"
    for action in (save_adapter, merge_adapter):
        refuse("base: has no LoRA; name a run", action, folder / "base", out, absent=out)
        refuse("no such file", action, tmp_path / "nothing", out, absent=out)
    make_run(tmp_path / "more", LORA, frozen=("embedding",))
    refuse("more than its LoRA was trained", save_adapter, tmp_path / "more", out, absent=out)
    critic = Model("encoder_decoder", (1, 1), embed=16, mlp=24, heads=2, methods=(TPDM(layer=1),))
    make_run(tmp_path / "critic", dataclasses.replace(critic, lora_rank=2))
    message = "critic: more than its LoRA was trained .critic"
    refuse(message, save_adapter, tmp_path / "critic", out, absent=out)
    merge_adapter(tmp_path / "more", out)
    with pytest.raises(UserError, match="already exists"):
        merge_adapter(tmp_path / "more", out)


def damaged(folder: Path, name: str, change) -> Path:
    shutil.copytree(folder / "adapter", folder / name)
    change(folder / name / "adapter.json", folder / name / "adapter.safetensors")
    return folder / name


def without(key):
    def change(facts, _):
        values = json.loads(facts.read_text())
        del values[key]
        facts.write_text(json.dumps(values))

    return change


def flip(_, tensors):
    content = bytearray(tensors.read_bytes())
    content[-3] ^= 1
    tensors.write_bytes(content)


def replaced(text, new):
    def change(facts, _):
        assert facts.read_text().count(text) == 1
        facts.write_text(facts.read_text().replace(text, new))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda facts, _: facts.unlink(), "adapter.json: no such file"),
        (lambda facts, _: facts.write_text("{"), "adapter.json: cannot be read"),
        (lambda facts, _: facts.write_text("{}"), "adapter.json: cannot be read"),
        (without("instruction"), "adapter.json: lacks instruction"),
        (
            replaced('"pieces": 64', '"pieces": 0'),
            "adapter.json: contexts: made_en_de: pieces=0 must be an",
        ),
        (
            replaced('"made_en_de": {', '"other": {'),
            "adapter.json: contexts: 'other' is not one of the tasks; save the adapter again",
        ),
        (
            replaced('"lora_rank": 3', '"lora_rank": 4'),
            r"out/lora_a' is \(2, 8, 3\), the model's is \(2, 8, 4\)",
        ),
        (flip, "adapter.safetensors: differs from what was saved"),
        (lambda _, tensors: tensors.unlink(), "adapter.safetensors: no such file"),
    ],
)
def test_a_damaged_adapter_is_refused(runs, tmp_path, change, message):
    folder, _, _ = runs
    shutil.copytree(folder / "adapter", tmp_path / "adapter")
    adapter, out = damaged(tmp_path, "bad", change), tmp_path / "out"
    refuse(message, load_adapter, folder / "base", adapter, out, absent=out)
