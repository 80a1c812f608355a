"""Every field of another toolkit's files with hostile values: only `UserError` is raised."""

from __future__ import annotations

import argparse
import copy
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnmt_jax.data.document_context import Context
from mnmt_jax.errors import UserError
from mnmt_jax.files.json_objects import parse_json
from mnmt_jax.files.typed_fields import TypedFields, short_repr
from mnmt_jax.interop.adapters import load_adapter, merge_adapter, save_adapter
from mnmt_jax.interop.fairseq import open_fairseq
from mnmt_jax.interop.golden import open_golden
from mnmt_jax.interop.huggingface import open_huggingface
from mnmt_jax.interop.importing import import_checkpoint
from mnmt_jax.interop.safetensors import read_safetensors
from mnmt_jax.interop.torch_files import read_torch, write_torch
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests.made_foreign import (
    FAIRSEQ_MODELS,
    fairseq_checkpoint,
    m2m100_directory,
    mitre_directory,
    nllb_directory,
    write_json,
)
from tests.made_params import write_zero_run

DEEP = "[" * 100_000 + "]" * 100_000
# What `json.dumps` cannot write is put in as text.
TEXTS = {"DEEP": DEEP, "HUGE": "1e999", "DIGITS": "9" * 5000, "SURROGATE": '"\\ud800"'}
HOSTILE: list[Any] = [
    *(-1, 0, 1, 10**12, 10**19, 10**30, 1e308, 0.5, math.nan, math.inf, True, None),
    *("", "x", "\0", "-" * 300, [], {}, [-1], [None], {"x": {}}, [[]]),
    *TEXTS,
]
UNSET = [
    *("langs", "activation_fn", "adaption_flag", "no_encoder_attn_layers"),
    "mnmt_jax_text_normalization",
]  # settings of fairseq's checkpoints that the made ones lack


def paths_of(value: Any, prefix: tuple = ()) -> Iterator[tuple]:
    """Yield the path of every field, but of at most three entries of a list or a large object."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    children = list(children) if isinstance(value, dict | list) else []
    for key, child in children[:3] if len(children) > 20 else children:
        yield (*prefix, key)
        if isinstance(child, dict | list):
            yield from paths_of(child, (*prefix, key))


def changed(value: Any, path: tuple, new: Any) -> Any:
    changed_value = copy.deepcopy(value)
    parent = changed_value
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = new
    return changed_value


def without(value: Any, path: tuple) -> Any:
    changed_value = copy.deepcopy(value)
    parent = changed_value
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    return changed_value


def text_of(value: Any) -> str:
    text = json.dumps(value)
    for name, put in TEXTS.items():
        text = text.replace(json.dumps(name), put)
    return text


def check(action, *arguments: Any) -> str | None:
    """Return the message of a refusal, None if the value was accepted."""
    try:
        action(*arguments)
    except UserError as error:
        assert str(error).count("\n") == 0 or "problems:" in str(error)
        assert len(str(error)) < 3000
        return str(error)
    return None


def fuzz_json(path: Path, action, *arguments: Any) -> int:
    """Put every hostile value into every field of a file; return how many were refused."""
    original = path.read_text(encoding="utf-8")
    values, refused = json.loads(original), 0
    for field in paths_of(values):
        for new in HOSTILE:
            path.write_text(text_of(changed(values, field, new)), encoding="utf-8")
            refused += check(action, *arguments) is not None
        path.write_text(text_of(without(values, field)), encoding="utf-8")
        check(action, *arguments)
    for new in HOSTILE:
        path.write_text(text_of(new), encoding="utf-8")
        refused += check(action, *arguments) is not None
    path.write_text(original, encoding="utf-8")
    return refused


FOLDERS = {"m2m100": m2m100_directory, "nllb": nllb_directory, "mitre": mitre_directory}
EXTRA_FILES = {
    "generation_config.json": {"num_beams": 4, "max_length": 100},
    "added_tokens.json": {"__xx__": 6},
    "tokenizer_config.json": {"added_tokens_decoder": {"5": {"content": "<mask>"}}},
    "special_tokens_map.json": {"additional_special_tokens": ["__en__", {"content": "__de__"}]},
    "tokenizer.json": {
        "model": {"vocab": [["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0]]},
        "added_tokens": [{"content": "__en__", "id": 5}],
    },
}


@pytest.mark.parametrize("name", FOLDERS)
def test_configurations_of_huggingface(tmp_path, name):
    folder = tmp_path / "model"
    FOLDERS[name](folder)
    refused = fuzz_json(folder / "config.json", open_huggingface, folder)
    assert refused > 150
    open_huggingface(folder)


@pytest.mark.parametrize("name", [*EXTRA_FILES, "vocab.json"])
def test_token_lists_of_huggingface(tmp_path, name):
    folder = tmp_path / "model"
    m2m100_directory(folder)
    if name == "vocab.json":
        values = json.loads((folder / name).read_text())
    else:
        values = EXTRA_FILES[name]
    if name == "tokenizer.json":
        (folder / "vocab.json").unlink()
    write_json(folder / name, values)
    assert fuzz_json(folder / name, open_huggingface, folder) > 10


def test_only_fields_that_are_read_are_limited(tmp_path):
    """The tokenizers of transformers write int(1e30) as the length of texts without a limit."""
    m2m100_directory(tmp_path)
    values = {"model_max_length": int(1e30)}
    write_json(tmp_path / "tokenizer_config.json", values)
    open_huggingface(tmp_path)
    fields = TypedFields("file", {"length": 10**30, "other": 1})
    assert fields.integer("other") == fields.get("other") == 1
    for read in (fields.get, fields.text, fields.flag, fields.integer):
        with pytest.raises(UserError, match="^file: length=1000.*0000 must be a number of at most"):
            read("length")


def test_accepted_values_give_a_run_or_an_error(tmp_path):
    """The whole import, for the fields that sizes and memory depend on."""
    folder = tmp_path / "model"
    m2m100_directory(folder)
    values = json.loads((folder / "config.json").read_text())
    for field in ("vocab_size", "d_model", "encoder_layers", "decoder_attention_heads"):
        for number, new in enumerate(HOSTILE):
            if new == values[field]:
                continue
            (folder / "config.json").write_text(text_of(values | {field: new}))
            message = check(import_checkpoint, "huggingface", folder, tmp_path / f"{field}{number}")
            assert message and str(folder) in message, (field, new)


def test_indices_and_headers(tmp_path):
    folder = tmp_path / "model"
    m2m100_directory(folder, shard_bytes=4000)
    index = folder / "model.safetensors.index.json"
    assert fuzz_json(index, read_safetensors, index) > 50
    good = json.loads(index.read_text())
    name = next(iter(good["weight_map"]))
    for file in (index.name, ".", "..", "", "x" * 400, "\0"):
        index.write_text(json.dumps({"weight_map": good["weight_map"] | {name: file}}))
        assert check(read_safetensors, index), file

    path = tmp_path / "one.safetensors"
    header = {"a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}}
    for field in paths_of(header):
        for new in HOSTILE:
            text = text_of(changed(header, field, new)).encode()
            path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
            check(read_safetensors, path)
    for offsets in ("[0, Infinity]", "[0, 1e400]", "[NaN, 8]", "[0.0, 8]", '["0", "8"]'):
        text = text_of(header).replace("[0, 8]", offsets).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
        assert check(read_safetensors, path), offsets


@pytest.mark.parametrize("kind", FAIRSEQ_MODELS)
def test_settings_of_fairseq(tmp_path, kind, monkeypatch):
    fairseq_checkpoint(tmp_path / "fairseq", kind)
    path = tmp_path / "fairseq" / "checkpoint.pt"
    data = read_torch(path)
    settings = vars(data["cfg"]["model"])
    hostile = [*(new for new in HOSTILE if not isinstance(new, str) or new not in TEXTS)]
    hostile += [10**5000, np.float64(2), b"x", argparse.Namespace(x=1)]
    opened: dict[str, Any] = {}
    monkeypatch.setattr("mnmt_jax.interop.fairseq.read_torch", lambda path: opened)
    refused = 0
    for name in [*settings, *UNSET]:
        for new in hostile:
            changed_value = argparse.Namespace(**{**settings, name: new})
            opened = data | {"cfg": {"model": changed_value}}
            refused += check(open_fairseq, path, path.parent) is not None
    for key in ("cfg", "args", "model"):
        for new in hostile:
            opened = data | {key: new}
            refused += check(open_fairseq, path, path.parent) is not None
            opened = data | {"cfg": {"model": settings, "task": new}}
            check(open_fairseq, path, path.parent)
    assert refused > 50


def test_hostile_numbers_in_a_pickle_of_fairseq(tmp_path):
    """Through the file itself, for the sizes."""
    fairseq_checkpoint(tmp_path / "fairseq", "encoder_decoder")
    path = tmp_path / "fairseq" / "checkpoint.pt"
    data = read_torch(path)
    settings = vars(data["cfg"]["model"])
    for name in ("encoder_layers", "decoder_embed_dim", "decoder_attention_heads", "dropout"):
        for number, new in enumerate((-1, 10**12, 1e308, math.nan, "x", [], 10**5000)):
            changed_value = argparse.Namespace(**{**settings, name: new})
            write_torch(tmp_path / "new.pt", data | {"cfg": {"model": changed_value, "task": {}}})
            run = tmp_path / f"{name}{number}"
            message = check(import_checkpoint, "fairseq", tmp_path / "new.pt", run)
            assert message and "new.pt" in message, (name, new)


def test_facts_of_an_adapter(tmp_path, monkeypatch):
    """Parameters, which do not depend on the facts that are accepted, are written once."""
    write_zero_run(tmp_path / "run")
    tasks, contexts = {"made_en_de": ("en", "de")}, {"made_en_de": Context(64)}
    RunDirectory(tmp_path / "run").write_tasks(tasks, contexts)
    merge_adapter(tmp_path / "run", tmp_path / "base")
    save_adapter(tmp_path / "run", tmp_path / "adapter")

    def load() -> None:
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        load_adapter(tmp_path / "base", tmp_path / "adapter", tmp_path / "new")

    load()
    monkeypatch.setattr("mnmt_jax.runs.new_run.write_params", lambda *args, **options: None)
    assert fuzz_json(tmp_path / "adapter" / "adapter.json", load) > 100


def test_facts_of_a_vocabulary(tmp_path):
    m2m100_directory(tmp_path / "model")
    import_checkpoint("huggingface", tmp_path / "model", tmp_path / "run")
    folder = tmp_path / "run" / "vocabulary"
    for name in ("vocabulary.json", "pieces.json"):
        assert fuzz_json(folder / name, Vocabulary.load, folder) > 20
    Vocabulary.load(folder)


def test_values_of_golden_files(tmp_path):
    values = {"dim": 16, "ffn": 24, "heads": 2, "layers": 2, "register_factor": 1.0}
    for name in values:
        for new in (-1, 0, 10**12, math.nan, math.inf, "x", [1, 2], [], 1e308):
            np.savez(tmp_path / "x.npz", **(values | {name: new}))
            check(open_golden, tmp_path / "x.npz")
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04damaged")
    assert check(open_golden, tmp_path / "x.npz")


@pytest.mark.parametrize(
    "text", ["NaN", "[-Infinity]", "1e999", DEEP, '{"a": "\\udfff"}', "1" * 5000]
)
def test_json_that_is_refused(text):
    for given in (text, text.encode()):
        with pytest.raises(ValueError, match="."):
            parse_json(given)


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("text", ['"\\ud800"', '["\\ude42\\ud83d"]', '{"\ud800": 1}'])
def test_half_a_character_is_refused_unless_it_is_allowed(text, finite):
    for json_text in (text, text.encode("utf-8", "surrogatepass")):
        with pytest.raises(ValueError, match="surrogate|can't decode"):
            parse_json(json_text, finite=finite)
        assert parse_json(json_text, finite=finite, allow_surrogates=True)
    assert parse_json('["\\ud83d\\ude42", NaN]', finite=False)[0] == "🙂"


def test_fields_are_read_by_type():
    fields = TypedFields("file", {"a": 2.0, "b": "3", "c": None, "d": "\ud800", "e": True})
    signed = TypedFields("file", {"a": " -5 ", "b": "--5", "c": "-"})
    assert signed.integer("a", low=-9) == -5
    for name in ("b", "c"):
        with pytest.raises(UserError, match=f"^file: {name}='-+5?' must be an integer from -9"):
            signed.integer(name, low=-9)
    assert (fields.integer("a"), fields.integer("b"), fields.integer("c", 4)) == (2, 3, 4)
    assert fields.flag("e") is True and "c" not in fields and "b" in fields
    for name, message in (("c", "^file: lacks c$"), ("e", "^file: e=True must be an integer from")):
        with pytest.raises(UserError, match=message):
            fields.integer(name)
    with pytest.raises(UserError, match=r"from 3 to 1e\+09$"):
        fields.number("a", low=3)
    assert short_repr(10**5000) == "<int>" and len(short_repr("x" * 9999)) < 99
