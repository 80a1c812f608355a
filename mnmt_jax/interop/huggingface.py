"""Hugging Face checkpoint directories: M2M-100 and NLLB (one architecture), and MITRE."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.config.sections import Config, Decode, Model
from mnmt_jax.data.instruction import Instruction, get_instruction
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.errors import UserError
from mnmt_jax.files.json_objects import read_json
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.files.typed_fields import TypedFields, prefix_errors, short_repr
from mnmt_jax.interop.foreign import (
    NORMALIZATION_SETTING,
    Foreign,
    Mismatch,
    check_supported,
    dropped_settings,
    normalization_of,
    positions_mismatch,
    refuse_mismatches,
    width_mismatch,
)
from mnmt_jax.interop.names import (
    M2M100,
    MITRE,
    Dialect,
    Tensors,
    parameter_entries,
    written_tensors,
)
from mnmt_jax.interop.safetensors import (
    SHARD_BYTES,
    read_safetensors,
    read_shards,
    write_safetensors,
)
from mnmt_jax.interop.tags import M2M100_LANGUAGES, NLLB_LANGUAGES, tag_tokens
from mnmt_jax.interop.token_table import (
    has_ids_of_pieces,
    is_unnamed,
    read_hugging_face_table,
    rows_of_vocabulary,
    tokens_for_export,
)
from mnmt_jax.interop.torch_files import read_torch
from mnmt_jax.model.modules import ACTIVATIONS
from mnmt_jax.vocabulary.normalization import NONE
from mnmt_jax.vocabulary.vocabulary import Vocabulary

Values = Mapping[str, Any]
_PAD, _EOS = 1, 2
_INSTRUCTION = "mnmt_jax_instruction"  # key of config.json that only this project uses


@dataclasses.dataclass(frozen=True)
class Kind:
    """A `model_type` and its counterpart here.

    Attributes:
        name: the `model_type`.
        architecture: class of `transformers` that loads it.
        layout: our layout.
        instruction: key of the instruction, i.e. where it expects language tags.
        dialect: dialect of its parameter names.
        sides: prefixes of its size fields, one per stage.
        spm_file: file name of its SentencePiece model.
        defaults: constant fields of its configuration.
    """

    name: str
    architecture: str
    layout: str
    instruction: str
    dialect: Dialect
    sides: tuple[str, ...]
    spm_file: str
    defaults: Values


_SHARED = {
    "bos_token_id": 0,
    "pad_token_id": _PAD,
    "eos_token_id": _EOS,
    "decoder_start_token_id": _EOS,
    "activation_dropout": 0.0,
    "decoder_layerdrop": 0.0,
    "init_std": 0.02,
    "dtype": "float32",
}
_M2M100 = Kind(
    "m2m_100",
    "M2M100ForConditionalGeneration",
    "encoder_decoder",
    "5",
    M2M100,
    ("encoder", "decoder"),
    "sentencepiece.bpe.model",
    _SHARED
    | {"max_position_embeddings": 1024, "is_encoder_decoder": True, "encoder_layerdrop": 0.0},
)
_MITRE = Kind(
    "mitre",
    "MitreForConditionalGeneration",
    "register",
    "register",
    MITRE,
    ("decoder",),
    "mitre_spm.model",
    _SHARED | {"max_position_embeddings": 256},
)
# Settings without a counterpart here, and their values without effect. Ours is the search with
# early_stopping=True; what differs with False is in docs/checkpoints.md.
_DROPPED: Values = {
    **dict.fromkeys(("activation_dropout", "encoder_layerdrop", "decoder_layerdrop"), 0),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), 0),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty"), 1),
    **dict.fromkeys(("min_length", "min_new_tokens"), 0),
    **dict.fromkeys(("bad_words_ids", "suppress_tokens", "begin_suppress_tokens")),
    **dict.fromkeys(("sequence_bias", "exponential_decay_length_penalty")),
    "num_beam_groups": 1,
    "do_sample": False,
}
_BEAM_SIZE = 5  # of M2M-100; NLLB's files name none, and transformers then searches greedily
_KINDS = {kind.name: kind for kind in (_M2M100, _MITRE)}
_KIND_OF_LAYOUT = {kind.layout: kind for kind in (_M2M100, _MITRE)}


def open_huggingface(folder: Path, vocabulary: Path | None = None) -> Foreign:
    """Open a directory with `config.json`, weights and, usually, tokenizer files.

    Args:
        folder: the directory.
        vocabulary: folder of the tokenizer files, if it is another one.

    Raises:
        UserError: if files are missing, or the model has no counterpart here.
    """
    fields = _fields(folder / "config.json")
    name = fields.text("model_type", "")
    if name not in _KINDS:
        raise UserError(
            f"{folder}: model_type {short_repr(name)} is not one of {', '.join(_KINDS)}"
        )
    kind = _KINDS[name]
    with prefix_errors(fields.file_name):
        model = _model(fields, kind)
        instruction = fields.text(_INSTRUCTION, kind.instruction)
        get_instruction(instruction)
        normalization = normalization_of(fields)
    tensors = _tensors(folder)
    size = _vocabulary_size(fields, kind.dialect, tensors)
    tokenizer_folder = vocabulary or folder
    search = _search_fields(folder, fields)
    has_tokens = vocabulary is not None or any(folder.glob("*.model"))
    tokens = read_hugging_face_table(tokenizer_folder, kind.name, size) if has_tokens else None
    return Foreign(
        folder,
        model,
        instruction,
        tensors,
        kind.dialect,
        tokens,
        decode=_decode(search, get_instruction(instruction)),
        normalization=normalization,
        dropped=dropped_settings(search, _DROPPED),
    )


def export_huggingface(
    config: Config,
    params: Mapping[str, Any],
    vocabulary: Vocabulary,
    directory: Path,
    *,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a directory that `open_huggingface` and, for M2M-100, `transformers` read.

    Args:
        config: configuration of the run.
        params: our parameters, lazy or not.
        vocabulary: vocabulary of the run.
        directory: existing folder to write to.
        shard_bytes: maximum size of a weights file.

    Raises:
        UserError: if Hugging Face has no such model or vocabulary.
    """
    rows = rows_of_vocabulary(vocabulary, tags_last=False)
    tags = tag_tokens(vocabulary.languages)
    tokens = tokens_for_export(vocabulary, tags, rows)
    kind = _kind_for(config)
    layout = get_layout(config.model.layout, config.model.stage_layers)
    table = parameter_entries(config.model, layout, kind.dialect, rows)
    write_safetensors(directory, written_tensors(params, table), shard_bytes=shard_bytes)
    values = _values(config, kind) | {"vocab_size": vocabulary.size}
    if vocabulary.normalization != NONE:
        values[NORMALIZATION_SETTING] = vocabulary.normalization
    _write(directory / "config.json", values)
    search = {
        name: kind.defaults[name]
        for name in ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id")
    }
    uncounted = _uncounted_tokens(get_instruction(config.data.instruction))
    search |= {
        "num_beams": config.decode.beam_size,
        "max_length": config.decode.max_length + uncounted,
        "length_penalty": config.decode.length_penalty,
    }
    _write(directory / "generation_config.json", search)
    _write_tokenizer(directory, kind, vocabulary, (tokens, tags))


def tokenizer_class(vocabulary: Vocabulary, tokens: Sequence[str]) -> str | None:
    """Return the class of `transformers` that reads the exported tokenizer files, if there is one.

    These classes have built-in language lists, so only two lists are supported. NLLB's computes ids
    from the SentencePiece model and merges its pieces, so the model must be of NLLB's kind.

    Args:
        vocabulary: vocabulary of the run.
        tokens: from `tokens_for_export`.
    """
    if vocabulary.languages == M2M100_LANGUAGES:
        return "M2M100Tokenizer"
    has_rule = vocabulary.languages == NLLB_LANGUAGES and has_ids_of_pieces(vocabulary, tokens)
    return "NllbTokenizer" if has_rule else None


def _vocabulary_size(fields: TypedFields, dialect: Dialect, tensors: Tensors) -> int:
    """Return the number of embedding rows; the configuration and the weights must agree."""
    size = fields.integer("vocab_size", low=1)
    rows = {
        tensor.shape[0]
        for name, tensor in tensors.items()
        if name.endswith(dialect.embedding) and tensor.shape
    }
    if rows != {size}:
        row_counts = " and ".join(map(str, sorted(rows))) or "no"
        raise UserError(
            f"{fields.file_name}: vocab_size={size}, but the embedding has {row_counts} rows"
        )
    return size


def _model(fields: TypedFields, kind: Kind) -> Model:
    def sizes(field: str) -> list[int]:
        return [fields.integer(f"{side}_{field}") for side in kind.sides]

    mlp, heads = sizes("ffn_dim"), sizes("attention_heads")
    activation: Any = fields.text("activation_function", "relu")
    check_supported(
        Path(fields.file_name),
        [
            ("pad_token_id", fields.integer("pad_token_id", _PAD), _PAD),
            ("eos_token_id", fields.integer("eos_token_id", _EOS), _EOS),
            ("decoder_start_token_id", fields.integer("decoder_start_token_id", _EOS), _EOS),
            (
                "activation_function",
                activation,
                activation if activation in ACTIVATIONS else "relu",
            ),
            ("tie_word_embeddings", fields.flag("tie_word_embeddings", True), True),
            ("feed-forward widths", mlp, mlp[:1] * len(mlp)),
            ("attention heads", heads, heads[:1] * len(heads)),
        ],
    )
    return Model(
        layout=kind.layout,
        stage_layers=tuple(sizes("layers")),
        embed=fields.integer("d_model"),
        mlp=mlp[0],
        activation=activation,
        embedding_scale=fields.flag("scale_embedding", True),
        heads=heads[0],
        register_factor=fields.number("register_factor", 1.0),
        dropout=fields.number("dropout", 0.1),
        attention_dropout=fields.number("attention_dropout", 0.0),
    )


def _search_fields(folder: Path, fields: TypedFields) -> TypedFields:
    """Return the settings of the configuration, replaced by those of the generation file."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return fields
    return TypedFields(path, {**fields.values, **_fields(path).values})


def _decode(fields: TypedFields, instruction: Instruction) -> Decode:
    with prefix_errors(fields.file_name):
        return Decode(
            beam_size=fields.integer("num_beams", 0) or _BEAM_SIZE,
            max_length=_max_length(fields, instruction) or Decode().max_length,
            length_penalty=fields.number("length_penalty", 1.0, low=-math.inf),
        )


def _max_length(fields: TypedFields, instruction: Instruction) -> int:
    """Return the limit without the tokens that only `transformers` counts; 0 if there is none."""
    new_tokens = fields.integer("max_new_tokens", 0)
    limit = new_tokens + 1 if new_tokens else fields.integer("max_length", 0)
    return max(1, limit - _uncounted_tokens(instruction)) if limit else 0


def _uncounted_tokens(instruction: Instruction) -> int:
    """Return the tokens that `Decode.max_length` leaves out: first input, forced tag and eos."""
    return instruction.target_extra + 1


def _tensors(folder: Path) -> Tensors:
    readers: dict[str, Callable[[Path], Tensors]] = {
        "model.safetensors": read_safetensors,
        "model.safetensors.index.json": read_safetensors,
        "pytorch_model.bin": _read_bin,
        "pytorch_model.bin.index.json": lambda path: read_shards(path, _read_bin),
    }
    for name, read in readers.items():
        if (folder / name).is_file():
            return read(folder / name)
    raise UserError(f"{folder}: no weights; it needs one of {', '.join(readers)}")


def _read_bin(path: Path) -> Tensors:
    state = read_torch(path)
    if not isinstance(state, Mapping):
        raise UserError(f"{path}: no state dictionary")
    return {str(name): t for name, t in state.items() if isinstance(t, LazyArray)}


def _kind_for(config: Config) -> Kind:
    model, instruction = config.model, config.data.instruction
    kind = _KIND_OF_LAYOUT.get(model.layout)
    if kind is None:
        raise UserError(
            f"Hugging Face has no model like '{model.layout}', only {', '.join(_KIND_OF_LAYOUT)}; "
            "try --format t5x, or fairseq if the vocabulary has <s>"
        )
    check_supported(
        Path("this run"),
        [
            ("Model.norm", model.norm, "pre"),
            ("Model.methods", tuple(method.name for method in model.methods), ()),
        ],
    )
    mismatches = [*positions_mismatch(model), *width_mismatch(model)]
    triggers = {get_instruction(key).trigger for key in (instruction, kind.instruction)}
    if instruction != kind.instruction and triggers != {"eos"}:
        reason = (
            f"Data.instruction='{instruction}' has no counterpart there, which takes "
            f"'{kind.instruction}'"
        )
        binding = f"--gin.Data.instruction=\"'{kind.instruction}'\""
        mismatches.append(Mismatch(reason, binding))
    refuse_mismatches(f"Hugging Face's {kind.name}", model, mismatches)
    return kind


def _values(config: Config, kind: Kind) -> dict[str, Any]:
    model = config.model
    values: dict[str, Any] = {"model_type": kind.name, "architectures": [kind.architecture]}
    values |= dict(kind.defaults) | {"d_model": model.embed}
    values |= {
        "activation_function": model.activation,
        "scale_embedding": model.embedding_scale,
    }
    for side, layers in zip(kind.sides, model.stage_layers, strict=True):
        values[f"{side}_layers"] = layers
        values[f"{side}_ffn_dim"] = model.mlp_widths[0]
        values[f"{side}_attention_heads"] = model.heads
    values |= {"num_hidden_layers": model.stage_layers[0], "dropout": model.dropout}
    values["attention_dropout"] = model.attention_dropout
    if config.data.instruction != kind.instruction:
        values[_INSTRUCTION] = config.data.instruction
    if model.register_factor != 1.0:
        values["register_factor"] = model.register_factor
    return values


def _write_tokenizer(
    directory: Path, kind: Kind, vocabulary: Vocabulary, names: tuple[list[str], list[str]]
) -> None:
    tokens, tags = names
    (directory / kind.spm_file).write_bytes(vocabulary.model)
    first_tag = tokens.index(tags[0])
    listed = {token: i for i, token in enumerate(tokens[:first_tag])}
    added = {
        token: i for i, token in enumerate(tokens[first_tag:], first_tag) if not is_unnamed(token)
    }
    _write(directory / "vocab.json", listed)
    _write(directory / "added_tokens.json", added)
    specials = {
        "bos_token": "<s>" if "<s>" in tokens else "</s>",
        "eos_token": "</s>",
        "sep_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }
    _write(directory / "special_tokens_map.json", specials | {"additional_special_tokens": tags})
    name = tokenizer_class(vocabulary, tokens)
    if name is not None:
        settings = {"num_madeup_words": len(tokens) - len(listed) - len(added)}
        _write(directory / "tokenizer_config.json", specials | settings | {"tokenizer_class": name})


def _fields(path: Path) -> TypedFields:
    return TypedFields(path, read_json(path, remedy="download the whole directory again"))


def _write(path: Path, values: Values) -> None:
    text = json.dumps(values, ensure_ascii=False, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
