"""Names, ids and settings of other toolkits: supported and refused ones."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest

from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Decode, Model
from mnmt_jax.design.layouts import LAYOUTS, get_layout
from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.interop import huggingface
from mnmt_jax.interop.ctranslate2 import export_ctranslate2
from mnmt_jax.interop.fairseq import export_fairseq
from mnmt_jax.interop.huggingface import open_huggingface
from mnmt_jax.interop.names import (
    FAIRSEQ,
    M2M100,
    MITRE,
    parameter_entries,
    read_params,
    written_tensors,
)
from mnmt_jax.interop.safetensors import read_safetensors
from mnmt_jax.interop.tags import (
    M2M100_LANGUAGES,
    NLLB_LANGUAGES,
    NLLB_TAGS,
    code_of_tag,
    codes_of_tags,
    tag_tokens,
)
from mnmt_jax.interop.token_table import (
    SPECIAL_NAMES,
    read_hugging_face_table,
    rows_of_vocabulary,
    tokens_for_export,
)
from mnmt_jax.interop.torch_files import write_torch
from mnmt_jax.methods.adaption import Adaption
from mnmt_jax.vocabulary.languages import LANGUAGES as KNOWN
from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests import made_foreign
from tests.made_params import assert_same, plain_rows, random_params, read_all
from tests.unit import made_text
from tests.unit.made_text import LANGUAGES, sentences


def lazy(tensors: dict) -> dict:
    return {name: LazyArray.of(value) for name, value in tensors.items()}


MODELS = {
    name: Model(
        layout=name,
        stage_layers=(1, 2, 1)[: len(row.stages)],
        methods=(Adaption(12),) if "two_stage" in name else (),
        norm="post" if "causal" in name else "pre",
        **made_foreign.SIZES,
    )
    for name, row in LAYOUTS.items()
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_round_trips_through_fairseq_names(name):
    """Read and write are one table; the shapes are those of the model itself."""
    import jax

    from mnmt_jax.model.network import build_model
    from tests.sample_batches import random_pairs, unpacked

    model = MODELS[name]
    layout = get_layout(name, model.stage_layers)
    tensors = made_foreign.random_tensors(model, FAIRSEQ, 17)
    table = parameter_entries(model, layout, FAIRSEQ, plain_rows(17))
    params = read_all(read_params(lazy(tensors), table))
    written = {name: tensor.read() for name, tensor in written_tensors(params, table)}
    assert written.keys() == tensors.keys() and len(written) > 18
    for key, value in tensors.items():
        np.testing.assert_array_equal(written[key], value)
    batch = unpacked(layout, random_pairs(1))
    shapes = jax.eval_shape(build_model(model, 17).init, jax.random.key(0), batch)["params"]
    assert jax.tree.map(lambda a: a.shape, shapes) == jax.tree.map(lambda a: a.shape, params)


def problems_of(tensors: dict, model: Model = MODELS["encoder_decoder"]) -> str:
    layout = get_layout(model.layout, model.stage_layers)
    with pytest.raises(UserError) as refused:
        read_params(lazy(tensors), parameter_entries(model, layout, M2M100, plain_rows(17)))
    return str(refused.value)


def test_all_name_mismatches_are_listed():
    good = made_foreign.random_tensors(MODELS["encoder_decoder"], M2M100, 17)
    bad = dict(good)
    del bad["model.decoder.layers.0.fc1.weight"]
    del bad["model.encoder.layer_norm.bias"]
    bad["model.decoder.layers.1.fc2.weight"] = np.zeros((16, 25), np.float32)
    bad["model.decoder.layers.7.fc1.bias"] = np.zeros(24, np.float32)
    bad["lm_head.weight"] = bad["model.shared.weight"] + 1
    bad["model.encoder.embed_positions.weights"] = np.zeros((9, 16), np.float32)  # computed
    message = problems_of(bad)
    assert message.count("\n  ") == 5 and "5 problems" in message
    for line in (
        "missing decoder.layers.0.fc1.weight [24, 16]",
        "missing encoder.layer_norm.bias [16]",
        "model.decoder.layers.1.fc2.weight has shape [16, 25], expected [16, 24]",
        "unexpected model.decoder.layers.7.fc1.bias [24]",
        "model.shared.weight differs from lm_head.weight: the model has one matrix for both",
    ):
        assert f"\n  {line}" in message
    total = sum(value.size for value in good.values())
    assert f"{total:,} expected" in message


def test_an_unexpected_learned_position_table_is_refused():
    good = made_foreign.random_tensors(MODELS["encoder_decoder"], M2M100, 17)
    message = problems_of(good | {"model.decoder.embed_positions.weight": np.zeros((9, 16))})
    assert "unexpected model.decoder.embed_positions.weight [9, 16]" in message


def test_two_tensors_for_one_name_are_refused():
    good = made_foreign.random_tensors(MODELS["encoder_decoder"], M2M100, 17)
    name = "encoder.layer_norm.bias"
    message = problems_of(good | {f"ema.{name}": good[f"model.{name}"]})
    assert f"ema.{name} and model.{name} both end in {name}" in message


@pytest.mark.parametrize("prefix", ["", "model.", "model.decoder.", "transformer.h."])
@pytest.mark.parametrize("embedding", ["embed_tokens.weight", "shared.weight"])
def test_mitre_tensors_are_found_by_suffix(prefix, embedding):
    model = MODELS["register"]
    layout = get_layout(model.layout, model.stage_layers)
    table = parameter_entries(model, layout, MITRE, plain_rows(17))
    expected = made_foreign.random_tensors(model, MITRE, 17)
    renamed = {
        name.replace("model.decoder.", prefix).replace("embed_tokens.weight", embedding): value
        for name, value in expected.items()
    }
    renamed["lm_head.weight"] = expected["model.decoder.embed_tokens.weight"]
    assert_same(
        read_all(read_params(lazy(renamed), table)), read_all(read_params(lazy(expected), table))
    )


def test_tags():
    assert code_of_tag("__de__") == code_of_tag("deu_Latn") == "de"
    assert code_of_tag("__fil__") == "fil" and code_of_tag("tgl_Latn") == "tl"
    assert code_of_tag("zho_Hans") == "zh" and code_of_tag("zho_Hant") == "zho_Hant"
    regional = {"pt-br": "pt_BR", "zh-cn": "zh", "fr-ca": "fr_CA", "sr@latin": "sr_Latn"}
    for code, ours in (regional | {"es_419": "es_419", "pt_BR": "pt_BR"}).items():
        assert code_of_tag(f"__{code}__") == ours
    assert codes_of_tags(["__zh__", "a", "__zh-cn__", "__zh-tw__", "__fr-ca__"]) == {
        **{"__zh__": "zh", "__zh-cn__": "zh_cn", "__zh-tw__": "zh_Hant", "__fr-ca__": "fr_CA"},
    }
    words = ("__word1__", "__e-mail__", "__2__", "_____", "__-__", "__ a-b__")
    for word in ("de", "▁de", "__", "____", "deu_latn", "<s>", "a_Latn", *words):
        assert code_of_tag(word) is None
    assert len(M2M100_LANGUAGES) == 100 and len(set(NLLB_LANGUAGES)) == len(NLLB_TAGS) == 202
    known = {facts.flores for facts in KNOWN.values()} | {"tgl_Latn", "zho_Hans"}
    for tag, code in zip(NLLB_TAGS, NLLB_LANGUAGES, strict=True):
        assert (code in KNOWN) == (tag in known), tag
    assert set(MITRE_LANGUAGES) <= set(NLLB_LANGUAGES) & set(M2M100_LANGUAGES)
    assert tag_tokens(NLLB_LANGUAGES) == list(NLLB_TAGS)
    assert tag_tokens(("en", "ace_Arab")) == ["__en__", "__ace_Arab__"]


def test_m2m100_vocabulary(tmp_path):
    """With another order than the model's, additional, unused and filler pieces."""
    made_foreign.m2m100_directory(tmp_path / "m2m")
    config = json.loads((tmp_path / "m2m" / "config.json").read_text())
    table = read_hugging_face_table(tmp_path / "m2m", "m2m_100", config["vocab_size"])
    vocabulary, rows = table.vocabulary()
    assert vocabulary.size == config["vocab_size"] == len(rows) == len(set(rows))
    assert vocabulary.languages == M2M100_LANGUAGES
    tags = [f"__{code}__" for code in M2M100_LANGUAGES]
    ours = vocabulary.tokens(range(vocabulary.size))
    assert [table.tokens[i] for i in rows] == ours
    assert ours[:5] == ["<pad>", "</s>", "<unk>", "<s>", made_foreign.m2m100_pieces()[0]]
    assert ours[-100:] == tags and ours[-101] == "madeupword0007"
    assert table.tokens[-8:] == tuple(f"madeupword{n:04d}" for n in range(8))
    np.testing.assert_array_equal(rows_of_vocabulary(vocabulary, tags_last=False), rows)
    assert tokens_for_export(vocabulary, tags, rows) == list(table.tokens)
    _check_text(vocabulary, table)


def _check_text(vocabulary: Vocabulary, table) -> None:
    """Assert the encoding of the original tokenizer: the model's pieces, looked up by name."""
    processor = vocabulary._processor
    unknown = 0
    for language in LANGUAGES:
        for line in sentences(language, 30):
            pieces = processor.encode(line, out_type=str)
            known = [piece if piece in table.tokens else "<unk>" for piece in pieces]
            ids = vocabulary.encode(line)
            assert vocabulary.tokens(ids) == known
            unknown += known.count("<unk>")
            text = vocabulary.decode([vocabulary.tag_id(language), *ids, 1, 0])
            assert text == processor.decode(known)
            if "<unk>" not in known:
                assert text == line
    assert unknown > 0
    extra = table.tokens.index(made_foreign.EXTRA)
    ids = [int(np.flatnonzero(rows_of_vocabulary(vocabulary, tags_last=False) == extra)[0])]
    assert vocabulary.decode(vocabulary.encode("one") + ids).endswith(" extra")


def test_listed_pieces_are_saved(tmp_path):
    made_foreign.m2m100_directory(tmp_path / "m2m")
    size = json.loads((tmp_path / "m2m" / "config.json").read_text())["vocab_size"]
    vocabulary, _ = read_hugging_face_table(tmp_path / "m2m", "m2m_100", size).vocabulary()
    vocabulary.save(tmp_path / "saved")
    loaded = Vocabulary.load(tmp_path / "saved")
    assert loaded.pieces == vocabulary.pieces and loaded.fingerprint == vocabulary.fingerprint
    plain = dataclasses.replace(vocabulary, pieces=None)
    assert plain.fingerprint != vocabulary.fingerprint
    plain.save(tmp_path / "saved")
    assert Vocabulary.load(tmp_path / "saved").pieces is None
    with pytest.raises(UserError, match="listed twice"):
        dataclasses.replace(vocabulary, pieces=("a", "b", "a"))


@pytest.mark.parametrize("name", ["__de__", "<pad>"])
def test_exports_of_pieces_that_are_named_like_other_tokens_are_refused(tmp_path, name):
    """Other toolkits know tokens by name, so one of the two would be lost."""
    plain = made_text.vocabulary()
    vocabulary = dataclasses.replace(plain, pieces=("<s>", *plain.named_pieces, name))
    config = load_config([], ["Data.instruction='5'"])
    config = dataclasses.replace(config, model=MODELS["encoder_decoder"])
    params = random_params(config.model, vocabulary.size)
    for export in (export_ctranslate2, export_fairseq, huggingface.export_huggingface):
        with pytest.raises(UserError, match=f"named '{name}', .* --format t5x"):
            export(config, params, vocabulary, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["pieces", "pieces and tags", "none"])
def test_mitre_ids_follow_from_its_sentencepiece_model(tmp_path, form):
    """For any list of tokens, ids follow from the model and MITRE's languages."""
    made_foreign.mitre_directory(tmp_path / "mitre")
    path = tmp_path / "mitre" / "vocab.json"
    if form == "none":
        path.unlink()
    elif form == "pieces and tags":
        ids = json.loads(path.read_text())
        tags = {f"__{code}__": len(ids) + n for n, code in enumerate(MITRE_LANGUAGES)}
        made_foreign.write_json(path, ids | tags)
    size = len(made_foreign.spm_pieces()) + 4 + 24
    vocabulary, rows = read_hugging_face_table(tmp_path / "mitre", "mitre", size).vocabulary()
    assert vocabulary.pieces is None and vocabulary.languages == MITRE_LANGUAGES
    np.testing.assert_array_equal(rows, plain_rows(size))


@pytest.mark.parametrize("form", ["sentencepiece alone", "tokenizer.json"])
def test_nllb_vocabulary(tmp_path, form):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(made_foreign.spm_model())
    pieces = made_foreign.spm_pieces()
    expected = [*SPECIAL_NAMES, *pieces, *NLLB_TAGS, "<mask>"]
    size = len(expected) + 2
    if form == "tokenizer.json":
        vocab = {token: i for i, token in enumerate(expected[: 4 + len(pieces)])}
        added = [{"id": i, "content": t} for i, t in enumerate(expected) if t not in vocab]
        tokenizer = {"model": {"vocab": vocab}, "added_tokens": added}
        made_foreign.write_json(tmp_path / "tokenizer.json", tokenizer)
    table = read_hugging_face_table(tmp_path, "m2m_100", size)
    assert list(table.tokens[:-2]) == expected
    vocabulary, rows = table.vocabulary()
    assert vocabulary.languages == NLLB_LANGUAGES
    assert [table.tokens[i] for i in rows[-202:]] == list(NLLB_TAGS)
    assert vocabulary.named_pieces[-3:] == ("<mask>", "madeupword0000", "madeupword0001")
    np.testing.assert_array_equal(rows_of_vocabulary(vocabulary, tags_last=False), rows)


def test_nllb_and_its_search_round_trip(tmp_path):
    """With <mask> after the tags, which no other file names."""
    made_foreign.nllb_directory(tmp_path / "nllb", "bpe")
    foreign = open_huggingface(tmp_path / "nllb")
    vocabulary, rows = foreign.tokens.vocabulary()
    config = dataclasses.replace(
        load_config([], ["Data.instruction='5'", "Decode.length_penalty=-0.5"]), model=foreign.model
    )
    params = random_params(config.model, vocabulary.size)
    (tmp_path / "again").mkdir()
    huggingface.export_huggingface(config, params, vocabulary, tmp_path / "again")
    again = open_huggingface(tmp_path / "again")
    assert again.tokens.tokens == foreign.tokens.tokens and "<mask>" in again.tokens.tokens
    assert again.tokens.vocabulary()[0].fingerprint == vocabulary.fingerprint
    settings = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert settings["num_madeup_words"] == 0
    assert foreign.decode.length_penalty == 1.0 and again.decode.length_penalty == -0.5
    made_foreign.write_json(tmp_path / "again" / "generation_config.json", {"length_penalty": 9})
    with pytest.raises(UserError, match=r"generation_config.json: .*length_penalty=9"):
        open_huggingface(tmp_path / "again")


def test_searches_of_hugging_face_are_read_and_the_rest_is_named(tmp_path):
    """Limits there also count the first decoder input, a forced tag and eos."""
    made_foreign.nllb_directory(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text()) | {"activation_dropout": 0.1, "decoder_layerdrop": 0.0}
    made_foreign.write_json(path, config)
    foreign = open_huggingface(tmp_path)
    assert foreign.decode == Decode(beam_size=5, max_length=200)
    assert foreign.dropped == ("activation_dropout=0.1",)
    search = {"num_beams": 2, "max_length": 50, "early_stopping": True, "repetition_penalty": 1.2}
    search |= {"no_repeat_ngram_size": 3, "bad_words_ids": None, "do_sample": False}
    made_foreign.write_json(tmp_path / "generation_config.json", search)
    foreign = open_huggingface(tmp_path)
    assert foreign.decode == Decode(beam_size=2, max_length=47)
    names = ("activation_dropout=0.1", "no_repeat_ngram_size=3", "repetition_penalty=1.2")
    assert foreign.dropped == names
    search = {"max_new_tokens": 50, "max_length": 9}
    made_foreign.write_json(tmp_path / "generation_config.json", search)
    assert open_huggingface(tmp_path).decode.max_length == 48
    made_foreign.mitre_directory(tmp_path / "mitre")
    made_foreign.write_json(tmp_path / "mitre" / "generation_config.json", {"max_length": 50})
    assert open_huggingface(tmp_path / "mitre").decode.max_length == 48


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("vocab.json", {"<s>": 0, "a": 0}, "have the same id 0"),
        ("vocab.json", {"<s>": 99}, "the embedding has 20 rows"),
        ("vocab.json", {t: i for i, t in enumerate("abcd")}, "ids 0 to 3 are not"),
    ],
)
def test_bad_token_tables_are_refused(tmp_path, name, values, message):
    (tmp_path / "spm.model").write_bytes(made_foreign.spm_model())
    made_foreign.write_json(tmp_path / name, values)
    with pytest.raises(UserError, match=message):
        read_hugging_face_table(tmp_path, "mitre", 20).vocabulary()


def test_a_model_of_other_pieces_is_refused(tmp_path):
    (tmp_path / "spm.model").write_bytes(made_foreign.spm_model())
    tokens = [*SPECIAL_NAMES, *(f"other{n}" for n in range(60)), "__en__"]
    made_foreign.write_json(tmp_path / "vocab.json", {t: i for i, t in enumerate(tokens)})
    with pytest.raises(UserError, match="give the SentencePiece model that belongs to it"):
        read_hugging_face_table(tmp_path, "x", len(tokens)).vocabulary()


def test_huggingface_settings(tmp_path):
    made_foreign.m2m100_directory(tmp_path / "m2m")
    foreign = open_huggingface(tmp_path / "m2m")
    expected = Model(layout="encoder_decoder", stage_layers=(1, 2), **made_foreign.SIZES)
    assert foreign.model == expected and foreign.instruction == "5"
    assert foreign.decode.beam_size == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "gelu_new"}, "activation_function='gelu_new'"),
        ({"encoder_ffn_dim": 32, "pad_token_id": 0}, "pad_token_id=0.*feed-forward widths"),
        ({"encoder_ffn_dim": 32}, r"feed-forward widths=\[32, 24\]"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"model_type": "nllb-moe"}, "model_type 'nllb-moe' is not one of m2m_100, mitre"),
        ({"encoder_layers": None}, "lacks encoder_layers"),
    ],
)
def test_other_huggingface_models_are_refused(tmp_path, changes, message):
    made_foreign.m2m100_directory(tmp_path / "m2m")
    path = tmp_path / "m2m" / "config.json"
    values = json.loads(path.read_text()) | changes
    made_foreign.write_json(path, {k: v for k, v in values.items() if v is not None})
    with pytest.raises(UserError, match=message):
        open_huggingface(tmp_path / "m2m")


def test_old_torch_weights_of_huggingface_are_read(tmp_path):
    tensors = made_foreign.m2m100_directory(tmp_path / "m2m")
    (tmp_path / "m2m" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no weights"):
        open_huggingface(tmp_path / "m2m")
    write_torch(tmp_path / "m2m" / "pytorch_model.bin", lazy(tensors))
    actual = open_huggingface(tmp_path / "m2m").tensors
    assert actual.keys() == tensors.keys()
    for name, value in tensors.items():
        np.testing.assert_array_equal(actual[name].read(), value)


def test_half_precision_becomes_float32(tmp_path):
    tensors = made_foreign.m2m100_directory(tmp_path / "m2m")
    halves = {name: value.astype(np.float16) for name, value in tensors.items()}
    made_foreign.write_tensors(tmp_path / "m2m", halves)
    model = MODELS["encoder_decoder"]
    actual = read_safetensors(tmp_path / "m2m" / "model.safetensors")
    size = len(tensors["model.shared.weight"])
    table = parameter_entries(model, get_layout(model.layout, (1, 2)), M2M100, plain_rows(size))
    params = read_all(read_params(actual, table))
    assert params["embedding"].dtype == np.float32
    np.testing.assert_array_equal(
        params["embedding"], halves["model.shared.weight"].astype(np.float32)[plain_rows(size)]
    )


@pytest.mark.parametrize("layout", ["encoder_decoder", "register"])
def test_the_bindings_suggested_by_an_export_error_work(tmp_path, layout):
    """The quickstart's models: base 100, and registers' place of tags for all of them."""
    files = [f"gin_configs/models/{layout}_tiny.gin", "gin_configs/runs/cldr_quickstart.gin"]
    bindings = ["Model.embed=16", "Model.mlp=24", "Data.instruction='register'"]
    vocabulary = made_text.vocabulary()

    def export(config) -> None:
        params = random_params(config.model, vocabulary.size)
        huggingface.export_huggingface(config, params, vocabulary, tmp_path)

    config = load_config(files, bindings)
    assert config.model.positions == ("sinusoidal", 100.0)
    message = (
        r"(m2m_100|mitre) has no such model: it adds sines and cosines of base 10000 .*Train with"
    )
    with pytest.raises(UserError, match=message) as caught:
        export(config)
    assert ("ctranslate2" in str(caught.value)) == (layout == "encoder_decoder")
    suggested = re.findall(r'--gin\.([\w.]+)="(.*?)"', str(caught.value))
    assert len(suggested) == (2 if layout == "encoder_decoder" else 1)
    export(load_config(files, [*bindings, *(f"{name}={value}" for name, value in suggested)]))
    assert (tmp_path / "model.safetensors").is_file()
