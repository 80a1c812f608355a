"""fairseq checkpoints: MITRE, PhasedDecoder, AdapNonCenter, Graformer and the plain transformer."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.config.sections import Config, Decode, Model
from mnmt_jax.data.instruction import INSTRUCTIONS, Instruction
from mnmt_jax.design.layout import Layout
from mnmt_jax.design.layouts import LANGUAGE_MODELS, REGISTER, get_layout
from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.files.typed_fields import TypedFields, prefix_errors
from mnmt_jax.interop.foreign import (
    NORMALIZATION_SETTING,
    Foreign,
    check_supported,
    dropped_settings,
    normalization_of,
    positions_mismatch,
    refuse_mismatches,
    width_mismatch,
)
from mnmt_jax.interop.golden import two_stage_layout
from mnmt_jax.interop.language_branches import branch_settings, branches_of, with_languages
from mnmt_jax.interop.language_models import (
    language_model_arguments,
    language_model_settings,
    layers_setting,
)
from mnmt_jax.interop.names import FAIRSEQ, parameter_entries, written_tensors
from mnmt_jax.interop.token_table import (
    SPECIAL_NAMES,
    read_fairseq_table,
    rows_of_vocabulary,
    tokens_for_export,
)
from mnmt_jax.interop.torch_files import read_torch, write_torch
from mnmt_jax.methods.adaption import Adaption
from mnmt_jax.model.modules import ACTIVATIONS
from mnmt_jax.vocabulary.normalization import NONE
from mnmt_jax.vocabulary.vocabulary import Vocabulary

# Setting with which tags replace eos: at the end of the source and as the first target input.
_REPLACING = "lang_tok_replacing_bos_eos"
# fairseq drops the final norm of a side whose version is missing or below 3.
_VERSION = np.array([3], np.float32)
# Settings of training without a counterpart here, and their values without effect.
_DROPPED = dict.fromkeys(
    ("activation_dropout", "relu_dropout", "encoder_layerdrop", "decoder_layerdrop"), 0
)
# Entries that fairseq reads from every checkpoint: a training that has not begun.
_NO_TRAINING: dict[str, Any] = {
    "optimizer_history": [
        {
            "criterion_name": "LabelSmoothedCrossEntropyCriterion",
            "optimizer_name": "FairseqAdam",
            "lr_scheduler_state": {},
            "num_updates": 0,
        }
    ],
    "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
    "last_optimizer_state": None,
}


def open_fairseq(path: Path, vocabulary: Path | None = None) -> Foreign:
    """Open a `.pt` checkpoint without running any code of it.

    Args:
        path: the file.
        vocabulary: folder with the dictionary, the SentencePiece model and the language list; None
            leaves the vocabulary to the caller.

    Raises:
        UserError: if the file is refused, or its model has no counterpart here.
    """
    data = read_torch(path)
    if not isinstance(data, Mapping) or not isinstance(data.get("model"), Mapping):
        raise UserError(f"{path}: no fairseq checkpoint: it has no 'model'")
    fields = _arguments(path, data)
    tensors = {str(n): t for n, t in data["model"].items() if isinstance(t, LazyArray)}
    with prefix_errors(path):
        language_model = language_model_settings(path, fields, tensors)
        model = language_model or _model(path, fields)
        branches = branches_of(fields, tensors, model.stage_layers[0])
        normalization = normalization_of(fields)
    fit = table = None
    if vocabulary is not None:
        table = read_fairseq_table(vocabulary, _languages(fields), needs_list=bool(branches))
    if branches:
        model = dataclasses.replace(model, methods=branches)
        language_count = fields.integer("language_num")
        fit = functools.partial(with_languages, model, language_num=language_count)
    decode = Decode(beam_size=5 if "register_factor" in fields.values else 4)
    if model.layout in LANGUAGE_MODELS:
        instruction = "3"  # of the model that they are grafted into
    else:
        instruction = _instruction(path, fields)
    if language_model and instruction == "3":  # Graformer, section 4.2
        decode = Decode(beam_size=5, length_penalty=0.6)
    return Foreign(
        path,
        model,
        instruction,
        tensors,
        FAIRSEQ,
        table,
        decode,
        fit,
        normalization,
        dropped_settings(fields, _DROPPED),
    )


def export_fairseq(
    config: Config, params: Mapping[str, Any], vocabulary: Vocabulary, directory: Path
) -> None:
    """Write `checkpoint.pt`, `dict.txt`, `languages.txt` and the SentencePiece model.

    Args:
        config: configuration of the run.
        params: our parameters, lazy or not.
        vocabulary: vocabulary of the run.
        directory: existing folder to write to.

    Raises:
        UserError: if fairseq has no such model or vocabulary.
    """
    rows = rows_of_vocabulary(vocabulary, tags_last=True)
    if vocabulary.named_pieces[:1] != ("<s>",):
        raise UserError(
            "fairseq's dictionary starts with <s>, which this vocabulary does not have; export "
            "with --format t5x, or huggingface if it has the model"
        )
    tags = [f"__{code}__" for code in vocabulary.languages]
    tokens = tokens_for_export(vocabulary, tags, rows)
    arguments = _export_arguments(config)
    layout = get_layout(config.model.layout, config.model.stage_layers)
    table = parameter_entries(config.model, layout, FAIRSEQ, rows)
    state: collections.OrderedDict[str, LazyArray] = collections.OrderedDict()
    for name, tensor in written_tensors(params, table):
        state[name] = dataclasses.replace(tensor, storage=tensor.storage or name)
    sides = dict.fromkeys(name.partition(".")[0] for name in state)
    state |= {f"{side}.version": LazyArray.of(_VERSION) for side in sides}
    arguments["langs"] = ",".join(vocabulary.languages)
    if vocabulary.normalization != NONE:
        arguments[NORMALIZATION_SETTING] = vocabulary.normalization
    data = {"args": argparse.Namespace(**arguments), "model": state, **_NO_TRAINING}
    write_torch(directory / "checkpoint.pt", data)
    pieces = tokens[len(SPECIAL_NAMES) : vocabulary.first_tag]
    lines = "".join(f"{piece} 1\n" for piece in pieces)
    (directory / "dict.txt").write_text(lines, encoding="utf-8")
    codes = "".join(f"{code}\n" for code in vocabulary.languages)
    (directory / "languages.txt").write_text(codes, encoding="utf-8")
    (directory / "sentencepiece.model").write_bytes(vocabulary.model)


def _languages(fields: TypedFields) -> tuple[str, ...] | None:
    """Return the languages in the order of their tags, if the settings list them."""
    names = fields.get("langs")
    if isinstance(names, str):
        return tuple(names.split(",")) if names else None
    return fields.texts("langs", ()) or None


def _arguments(path: Path, data: Mapping[str, Any]) -> TypedFields:
    """Return the training arguments, which versions of fairseq store in different places."""
    arguments: dict[str, Any] = {}
    sections = data.get("cfg")
    sections = sections if isinstance(sections, Mapping) else {}
    for section in (sections.get("task"), sections.get("model"), data.get("args")):
        if isinstance(section, argparse.Namespace):
            arguments |= vars(section)
        elif isinstance(section, Mapping):
            arguments |= section
    fields = TypedFields(path, arguments)
    if layers_setting(fields) not in fields:
        raise UserError(f"{path}: has no model settings (args or cfg), so the model is unknown")
    return fields


def _model(path: Path, fields: TypedFields) -> Model:
    arguments, get = fields.values, fields.get
    stages = (fields.integer("encoder_layers", 0), fields.integer("decoder_layers"))
    pre = bool(get("decoder_normalize_before"))
    is_register = "register_factor" in arguments
    activation: Any = fields.text("activation_fn", "relu")
    requirements = [
        ("layernorm_embedding", bool(get("layernorm_embedding")), False),
        ("decoder_learned_pos", bool(get("decoder_learned_pos")), False),
        ("share_all_embeddings", bool(get("share_all_embeddings", True)), True),
        ("activation_fn", activation, activation if activation in ACTIVATIONS else "relu"),
    ]
    if is_register:
        requirements.append(("encoder_layers", stages[0], 0))
    elif stages[0]:
        for name in ("embed_dim", "ffn_embed_dim", "attention_heads"):
            value = fields.integer(f"decoder_{name}")
            requirements.append(
                (f"encoder_{name}", fields.integer(f"encoder_{name}", value), value)
            )
        requirements.append(
            ("encoder_normalize_before", bool(get("encoder_normalize_before")), pre)
        )
    check_supported(path, requirements)
    shared: dict[str, Any] = {
        "embed": fields.integer("decoder_embed_dim"),
        "mlp": fields.integer("decoder_ffn_embed_dim"),
        "heads": fields.integer("decoder_attention_heads"),
        "activation": activation,
        "embedding_scale": not get("no_scale_embedding"),
        "positions": () if get("no_token_positional_embeddings") else Model().positions,
        "norm": "pre" if pre else "post",
        "dropout": fields.number("dropout", 0.1),
        "attention_dropout": fields.number("attention_dropout", 0.0),
    }
    if is_register:
        factor = fields.number("register_factor")
        return Model("register", (stages[1],), register_factor=factor, **shared)
    if "attention_position_bias" not in arguments:
        return Model("encoder_decoder", stages, **shared)
    bias = int(fields.flag("attention_position_bias"))
    methods: tuple[Adaption, ...] = ()
    if str(get("adaption_flag", "False")) == "True":
        width = fields.integer("adaption_inner_size", 2048)
        methods = (Adaption(width, fields.number("adaption_dropout", 0.2)),)
    return Model(
        two_stage_layout(stages[0], bias),
        stages if stages[0] else stages[1:],
        methods=methods,
        **shared,
    )


def _instruction(path: Path, fields: TypedFields) -> str:
    if "register_factor" in fields.values:
        return "register"
    tag = fields.get("encoder_langtok")
    if tag is None and str(fields.get("arch")).endswith("_merged"):
        tag = "tgt"  # the tag is in the text itself
    source = {"src": "source", "tgt": "target"}.get(str(tag))
    has_target_tag = bool(fields.get("decoder_langtok"))
    replaces_eos = bool(fields.get(_REPLACING))  # the target's tag is the trigger
    if replaces_eos and fields.get("encoder_langtok") is not None:
        raise UserError(
            f"{path}: {_REPLACING}=True with encoder_langtok={tag!r}: its sources end with a tag "
            "instead of </s>, which no instruction of ours has"
        )
    if replaces_eos and has_target_tag:
        expected = Instruction(source, "tag", False)
    else:
        expected = Instruction(source, "eos", has_target_tag)
    if expected == INSTRUCTIONS["none"] and "encoder_langtok" not in fields.values:
        raise UserError(
            f"{path}: its settings do not say where language tags are; add encoder_langtok to "
            "them: 'tgt' if each source begins with one, None if there are none"
        )
    for key, instruction in INSTRUCTIONS.items():
        if instruction == expected:
            return key
    raise UserError(
        f"{path}: encoder_langtok={fields.get('encoder_langtok')!r}, "
        f"decoder_langtok={fields.get('decoder_langtok')!r}: no instruction of ours has its "
        "tags like this"
    )


def _phased(first_stage: bool, bias: int) -> dict[str, Any]:
    name = two_stage_layout(first_stage, bias)
    return {name: {"arch": "transformer_pdec", "attention_position_bias": bias}}


# Settings of each layout besides sizes.
_LAYOUT_ARGUMENTS: dict[str, dict[str, Any]] = {
    "register": {"arch": "transformer_register"},
    "encoder_decoder": {"arch": "transformer"},
    **_phased(True, 0),
    **_phased(True, 1),
    **_phased(False, 0),
    **_phased(False, 1),
}


def _export_arguments(config: Config) -> dict[str, Any]:
    model = config.model
    refuse_mismatches("fairseq", model, width_mismatch(model))
    language_model = language_model_arguments(model)
    if not language_model and model.layout not in _LAYOUT_ARGUMENTS:
        raise UserError(
            f"fairseq has no model like '{model.layout}'; it has {', '.join(_LAYOUT_ARGUMENTS)}"
        )
    # Graformer's fairseq learns positions, too.
    learned = [model.positions] if language_model and "learned" in model.positions else []
    refuse_mismatches("fairseq", model, positions_mismatch(model, (), *learned))
    layout = get_layout(model.layout, model.stage_layers)
    is_register = REGISTER in layout.embedded_roles()
    tags = _tag_arguments(config, is_register=is_register)
    if language_model:
        sizes = _size_arguments(model, _layers_of_sides(layout))
        return {**language_model, **sizes, **tags, "share_all_embeddings": False}
    exported = dict(_LAYOUT_ARGUMENTS[model.layout])
    stages = (0, *model.stage_layers)[-2:]
    exported |= _size_arguments(model, dict(zip(("encoder", "decoder"), stages, strict=True)))
    exported |= tags | {"share_all_embeddings": True}
    if is_register:
        exported["register_factor"] = model.register_factor
    exported |= _method_arguments(model, "attention_position_bias" in exported)
    if not tags["encoder_langtok"] and str(exported["arch"]).endswith("_merged"):
        raise UserError(
            f"Data.instruction='{config.data.instruction}' has no counterpart in fairseq's "
            f"{exported['arch']}: its sources begin with the target's tag ('1' or '4')"
        )
    return exported


def _tag_arguments(config: Config, *, is_register: bool) -> dict[str, Any]:
    """Return the settings of the positions of language tags.

    Raises:
        UserError: if fairseq's model cannot have its tags there.
    """
    layout, name = config.model.layout, config.data.instruction
    instruction = INSTRUCTIONS[name]
    tags_both_sides = instruction.source_tag == "target" and instruction.trigger == "tag"
    reason = ""
    if layout in LANGUAGE_MODELS and name != "3":
        reason = "the target of the model that it is grafted into starts from its tag ('3')"
    elif tags_both_sides != is_register:
        reason = (
            "there registers, and nothing else, have the target's tag both in the source and as "
            "the first target input ('register')"
        )
    if reason:
        raise UserError(
            f"Data.instruction='{name}' with '{layout}' has no counterpart in fairseq: {reason}"
        )
    starts_from_tag = instruction.trigger == "tag" and not is_register
    return {
        "encoder_langtok": {"source": "src", "target": "tgt", None: None}[instruction.source_tag],
        "decoder_langtok": instruction.target_tag or starts_from_tag,
        _REPLACING: starts_from_tag,
    }


def _layers_of_sides(layout: Layout) -> dict[str, int]:
    """Return the layer count of each side that the layout has."""
    layers = {"encoder": 0, "decoder": 0}
    for stage in layout.stages:
        is_decoder = layout.is_autoregressive and layout.generated in stage.roles
        layers["decoder" if is_decoder else "encoder"] += stage.layers
    return {side: number for side, number in layers.items() if number}


def _method_arguments(model: Model, phased: bool) -> dict[str, Any]:
    """Return the settings of methods, in PhasedDecoder's or in AdapNonCenter's form."""
    if branches := None if phased else branch_settings(model):
        return branches
    adaption: dict[str, Any] = {"flag": "False", "inner_size": 0, "dropout": 0.1} if phased else {}
    for method in model.methods:
        if not (phased and isinstance(method, Adaption)):
            raise UserError(f"fairseq has no '{model.layout}' with '{method.name}' (Model.methods)")
        adaption = {"flag": "True", "inner_size": method.mlp, "dropout": method.dropout}
    return {f"adaption_{name}": value for name, value in adaption.items()}


def _size_arguments(model: Model, layers: Mapping[str, int]) -> dict[str, Any]:
    """Return the settings of sizes and of all layers; `layers` holds the layer count per side."""
    sizes: dict[str, Any] = {}
    for side, number in layers.items():
        sizes |= {
            f"{side}_layers": number,
            f"{side}_embed_dim": model.embed,
            f"{side}_ffn_embed_dim": model.mlp_widths[0],
            f"{side}_attention_heads": model.heads,
            # A side without layers has no final norm in our model.
            f"{side}_normalize_before": model.norm == "pre" and number > 0,
            f"{side}_learned_pos": "learned" in model.positions,
        }
    return sizes | {
        "no_token_positional_embeddings": not model.positions,
        "activation_fn": model.activation,
        "no_scale_embedding": not model.embedding_scale,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
    }
