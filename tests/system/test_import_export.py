"""Import and export commands: imported runs translate, and files round-trip."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from mnmt_jax.config.sections import Data
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import MnmtWarning, UserError
from mnmt_jax.interop.exporting import export_checkpoint
from mnmt_jax.interop.huggingface import export_huggingface
from mnmt_jax.interop.importing import import_checkpoint
from mnmt_jax.interop.safetensors import read_safetensors
from mnmt_jax.interop.torch_files import read_torch
from mnmt_jax.runs.new_run import write_run
from mnmt_jax.runs.parameters import load_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests import made_foreign
from tests.made_params import assert_same, plain_rows, zeros_of
from tests.run_commands import command
from tests.unit.made_text import sentence
from tests.unit.made_text import vocabulary as made_vocabulary

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden"
HISTORY = {"criterion_name", "optimizer_name", "lr_scheduler_state", "num_updates"}
BINDINGS = ("Decode.batch=2", "Decode.buckets=(16,)", "Decode.max_length=6")


def translate(run: Path, source: str, target: str) -> list[str]:
    translator = Translator.load(run, bindings=BINDINGS)
    return translator.translate([sentence(1, "en"), ""], source=source, target=target)


def read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    index = folder / "model.safetensors.index.json"
    path = index if index.is_file() else folder / "model.safetensors"
    return {name: tensor.read() for name, tensor in read_safetensors(path).items()}


def assert_equal(actual: dict, expected: dict) -> None:
    assert actual.keys() == expected.keys() and len(actual) > 20
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


def test_m2m100_round_trip(tmp_path, capsys):
    tensors = made_foreign.m2m100_directory(tmp_path / "hf", shard_bytes=6000)
    assert len(list((tmp_path / "hf").glob("model-*-of-*.safetensors"))) > 2
    settings = tmp_path / "hf" / "config.json"
    values = json.loads(settings.read_text())
    made_foreign.write_json(settings, values | {"encoder_layerdrop": 0.05})
    run = tmp_path / "runs" / "m2m"
    arguments = "--format", "huggingface", "--input", tmp_path / "hf", "--output", run
    with pytest.warns(MnmtWarning, match="hf: dropped, .*: encoder_layerdrop=0.05$"):
        command("import_checkpoint", *arguments)
    assert capsys.readouterr().out == f"{run}\n"
    made_foreign.write_json(settings, values)
    assert {path.name for path in run.iterdir()} == {
        "checkpoints",
        "config.gin",
        "origin.json",
        "vocabulary",
    }
    config = RunDirectory(run).config()
    vocabulary = Vocabulary.load(run / "vocabulary")
    assert config.model.vocab_size == vocabulary.size == len(tensors["model.shared.weight"])
    assert config.data.instruction == "5" and config.decode.beam_size == 3
    first, blank = translate(run, "en", "de")
    assert blank == "" and first == translate(run, "en", "de")[0]
    command("export_checkpoint", "--run", run, "--output", tmp_path / "again")
    assert "AutoTokenizer" not in capsys.readouterr().err
    assert_equal(tensors_of(tmp_path / "again"), tensors)
    before, after = (
        json.loads((tmp_path / d / "config.json").read_text()) for d in ("hf", "again")
    )
    assert after | before == after | {"num_beams": 3}
    ids, ids_after = (
        json.loads((tmp_path / d / "vocab.json").read_text()) for d in ("hf", "again")
    )
    assert ids == ids_after
    second = tmp_path / "second"
    import_checkpoint("huggingface", tmp_path / "again", second)
    assert_same(load_params(second)[0], load_params(run)[0])
    assert Vocabulary.load(second / "vocabulary").fingerprint == vocabulary.fingerprint
    assert RunDirectory(second).config() == config


@pytest.mark.parametrize("prefix", ["model.decoder.", "model."])
def test_mitre_round_trip(tmp_path, prefix, capsys):
    tensors = made_foreign.mitre_directory(tmp_path / "hf", prefix)
    import_checkpoint("huggingface", tmp_path / "hf", tmp_path / "run")
    config = RunDirectory(tmp_path / "run").config()
    assert (config.model.layout, config.data.instruction) == ("register", "register")
    assert translate(tmp_path / "run", "en", "vi")[1] == ""
    capsys.readouterr()
    command("export_checkpoint", "--run", tmp_path / "run", "--output", tmp_path / "again")
    warning = capsys.readouterr().err
    assert "no class for layout 'register'" in warning and "no tokenizer" not in warning
    files = (tmp_path / "again").iterdir()
    assert {path.name for path in files} >= {"config.json", "mitre_spm.model", "vocab.json"}
    expected = {n.replace(prefix, "model.decoder.", 1): value for n, value in tensors.items()}
    assert_equal(tensors_of(tmp_path / "again"), expected)
    import_checkpoint("huggingface", tmp_path / "again", tmp_path / "second")
    assert_same(load_params(tmp_path / "second")[0], load_params(tmp_path / "run")[0])


def problems_in_fairseq(data: dict) -> list[str]:
    """Return why fairseq could not load a checkpoint.

    Its `checkpoint_utils` takes a file without a history of optimizers for one of 2018, which has
    other entries in its place, and its sides of versions before the final norm have none.
    """
    problems = []
    history = data.get("optimizer_history") or [{"best_loss": data.get("best_loss")}]
    if history[-1].keys() != HISTORY:
        problems.append(f"history {sorted(history[-1])}")
    iterator = data.get("extra_state", {}).get("train_iterator", {})
    if iterator.keys() != {"epoch", "iterations_in_epoch"} or iterator["epoch"] < 1:
        problems.append(f"iterator {sorted(iterator)}")
    if data.get("last_optimizer_state") is not None:
        problems.append("the state of an optimizer that does not fit every training")
    tensors = {name: tensor.read() for name, tensor in data["model"].items()}
    for side in ("encoder", "decoder"):
        version = tensors.pop(f"{side}.version", np.float32([1]))[0]
        has_norm = version >= {"encoder": 2, "decoder": 3}[side]
        problems += [
            f"unexpected {name}"
            for name in tensors
            if name.startswith(f"{side}.layer_norm.") and not has_norm
        ]
    return problems


@pytest.mark.parametrize("entry", ["optimizer_history", "extra_state", "encoder.version"])
def test_fairseq_needs_every_entry_of_an_export(tmp_path, entry):
    made_foreign.fairseq_checkpoint(tmp_path / "fs", "encoder_decoder")
    import_checkpoint("fairseq", tmp_path / "fs" / "checkpoint.pt", tmp_path / "run")
    export_checkpoint("fairseq", tmp_path / "run", tmp_path / "again")
    data = read_torch(tmp_path / "again" / "checkpoint.pt")
    assert problems_in_fairseq(data) == []
    del (data if entry in data else data["model"])[entry]
    assert problems_in_fairseq(data)


@pytest.mark.parametrize("kind", made_foreign.FAIRSEQ_MODELS)
def test_fairseq_round_trip(tmp_path, kind):
    tensors = made_foreign.fairseq_checkpoint(tmp_path / "fs", kind)
    path = tmp_path / "fs" / "checkpoint.pt"
    import_checkpoint("fairseq", path, tmp_path / "run")
    config = RunDirectory(tmp_path / "run").config()
    if kind in ("mitre", "two_stage"):
        assert translate(tmp_path / "run", "en", "de")[1] == ""
    command("export_checkpoint", "--run", tmp_path / "run", "--format", "fairseq", "--output",
            tmp_path / "again")  # fmt: skip
    data = read_torch(tmp_path / "again" / "checkpoint.pt")
    state = data["model"]
    versions = {f"{name.partition('.')[0]}.version": np.float32([3]) for name in tensors}
    assert_equal({name: tensor.read() for name, tensor in state.items()}, tensors | versions)
    assert problems_in_fairseq(data) == []
    embeddings = {state[name].storage for name in state if "embed_tokens" in name}
    assert len(embeddings) == (2 if "transformer" in (kind, kind[-11:]) else 1)
    import_checkpoint("fairseq", tmp_path / "again" / "checkpoint.pt", tmp_path / "second")
    assert_same(load_params(tmp_path / "second")[0], load_params(tmp_path / "run")[0])
    assert RunDirectory(tmp_path / "second").config() == config


@pytest.fixture(scope="module")
def golden_vocabulary(tmp_path_factory) -> Path:
    """Return a vocabulary with as many ids as a golden file."""
    with np.load(GOLDEN / "registers_tiny.npz") as archive:
        size = len(archive["param/encoder.embed_tokens.weight"])
        first_tag = int(archive["first_language_id"])
    vocabulary = made_vocabulary()
    languages = tuple(f"l{n}" for n in range(size - first_tag))
    pieces = tuple(f"piece{n}" for n in range(first_tag - 3))
    folder = tmp_path_factory.mktemp("vocabulary")
    dataclasses.replace(vocabulary, languages=languages, pieces=pieces).save(folder)
    return folder


def test_golden_file(tmp_path, golden_vocabulary):
    arguments = "--format", "golden", "--input", GOLDEN / "registers_tiny.npz"
    command("import_checkpoint", *arguments, "--vocabulary", golden_vocabulary, "--output",
            tmp_path / "run")  # fmt: skip
    params, _ = load_params(tmp_path / "run")
    with np.load(GOLDEN / "registers_tiny.npz") as archive:
        embedding = archive["param/encoder.embed_tokens.weight"]
    np.testing.assert_array_equal(params["embedding"], embedding[plain_rows(len(embedding))])
    assert translate(tmp_path / "run", "l0", "l1")[1] == ""


def test_a_vocabulary_can_be_passed_to_an_import(tmp_path):
    """Pass another --vocabulary than the one beside the weights, in either form."""
    made_foreign.m2m100_directory(tmp_path / "hf")
    import_checkpoint("huggingface", tmp_path / "hf", tmp_path / "own")
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "hf" / name).rename(bare / name)
    for number, folder in enumerate((tmp_path / "own" / "vocabulary", tmp_path / "hf")):
        run = tmp_path / f"given{number}"
        import_checkpoint("huggingface", bare, run, vocabulary=folder)
        assert_same(load_params(run)[0], load_params(tmp_path / "own")[0])
    with pytest.raises(UserError, match="no vocabulary beside the weights"):
        import_checkpoint("huggingface", bare, tmp_path / "none")
    with pytest.raises(UserError, match="no such folder"):
        import_checkpoint("huggingface", bare, tmp_path / "none", vocabulary=tmp_path / "x")
    assert not (tmp_path / "none").exists()


def test_failed_imports_leave_no_files(tmp_path):
    tensors = made_foreign.m2m100_directory(tmp_path / "hf")
    name = "model.decoder.layers.1.fc1.weight"
    made_foreign.write_tensors(
        tmp_path / "hf", tensors | {name: tensors[name][:-1], "x": tensors[name]}
    )
    with pytest.raises(UserError) as refused:
        import_checkpoint("huggingface", tmp_path / "hf", tmp_path / "run")
    assert f"{name} has shape [23, 16], expected [24, 16]" in str(refused.value)
    assert "unexpected x [24, 16]" in str(refused.value) and "2 problems" in str(refused.value)
    made_foreign.write_tensors(tmp_path / "hf", tensors)
    data = (tmp_path / "hf" / "model.safetensors").read_bytes()
    cut = tmp_path / "hf" / "model.safetensors"
    cut.write_bytes(data[:-8])
    with pytest.raises(UserError, match="lies outside the file"):
        import_checkpoint("huggingface", tmp_path / "hf", tmp_path / "run")
    assert {path.name for path in tmp_path.iterdir()} == {"hf"}


def test_existing_files_are_not_overwritten(tmp_path):
    made_foreign.fairseq_checkpoint(tmp_path / "fs", "mitre")
    path = tmp_path / "fs" / "checkpoint.pt"
    with pytest.raises(UserError, match="already exists"):
        import_checkpoint("fairseq", path, tmp_path / "fs")
    (tmp_path / "run").mkdir()  # empty: may be used
    import_checkpoint("fairseq", path, tmp_path / "run")
    with pytest.raises(UserError, match="already exists"):
        export_checkpoint("fairseq", tmp_path / "run", tmp_path / "fs")


def test_a_vocabulary_trained_here_round_trips(tmp_path):
    """Vocabularies trained here have no <s>; Hugging Face does not need it, fairseq does."""
    made_foreign.fairseq_checkpoint(tmp_path / "fs", "encoder_decoder")
    import_checkpoint("fairseq", tmp_path / "fs" / "checkpoint.pt", tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    config, (params, _) = run.config(), load_params(run.path)
    vocabulary = made_vocabulary()
    rows = np.random.default_rng(0).normal(size=(vocabulary.size, 16)).astype(np.float32)
    params = params | {"embedding": rows}
    model = dataclasses.replace(config.model, vocab_size=vocabulary.size)
    config = dataclasses.replace(config, model=model, data=Data(instruction="1"))
    (tmp_path / "hf").mkdir()
    export_huggingface(config, params, vocabulary, tmp_path / "hf")
    import_checkpoint("huggingface", tmp_path / "hf", tmp_path / "second")
    assert_same(load_params(tmp_path / "second")[0], params)
    second = RunDirectory(tmp_path / "second")
    assert second.config().data.instruction == "1"
    assert Vocabulary.load(second.vocabulary).fingerprint == vocabulary.fingerprint
    with pytest.raises(UserError, match="starts with <s>"):
        export_checkpoint("fairseq", second.path, tmp_path / "no")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("kind", ["fairseq", "huggingface"])
def test_the_normalization_and_regional_languages_round_trip(tmp_path, kind, capsys):
    made_foreign.fairseq_checkpoint(tmp_path / "fs", "encoder_decoder")
    import_checkpoint("fairseq", tmp_path / "fs" / "checkpoint.pt", tmp_path / "plain")
    run = RunDirectory(tmp_path / "plain")
    data = Data(instruction="5" if kind == "huggingface" else "1")
    config = dataclasses.replace(run.config(), data=data)
    vocabulary = dataclasses.replace(
        Vocabulary.load(run.vocabulary), normalization="nfc", languages=("en", "de", "es_419")
    )
    params = zeros_of(config.model, vocabulary.size)
    write_run(tmp_path / "nfc", config, vocabulary, params, origin=("plain", "made"))
    arguments = "--run", tmp_path / "nfc", "--format", kind, "--output", tmp_path / "out"
    command("export_checkpoint", *arguments)
    warned = "AutoTokenizer would give wrong ids" in capsys.readouterr().err
    assert warned == (kind == "huggingface")
    path = tmp_path / "out" / "checkpoint.pt" if kind == "fairseq" else tmp_path / "out"
    import_checkpoint(kind, path, tmp_path / "again")
    again = Vocabulary.load(tmp_path / "again" / "vocabulary")
    assert again.languages == ("en", "de", "es_419") and again.normalization == "nfc"
    assert again.fingerprint == vocabulary.fingerprint


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("huggingface", {"layout": "prefix", "stage_layers": (2,)}, "no model like 'prefix'"),
        ("huggingface", {"norm": "post"}, "Model.norm='post'"),
        ("fairseq", {"layout": "causal"}, "no model like 'causal'"),
    ],
)
def test_exports_without_a_counterpart_are_refused(tmp_path, kind, changes, message):
    made_foreign.fairseq_checkpoint(tmp_path / "fs", "mitre")
    import_checkpoint("fairseq", tmp_path / "fs" / "checkpoint.pt", tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    config, vocabulary = run.config(), Vocabulary.load(run.vocabulary)
    model = dataclasses.replace(config.model, **changes)
    config, params = dataclasses.replace(config, model=model), zeros_of(model, vocabulary.size)
    write_run(tmp_path / "other", config, vocabulary, params, origin=("fs", "made"))
    with pytest.raises(UserError, match=message):
        export_checkpoint(kind, tmp_path / "other", tmp_path / "out")
    assert not (tmp_path / "out").exists()
