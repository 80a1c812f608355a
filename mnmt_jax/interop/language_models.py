"""Settings of Graformer's fairseq: two language models, the graft of them, and its baselines.

Which of them a checkpoint is of, its architecture and its settings say; sizes of the tables of
positions only the arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mnmt_jax.config.sections import Model
from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.files.typed_fields import TypedFields, short_repr
from mnmt_jax.interop.foreign import check_supported
from mnmt_jax.methods.graformer import Graformer
from mnmt_jax.methods.tables import Tables
from mnmt_jax.methods.tuning_layers import TuningLayers
from mnmt_jax.model.modules import ACTIVATIONS, FIRST_ROW

# Beginnings of the names of architectures, a name before those that it begins.
_MASKED, _CAUSAL, _GRAFTED, _ADAPTER, _APART = (
    "transformer_encoder_model",
    "transformer_lm",
    "bridge_transformer",
    "ab_transformer",
    "transformer",
)
_BOTH = ("encoder", "decoder")
_SIDES = {
    _MASKED: ("encoder",),
    _CAUSAL: ("decoder",),
    _GRAFTED: _BOTH,
    _ADAPTER: _BOTH,
    _APART: _BOTH,
}
_ALIKE = ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "learned_pos")
# What settings say of a language model besides sizes, and layouts that the baselines have.
_ALONE = {
    "masked_lm": {"arch": _MASKED, "share_encoder_input_output_embed": True},
    "causal_lm": {"arch": _CAUSAL, "share_decoder_input_output_embed": True},
}
_OF_TWO_TABLES = ("encoder_decoder",)
# Of both sides, where settings say nothing.
_DEFAULTS = {"normalize_before": True, "learned_pos": False}


def language_model_settings(
    path: Path, fields: TypedFields, tensors: Mapping[str, LazyArray]
) -> Model | None:
    """Returns the model of a checkpoint of Graformer's fairseq; None if it is another's.

    Args:
        path: of the checkpoint.
        fields: settings of its training.
        tensors: by their names.

    Raises:
        UserError: if no model of ours is like it.
    """
    arguments = fields.values
    kind = next((name for name in _SIDES if _architecture(arguments).startswith(name)), None)
    others = {"register_factor", "attention_position_bias", "language_num"} & arguments.keys()
    if kind is None or (kind == _APART and (others or arguments.get("share_all_embeddings", True))):
        return None
    shared = _shared(path, fields, tensors, _SIDES[kind])
    layers = {side: fields.integer(f"{side}_layers") for side in _SIDES[kind]}
    if kind in (_MASKED, _CAUSAL):
        layout = "masked_lm" if kind == _MASKED else "causal_lm"
        return Model(layout, tuple(layers.values()), **shared)
    if kind == _ADAPTER:
        methods = (TuningLayers(), Tables(output=True))
        return Model("encoder_decoder", tuple(layers.values()), methods=methods, **shared)
    if kind == _APART:
        tables = Tables(output=not arguments.get("share_decoder_input_output_embed"))
        return Model("encoder_decoder", tuple(layers.values()), methods=(tables,), **shared)
    own = _layers_without_memory(path, arguments)
    stages = (layers["encoder"], own, layers["decoder"] - own)
    # What it begins as and what is frozen are matters of a training that begins with two models.
    method = Graformer(bool(arguments.get("lm_fusion")), encoder="none", decoder="none")
    return Model("grafted", stages, methods=(method,), **shared)


def language_model_arguments(model: Model) -> dict[str, Any] | None:
    """Returns what Graformer's fairseq is told of a model besides sizes; None if it has none such.

    Args:
        model: sizes, layout and methods.
    """
    if not model.methods:
        return dict(_ALONE[model.layout]) if model.layout in _ALONE else None
    first, *others = model.methods
    if isinstance(first, Graformer) and not others:
        below = ",".join(map(str, range(model.stage_layers[1])))
        return {"arch": _GRAFTED, "no_encoder_attn_layers": below, "lm_fusion": first.fusion}
    if model.layout not in _OF_TWO_TABLES:
        return None
    if model.methods == (TuningLayers(), Tables(output=True)):
        return {"arch": _ADAPTER}
    if isinstance(first, Tables) and first.target and not others:
        return {"arch": _APART, "share_decoder_input_output_embed": not first.output}
    return None


def layers_setting(arguments: Mapping[str, Any]) -> str:
    """Returns the name of a setting that every checkpoint of such a model has."""
    masked = _architecture(arguments).startswith(_MASKED)
    return "encoder_layers" if masked else "decoder_layers"


def _architecture(arguments: Mapping[str, Any]) -> str:
    return str(arguments.get("arch") or arguments.get("_name"))


def _shared(
    path: Path,
    fields: TypedFields,
    tensors: Mapping[str, LazyArray],
    sides: tuple[str, ...],
) -> dict[str, Any]:
    """Returns the sizes, which both sides must have alike."""
    get, (side, *others) = fields.values.get, sides

    def told(side: str, name: str) -> Any:
        return get(f"{side}_{name}", _DEFAULTS.get(name))

    activation = fields.text("activation_fn", "relu")
    needed = [
        ("layernorm_embedding", bool(get("layernorm_embedding")), False),
        ("activation_fn", activation, activation if activation in ACTIVATIONS else "relu"),
    ]
    for other in others:
        needed += [(f"{other}_{name}", told(other, name), told(side, name)) for name in _ALIKE]
    check_supported(path, needed)
    positions: tuple[Any, ...] = Model().positions
    if told(side, "learned_pos"):
        positions = ("learned", _rows(path, tensors))
    return {
        "embed": fields.integer(f"{side}_embed_dim"),
        "mlp": fields.integer(f"{side}_ffn_embed_dim"),
        "heads": fields.integer(f"{side}_attention_heads"),
        "norm": "pre" if told(side, "normalize_before") else "post",
        "activation": activation,
        "positions": positions,
        "embedding_scale": not get("no_scale_embedding"),
        "dropout": fields.number("dropout", 0.1),
        "attention_dropout": fields.number("attention_dropout", 0.0),
    }


def _rows(path: Path, tensors: Mapping[str, LazyArray]) -> int:
    """Returns the number of learned positions."""
    ending = "embed_positions.weight"
    sizes = {t.shape[0] for name, t in tensors.items() if name.endswith(ending) and t.shape}
    if len(sizes) != 1:
        raise UserError(
            f"{path}: tables of {sorted(sizes)} learned positions; ours have one size for both "
            "sides"
        )
    return sizes.pop() - FIRST_ROW


def _layers_without_memory(path: Path, arguments: Mapping[str, Any]) -> int:
    """Returns how many of the target's first layers know no source."""
    named = str(arguments.get("no_encoder_attn_layers") or "")
    numbers = [layer.strip() for layer in named.split(",") if layer.strip()]
    is_list = all(number.isdecimal() and len(number) < 5 for number in numbers)
    layers = sorted(map(int, numbers)) if is_list else []
    if not layers or layers != list(range(len(layers))):
        raise UserError(
            f"{path}: no_encoder_attn_layers={short_repr(named)}: the layers without a source must be "
            "the first"
        )
    return len(layers)
