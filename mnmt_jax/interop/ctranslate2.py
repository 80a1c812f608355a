"""Export of encoder-decoders to CTranslate2, a fast CPU engine (extra `ctranslate2`).

The model is described by CTranslate2's specs and written by its converter. CTranslate2 takes texts
as lists of pieces and tags by name; the caller adds the tags that `Instruction` adds here:

    source: [tag, *pieces, "</s>"]; target prefix: [trigger if it is a tag, tag if it is forced]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from mnmt_jax.config.sections import Config, Model
from mnmt_jax.data.instruction import get_instruction
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.errors import UserError, install_remedy
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.interop.foreign import CTRANSLATE2_LAYOUT, check_supported
from mnmt_jax.interop.names import Dialect, parameter_entries, written_tensors
from mnmt_jax.interop.tags import tag_tokens
from mnmt_jax.interop.token_table import rows_of_vocabulary, tokens_for_export
from mnmt_jax.model.modules import sinusoid
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_POSITIONS = 1024  # of M2M-100, the fewest that are written
_PREFIX = 3  # positions of a target besides its tokens: trigger, forced tag and eos
_SPM_FILE = "sentencepiece.bpe.model"
_NAMES = Dialect("", ("shared.weight",), ("shared.weight",))
_ATTENTIONS = (("self_attention", "self_attn"), ("attention", "encoder_attn"))


def export_ctranslate2(
    config: Config, params: Mapping[str, Any], vocabulary: Vocabulary, directory: Path
) -> None:
    """Write a float32 directory for `ctranslate2.Translator`, which can quantize it on loading.

    Args:
        config: configuration of the run; sources as long as its largest bucket and translations
            of its `Decode.max_length` have positions.
        params: our parameters, lazy or not.
        vocabulary: vocabulary of the run; its SentencePiece model is written beside the weights.
        directory: existing folder to write to.

    Raises:
        UserError: if CTranslate2 has no such model or vocabulary, or is not installed.
    """
    model = config.model
    if model.layout != CTRANSLATE2_LAYOUT:
        raise UserError(
            f"CTranslate2 has no model like '{model.layout}', only {CTRANSLATE2_LAYOUT}"
        )
    supported = model.positions if model.positions[:1] == ("sinusoidal",) else "sinusoidal"
    check_supported(
        Path("this run"),
        [
            ("Model.methods", tuple(method.name for method in model.methods), ()),
            ("Model.positions", model.positions, supported),
        ],
    )
    rows = rows_of_vocabulary(vocabulary, tags_last=False)
    tokens = tokens_for_export(vocabulary, tag_tokens(vocabulary.languages), rows)
    converter, specs = _import_ctranslate2()
    table = parameter_entries(model, get_layout(model.layout, model.stage_layers), _NAMES, rows)
    positions = max(_POSITIONS, *config.decode.buckets, config.decode.max_length + _PREFIX)
    spec = _build_spec(specs, model, dict(written_tensors(params, table)), positions)
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    starts_with_eos = get_instruction(config.data.instruction).trigger == "eos"
    spec.config.bos_token = "<s>" if "<s>" in tokens else "</s>"
    spec.config.decoder_start_token = "</s>" if starts_with_eos else None

    spec_converter = type("Described", (converter,), {"_load": lambda self: spec})
    spec_converter().convert(str(directory), force=True)
    (directory / _SPM_FILE).write_bytes(vocabulary.model)


def _import_ctranslate2() -> tuple[Any, Any]:
    try:
        from ctranslate2 import specs
        from ctranslate2.converters import Converter
    except ImportError as error:
        raise UserError(f"CTranslate2 is not installed; {install_remedy('ctranslate2')}") from error
    return Converter, specs


def _build_spec(specs: Any, model: Model, tensors: Mapping[str, LazyArray], positions: int) -> Any:
    """Return the model as a CTranslate2 spec for sources and targets of at most `positions`."""
    activation = {"relu": "RELU", "gelu": "GELU"}[model.activation]
    spec = specs.TransformerSpec.from_config(
        model.stage_layers,
        model.heads,
        pre_norm=model.norm == "pre",
        activation=getattr(specs.Activation, activation),
    )
    embedding = tensors[_NAMES.export_names[0]].read()
    encodings = np.asarray(sinusoid(jnp.arange(positions), model.embed, model.positions[1]))
    spec.encoder.embeddings[0].weight = embedding
    spec.decoder.embeddings.weight = spec.decoder.projection.weight = embedding
    for side, name in ((spec.encoder, _NAMES.encoder), (spec.decoder, _NAMES.decoder)):
        side.scale_embeddings = math.sqrt(model.embed) if model.embedding_scale else 1.0
        side.position_encodings.encodings = encodings
        if model.norm == "pre":
            _fill_norm(side.layer_norm, tensors, f"{name}.layer_norm")
        for number, layer in enumerate(side.layer):
            _fill_layer(layer, tensors, f"{name}.layers.{number}")
    return spec


def _fill_layer(layer: Any, tensors: Mapping[str, LazyArray], name: str) -> None:
    for attribute, attention_name in _ATTENTIONS:
        if attention := getattr(layer, attribute, None):
            # Self-attention has one matrix for queries, keys and values.
            projections = (
                [["q_proj", "k_proj", "v_proj"]]
                if attribute == "self_attention"
                else [["q_proj"], ["k_proj", "v_proj"]]
            )
            for linear, projection_names in zip(
                attention.linear, [*projections, ["out_proj"]], strict=True
            ):
                _fill_linear(
                    linear,
                    tensors,
                    [f"{name}.{attention_name}.{projection}" for projection in projection_names],
                )
            _fill_norm(attention.layer_norm, tensors, f"{name}.{attention_name}_layer_norm")
    _fill_linear(layer.ffn.linear_0, tensors, [f"{name}.fc1"])
    _fill_linear(layer.ffn.linear_1, tensors, [f"{name}.fc2"])
    _fill_norm(layer.ffn.layer_norm, tensors, f"{name}.final_layer_norm")


def _fill_linear(linear: Any, tensors: Mapping[str, LazyArray], names: list[str]) -> None:
    linear.weight = np.concatenate([tensors[f"{name}.weight"].read() for name in names])
    linear.bias = np.concatenate([tensors[f"{name}.bias"].read() for name in names])


def _fill_norm(norm: Any, tensors: Mapping[str, LazyArray], name: str) -> None:
    norm.gamma = tensors[f"{name}.weight"].read()
    norm.beta = tensors[f"{name}.bias"].read()
