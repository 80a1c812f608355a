"""Settings of fairseq's checkpoints: read, written and refused ones."""

from __future__ import annotations

import codecs
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Model
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.files.typed_fields import TypedFields
from mnmt_jax.interop import fairseq
from mnmt_jax.interop.fairseq import open_fairseq
from mnmt_jax.interop.language_models import language_model_settings
from mnmt_jax.interop.names import FAIRSEQ, parameter_entries
from mnmt_jax.interop.token_table import read_fairseq_table
from mnmt_jax.methods.cut_residual import CutResidual
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests import made_foreign
from tests.made_params import plain_rows
from tests.unit.made_text import LANGUAGES, sentences
from tests.unit.test_interchange import MODELS


@pytest.mark.parametrize("kind", made_foreign.FAIRSEQ_MODELS)
def test_fairseq_settings(tmp_path, kind):
    made_foreign.fairseq_checkpoint(tmp_path / "x", kind)
    foreign = open_fairseq(tmp_path / "x" / "checkpoint.pt", tmp_path / "x")
    fitted = foreign.build_model(LANGUAGES) if foreign.build_model else foreign.model
    assert fitted == made_foreign.FAIRSEQ_MODELS[kind]
    instructions = {"mitre": "register"} | dict.fromkeys(made_foreign.GRAFORMERS, "3")
    assert foreign.instruction == instructions.get(kind, "1")
    assert foreign.decode.beam_size == (5 if kind in instructions else 4)
    vocabulary, rows = foreign.tokens.vocabulary()
    assert vocabulary.languages == LANGUAGES and vocabulary.pieces is None
    np.testing.assert_array_equal(rows, plain_rows(vocabulary.size))


@pytest.mark.parametrize(
    ("listed", "codes"),
    [("en,de,pt-br", ("en", "de", "pt_BR")), ("zh,zh-cn,zh-tw", ("zh", "zh_cn", "zh_Hant"))],
)
def test_languages_of_fairseq_with_hyphens_are_tags(tmp_path, listed, codes):
    """TED's codes, for example."""
    made_foreign.fairseq_checkpoint(tmp_path / "x", "encoder_decoder")
    (tmp_path / "x" / "languages.txt").write_text(listed)
    table = open_fairseq(tmp_path / "x" / "checkpoint.pt", tmp_path / "x").tokens
    vocabulary, rows = table.vocabulary()
    assert vocabulary.languages == codes
    tags = tuple(f"__{code}__" for code in listed.split(","))
    assert tuple(table.tokens[row] for row in rows[-3:]) == tags
    (tmp_path / "x" / "languages.txt").write_text("en,de-,word1")
    with pytest.raises(UserError, match="'de-', 'word1' in the list of languages cannot be"):
        open_fairseq(tmp_path / "x" / "checkpoint.pt", tmp_path / "x")


def test_a_file_replaces_names_of_a_checkpoint_that_are_no_codes(tmp_path, monkeypatch):
    settings = made_foreign.fairseq_settings("encoder_decoder")
    opened = tmp_path / "x" / "checkpoint.pt", tmp_path / "x"

    def languages(listed: str, in_file: str) -> tuple[str, ...]:
        changed = settings | {"langs": listed}
        monkeypatch.setattr(made_foreign, "fairseq_settings", lambda kind: changed)
        made_foreign.fairseq_checkpoint(tmp_path / "x", "encoder_decoder")
        (tmp_path / "x" / "languages.txt").write_text(in_file)
        return open_fairseq(*opened).tokens.vocabulary()[0].languages

    assert languages("en,zh-classical,de", "en lzh de") == ("en", "lzh", "de")
    assert languages("en,fr,de", "de fr en") == ("en", "fr", "de")
    with pytest.raises(UserError, match="languages.txt: has 2 languages, the checkpoint 3; list"):
        languages("en,zh-classical,de", "en de")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_learned_pos": True}, "decoder_learned_pos=True"),
        ({"encoder_embed_dim": 32}, "encoder_embed_dim=32"),
        ({"encoder_normalize_before": True}, "encoder_normalize_before=True"),
        ({"attention_position_bias": 2}, "attention_position_bias=2"),
        ({"encoder_langtok": "src"}, "no instruction of ours"),
        ({"encoder_langtok": None}, "do not say where language tags are; add encoder_langtok"),
        ({"decoder_layers": None}, "has no model settings"),
    ],
)
def test_other_fairseq_models_are_refused(tmp_path, changes, message, monkeypatch):
    settings = made_foreign.fairseq_settings("two_stage") | changes
    settings = {name: value for name, value in settings.items() if value is not None}
    monkeypatch.setattr(made_foreign, "fairseq_settings", lambda kind: settings)
    made_foreign.fairseq_checkpoint(tmp_path / "x", "two_stage")
    with pytest.raises(UserError, match=message):
        open_fairseq(tmp_path / "x" / "checkpoint.pt")


@pytest.mark.parametrize("name", ["two_stage_trigger", "prefix", "encoder_decoder", "register"])
def test_exported_settings_are_read_back(name):
    """With adaption modules where the layout has them, and without; with other ends."""
    model = dataclasses.replace(MODELS[name], norm="post")
    instruction = "register" if name == "register" else "1"
    config = load_config([], [f"Data.instruction='{instruction}'"])
    ends = {"positions": (), "activation": "gelu", "embedding_scale": False}
    for changes in ({"methods": model.methods}, {"methods": ()}, ends):
        one = dataclasses.replace(model, **changes)
        arguments = fairseq._export_arguments(dataclasses.replace(config, model=one))
        actual = fairseq._model(Path("model.pt"), TypedFields("model.pt", arguments))
        assert actual == dataclasses.replace(one, vocab_size=actual.vocab_size)


def test_models_without_tags_are_exported_if_fairseq_supports_them():
    """What is read back is what was written, or it is not written."""
    config = load_config([], ["Data.instruction='none'"])
    branches = LanguageLayers(LANGUAGES, LANGUAGES[:1], (3, 4), 12)
    model = dataclasses.replace(
        MODELS["encoder_decoder"], stage_layers=(2, 2), norm="post", methods=(branches,)
    )
    arguments = fairseq._export_arguments(dataclasses.replace(config, model=model))
    assert arguments["arch"] == "transformer_cll"
    assert fairseq._instruction(Path("model.pt"), TypedFields("model.pt", arguments)) == "none"
    cut = CutResidual(2, "mlp", "pre")
    one = LanguageLayers(LANGUAGES, LANGUAGES[:1], (4,), 12)
    merged = dataclasses.replace(config, model=dataclasses.replace(model, methods=(one, cut)))
    with pytest.raises(UserError, match="'none' has no counterpart .*transformer_sd_merged"):
        fairseq._export_arguments(merged)
    tagged = dataclasses.replace(merged, data=dataclasses.replace(merged.data, instruction="1"))
    assert fairseq._export_arguments(tagged)["arch"] == "transformer_sd_merged"


def test_exports_with_unsupported_positions_are_refused():
    model = dataclasses.replace(MODELS["prefix"], positions=("learned", 8))
    with pytest.raises(UserError, match="Model.positions=.*'embedding' has positions for both"):
        parameter_entries(model, get_layout("prefix", (1,)), FAIRSEQ, plain_rows(17))
    for positions in (("learned", 8), ("sinusoidal", 100.0)):
        config = load_config([], [f"Model.positions={positions}", "Data.instruction='register'"])
        with pytest.raises(
            UserError, match=r"^fairseq has no such model: .* with Model.positions=\('"
        ):
            fairseq._export_arguments(config)


@pytest.mark.parametrize("name", ["encoder_decoder", "two_stage_trigger"])
def test_a_model_unknown_to_fairseq_is_not_exported_as_a_standard_one(name):
    """A cut connection leaves the same parameters: only the settings could tell."""
    model = dataclasses.replace(MODELS[name], methods=(CutResidual(),))
    config = dataclasses.replace(load_config([]), model=model)
    with pytest.raises(UserError, match=f"fairseq has no '{name}' with 'cut_residual'"):
        fairseq._export_arguments(config)


TAGS = ("encoder_langtok", "decoder_langtok", "lang_tok_replacing_bos_eos")


def open_with(folder: Path, kind: str, monkeypatch, **changes):
    """Open a checkpoint with changed settings."""
    settings = made_foreign.fairseq_settings(kind) | changes
    with monkeypatch.context() as patch:
        patch.setattr(made_foreign, "fairseq_settings", lambda kind: settings)
        made_foreign.fairseq_checkpoint(folder, kind)
    return open_fairseq(folder / "checkpoint.pt")


@pytest.mark.parametrize("kind", ["transformer", "bridge_transformer", "encoder_decoder"])
@pytest.mark.parametrize(
    ("tags", "instruction"),
    [
        (("tgt", False, False), "1"),
        ((None, True, False), "2"),
        ((None, True, True), "3"),
        (("tgt", True, None), "4"),
        (("src", True, False), "5"),
        ((None, False, True), "none"),
    ],
)
def test_the_positions_of_tags_are_those_of_the_settings(
    tmp_path, monkeypatch, kind, tags, instruction
):
    changes = dict(zip(TAGS, tags, strict=True))
    foreign = open_with(tmp_path / "x", kind, monkeypatch, **changes)
    assert foreign.instruction == instruction
    is_graformer = kind != "encoder_decoder" and instruction == "3"
    assert foreign.decode.length_penalty == (0.6 if is_graformer else 1.0)
    config = load_config([], [f"Data.instruction='{instruction}'"])
    config = dataclasses.replace(config, model=foreign.model)
    exported = fairseq._export_arguments(config)
    assert [exported[name] for name in TAGS[:2]] == list(tags[:2])
    assert exported[TAGS[2]] == (instruction == "3")


def test_unclear_and_unknown_positions_of_tags_are_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"langtok='tgt': its sources end with a tag instead of"):
        open_with(tmp_path / "x", "transformer", monkeypatch, encoder_langtok="tgt")
    settings = made_foreign.fairseq_settings("transformer")
    settings = {name: value for name, value in settings.items() if name not in TAGS}
    with pytest.raises(UserError, match="do not say where language tags are"):
        fairseq._instruction(Path("model.pt"), TypedFields("model.pt", settings))
    for layout, instruction in (("register", "3"), ("prefix", "register"), ("masked_lm", "1")):
        bindings = [f"Model.layout='{layout}'", "Model.stage_layers=(1,)"]
        config = load_config([], [*bindings, f"Data.instruction='{instruction}'"])
        with pytest.raises(UserError, match=f"='{instruction}' with '{layout}' has no counterp"):
            fairseq._export_arguments(config)


@pytest.mark.parametrize("kind", made_foreign.GRAFORMERS)
def test_positions_of_graformers_models_are_kept_or_refused(kind):
    config = load_config([], ["Data.instruction='3'"])
    model = made_foreign.FAIRSEQ_MODELS[kind]
    for positions in (("learned", 40), (), Model().positions):
        one = dataclasses.replace(model, positions=positions)
        arguments = fairseq._export_arguments(dataclasses.replace(config, model=one))
        tables = {
            f"{side}.embed_positions.weight": LazyArray.of(np.zeros((42, 16), np.float32))
            for side in ("encoder", "decoder")
        }
        fields = TypedFields("model.pt", arguments)
        actual = language_model_settings(Path("model.pt"), fields, tables)
        assert actual == dataclasses.replace(one, vocab_size=actual.vocab_size)
    other = dataclasses.replace(model, positions=("sinusoidal", 100.0))
    with pytest.raises(UserError, match=r"with Model.positions=\('sinusoidal', 100") as refused:
        fairseq._export_arguments(dataclasses.replace(config, model=other))
    assert "ctranslate2" not in str(refused.value)  # whose models have no methods


@pytest.mark.parametrize("listed", [True, False])
def test_tags_of_a_dictionary_are_not_appended_again(tmp_path, listed):
    """fairseq appends tags that its dictionary lacks; fillers may follow those that it has.

    Languages have the order of the list, in which AdapNonCenter's models number them.
    """
    made_foreign.fairseq_checkpoint(tmp_path, "encoder_decoder")
    first, *others = LANGUAGES
    in_dictionary = others[::-1] if listed else LANGUAGES
    extra = [*(f"__{code}__" for code in in_dictionary), "madeupword0000", "madeupword0001"]
    dictionary = tmp_path / "dict.txt"
    dictionary.write_text(dictionary.read_text() + "".join(f"{word} 1\n" for word in extra))
    if not listed:
        (tmp_path / "languages.txt").unlink()
    table = open_fairseq(tmp_path / "checkpoint.pt", tmp_path).tokens
    pieces = len(made_foreign.spm_pieces())
    appended = (f"__{first}__",) if listed else ()
    assert table.tokens[4 + pieces :] == (*extra, *appended)
    vocabulary, rows = table.vocabulary()
    assert vocabulary.languages == LANGUAGES
    assert vocabulary.named_pieces[-2:] == ("madeupword0000", "madeupword0001")
    tags = [f"__{code}__" for code in vocabulary.languages]
    assert [table.tokens[row] for row in rows[-len(tags) :]] == tags
    if not listed:
        with pytest.raises(UserError, match=r"one \*languages\*.txt is needed, it has none"):
            read_fairseq_table(tmp_path, None, needs_list=True)


def test_dropped_settings_of_a_training_are_named(tmp_path, monkeypatch):
    changes = {"activation_dropout": 0.2, "relu_dropout": 0.0, "encoder_layerdrop": 0.05}
    for kind in ("encoder_decoder", "transformer_lm_gpt"):
        foreign = open_with(tmp_path / kind, kind, monkeypatch, **changes)
        assert foreign.dropped == ("activation_dropout=0.2", "encoder_layerdrop=0.05")
    assert open_with(tmp_path / "plain", "mitre", monkeypatch).dropped == ()


def test_words_of_a_dictionary_are_overwritten_as_in_fairseq(tmp_path):
    """A flagged line may repeat a word, whose row is then the later one; `<s>` and others stay."""
    made_foreign.fairseq_checkpoint(tmp_path, "encoder_decoder")
    dictionary = tmp_path / "dict.txt"
    pieces = [line.rpartition(" ")[0] for line in dictionary.read_text().splitlines()]
    first, second, *others = pieces
    flagged = [first, "<s>", second]
    lines = [f"{first} 7\n", f"{second} 7 #fairseq:overwrite\n", *(f"{one} 7\n" for one in others)]
    lines += [f"{word} 1 #fairseq:overwrite\n" for word in flagged]
    dictionary.write_text("".join(lines))
    tokens = read_fairseq_table(tmp_path, None).tokens
    fillers = [f"madeupword000{number}" for number in range(3)]
    expected = [*fillers[:2], *others, first, fillers[2], second]
    assert list(tokens[4 : 4 + len(expected)]) == expected and len(set(tokens)) == len(tokens)
    vocabulary, rows = read_fairseq_table(tmp_path, None).vocabulary()
    (model,) = tmp_path.glob("*.model")
    plain = Vocabulary.from_sentencepiece(model, LANGUAGES)
    for line in sentences("de", 20):
        read = [tokens[rows[i]] for i in vocabulary.encode(line)]
        assert read == [plain.named_pieces[i - 3] if i > 2 else "<unk>" for i in plain.encode(line)]


def test_a_byte_order_mark_is_no_part_of_a_piece(tmp_path):
    for name in ("plain", "marked"):
        made_foreign.fairseq_checkpoint(tmp_path / name, "encoder_decoder")
    for file in ("dict.txt", "languages.txt"):
        path = tmp_path / "marked" / file
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes().replace(b"\n", b"\r\n"))
    plain, marked = (
        read_fairseq_table(tmp_path / name, None, needs_list=True) for name in ("plain", "marked")
    )
    assert marked.tokens == plain.tokens and marked.listed == plain.listed
    for file in ("languages.txt", "dict.txt"):
        (tmp_path / "marked" / file).write_bytes("é 1\n".encode("latin-1"))
        with pytest.raises(UserError, match=f"{file}: not UTF-8 text; convert it"):
            read_fairseq_table(tmp_path / "marked", None, needs_list=True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("<s> 1", "'<s>' is already in the dictionary; use the file of the training"),
        ("x", "'x' is no word with a count"),
        ("x 1 #fairseq:other", "is no word with a count"),
    ],
)
def test_wrong_lines_of_a_dictionary_are_refused(tmp_path, line, message):
    made_foreign.fairseq_checkpoint(tmp_path, "encoder_decoder")
    dictionary = tmp_path / "dict.txt"
    number = dictionary.read_text().count("\n") + 1
    dictionary.write_text(f"{dictionary.read_text()}{line}\n")
    with pytest.raises(UserError, match=f"dict.txt, line {number}: .*{message}"):
        read_fairseq_table(tmp_path, None)
