"""Exported checkpoints in PyTorch and transformers (extra `test`)."""

from __future__ import annotations

import argparse
import collections
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers

from mnmt_jax.decoding.translator import Translator
from mnmt_jax.interop.exporting import export_checkpoint
from mnmt_jax.interop.importing import import_checkpoint
from mnmt_jax.interop.safetensors import read_safetensors
from mnmt_jax.interop.tags import NLLB_LANGUAGES
from mnmt_jax.interop.token_table import rows_of_vocabulary
from mnmt_jax.interop.torch_files import read_torch
from mnmt_jax.model.network import build_model
from mnmt_jax.runs.parameters import load_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import train_sentencepiece
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests import made_foreign
from tests.run_commands import command
from tests.sample_batches import pack
from tests.unit.made_text import sentences

LOGITS_ATOL = 2e-5
OTHER_ENDS = {"activation_function": "gelu", "scale_embedding": False}


@pytest.fixture(scope="module", params=[{}, OTHER_ENDS], ids=["plain", "other_ends"])
def run(tmp_path_factory, request) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    made_foreign.m2m100_directory(folder / "given")
    settings = folder / "given" / "config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | request.param))
    import_checkpoint("huggingface", folder / "given", folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "hf"
    export_checkpoint("huggingface", run, folder)
    return folder


def pairs_of(vocabulary: Vocabulary) -> list[tuple[list[int], list[int]]]:
    """Return source and decoder input of sentence pairs in our ids and M2M-100's layout."""
    pairs = []
    for english, german in zip(sentences("en", 4), sentences("de", 4), strict=True):
        source = [vocabulary.tag_id("en"), *vocabulary.encode(english), 1]
        pairs.append((source, [1, vocabulary.tag_id("de"), *vocabulary.encode(german)]))
    return pairs


def test_transformers_computes_the_same_logits(run, exported):
    config, vocabulary = RunDirectory(run).config(), Vocabulary.load(run / "vocabulary")
    pairs = pairs_of(vocabulary)
    lengths = {"source": max(len(s) for s, _ in pairs), "target": max(len(t) for _, t in pairs)}
    batch = pack([[{"source": s, "target": t}] for s, t in pairs], lengths)
    params, _ = load_params(run)
    model = build_model(config.model, vocabulary.size)
    ours = np.asarray(jax.jit(model.apply)({"params": params}, batch))
    rows = rows_of_vocabulary(vocabulary, tags_last=False)
    torch_model = transformers.M2M100ForConditionalGeneration.from_pretrained(exported)
    torch_model.eval()
    assert torch_model.num_parameters() == sum(leaf.size for leaf in jax.tree.leaves(params))
    valid = {role: batch[f"{role}_segment_ids"] != 0 for role in lengths}
    ids = {
        role: torch.tensor(np.where(valid[role], rows[batch[f"{role}_tokens"]], 1))
        for role in lengths
    }
    with torch.no_grad():
        logits = torch_model(
            input_ids=ids["source"],
            attention_mask=torch.tensor(valid["source"].astype(np.int64)),
            decoder_input_ids=ids["target"],
        ).logits.numpy()
    assert valid["target"].sum() > 10
    np.testing.assert_allclose(
        ours[valid["target"]], logits[valid["target"]][:, rows], atol=LOGITS_ATOL, rtol=0
    )


def test_transformers_reads_the_vocabulary(run, exported):
    vocabulary = Vocabulary.load(run / "vocabulary")
    rows = rows_of_vocabulary(vocabulary, tags_last=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    tokenizer.src_lang = "de"
    compared = 0
    for line in sentences("de", 20):
        ids = [vocabulary.tag_id("de"), *vocabulary.encode(line), vocabulary.eos_id]
        assert tokenizer(line)["input_ids"] == rows[ids].tolist()
        text = tokenizer.decode(rows[ids], skip_special_tokens=True)
        assert text.strip() == vocabulary.decode(i for i in ids if i != vocabulary.unk_id)
        compared += 1
    assert compared == 20


def test_translations_have_the_same_limit(tmp_path):
    """`max_length` of transformers also counts the first decoder input, the tag and eos."""
    made_foreign.m2m100_directory(tmp_path / "given")
    search = {"max_length": 10, "num_beams": 1}
    made_foreign.write_json(tmp_path / "given" / "generation_config.json", search)
    import_checkpoint("huggingface", tmp_path / "given", tmp_path / "run")
    export_checkpoint("huggingface", tmp_path / "run", tmp_path / "hf")
    vocabulary = Vocabulary.load(tmp_path / "run" / "vocabulary")
    rows = rows_of_vocabulary(vocabulary, tags_last=False)
    translator = Translator.load(tmp_path / "run", bindings=["Decode.buckets=(64,)"])
    assert translator.config.decode.max_length == 7
    lines = sentences("de", 4)
    ours = translator.translate_nbest(lines, source="de", target="en")
    model = transformers.M2M100ForConditionalGeneration.from_pretrained(tmp_path / "hf")
    assert model.generation_config.max_length == 10
    for line, translation in zip(lines, ours, strict=True):
        ids = [vocabulary.tag_id("de"), *vocabulary.encode(line), vocabulary.eos_id]
        (output,) = model.generate(
            torch.tensor([rows[ids].tolist()]),
            forced_bos_token_id=int(rows[vocabulary.tag_id("en")]),
            forced_eos_token_id=2,
            suppress_tokens=[1, 3],
        ).tolist()
        assert translation.limited and len(output) == 10
        assert output[2:] == rows[list(translation.hypotheses[0].tokens)].tolist()


@pytest.mark.parametrize(
    ("model_type", "pieces"), [("bpe", "imported"), ("unigram", "imported"), ("bpe", "trained")]
)
def test_nllb_tokenizer_is_named_where_its_ids_are_right(model_type, pieces, tmp_path, capsys):
    """It computes them from a BPE model that begins with <s>, which vocabularies made here lack."""
    run, folder = tmp_path / "run", tmp_path / "hf"
    made_foreign.nllb_directory(tmp_path / "given", model_type)
    import_checkpoint("huggingface", tmp_path / "given", run)
    vocabulary = Vocabulary.load(run / "vocabulary")
    if pieces == "trained":
        size = vocabulary.size - len(NLLB_LANGUAGES)
        options = SentencePieceOptions(size, model_type, byte_fallback=False)
        trained = train_sentencepiece({"de": sentences("de", 200)}, None, options=options)
        shutil.rmtree(run / "vocabulary")
        vocabulary = Vocabulary(trained.model, NLLB_LANGUAGES)
        vocabulary.save(run / "vocabulary")
    command("export_checkpoint", "--run", run, "--output", folder)
    is_named = model_type == "bpe" and pieces == "imported"
    assert (folder / "tokenizer_config.json").is_file() == is_named
    assert ("no tokenizer for this vocabulary" in capsys.readouterr().err) != is_named
    if is_named:
        rows = rows_of_vocabulary(vocabulary, tags_last=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, src_lang="deu_Latn")
        assert type(tokenizer).__name__ == "NllbTokenizer"
        for line in sentences("de", 20):
            ids = [vocabulary.tag_id("de"), *vocabulary.encode(line), vocabulary.eos_id]
            assert tokenizer(line)["input_ids"] == rows[ids].tolist()


def test_the_safetensors_package_reads_written_files(exported):
    path = exported / "model.safetensors"
    expected, ours = safetensors.numpy.load_file(path), read_safetensors(path)
    assert expected.keys() == ours.keys() and len(expected) > 20
    for name, value in expected.items():
        np.testing.assert_array_equal(ours[name].read(), value)


def test_torch_files_are_read(tmp_path):
    weight = torch.randn(3, 4)
    state = collections.OrderedDict(
        weight=weight,
        tied=weight,
        transposed=weight.T,
        row=weight[1],
        half=torch.randn(5).half(),
        brain=torch.randn(5).bfloat16(),
        steps=torch.tensor(7),
        parameter=torch.nn.Parameter(torch.randn(2)),
    )
    module = torch.nn.Linear(2, 3)
    settings = argparse.Namespace(encoder_layers=2, device=torch.device("cpu"))
    torch.save({"model": state, "args": settings, "module": module.state_dict()}, tmp_path / "x.pt")
    actual = read_torch(tmp_path / "x.pt")
    for name, tensor in {**state, **module.state_dict()}.items():
        lazy = {**actual["model"], **actual["module"]}[name]
        assert lazy.shape == tuple(tensor.shape)
        np.testing.assert_array_equal(
            lazy.read().astype(np.float32), tensor.detach().float().numpy()
        )
    assert actual["model"]["weight"].storage == actual["model"]["tied"].storage
    assert actual["args"].encoder_layers == 2
    torch.save(module, tmp_path / "module.pt")
    with pytest.raises(ValueError, match="nothing was executed"):
        read_torch(tmp_path / "module.pt")


def test_torch_reads_written_files(tmp_path):
    tensors = made_foreign.fairseq_checkpoint(tmp_path / "fs", "mitre")
    import_checkpoint("fairseq", tmp_path / "fs" / "checkpoint.pt", tmp_path / "run")
    export_checkpoint("fairseq", tmp_path / "run", tmp_path / "out")
    with torch.serialization.safe_globals([argparse.Namespace]):
        actual = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    assert actual["args"].register_factor == 1.5
    versions = {f"{side}.version": np.float32([3]) for side in ("encoder", "decoder")}
    tensors |= versions
    assert actual["model"].keys() == tensors.keys()
    for name, tensor in actual["model"].items():
        np.testing.assert_array_equal(tensor.numpy(), tensors[name])
    names = ("encoder.embed_tokens.weight", "decoder.output_projection.weight")
    first, second = (actual["model"][name] for name in names)
    assert first.data_ptr() == second.data_ptr()
