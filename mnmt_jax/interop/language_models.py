"""Settings of Graformer's fairseq: two language models, the grafted model, and its baselines.

The architecture and the settings of a checkpoint say which of these models it holds. The number of
learned positions follows from the arrays.
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

# Prefixes of architecture names; a longer prefix comes before a shorter one that it starts with.
_MASKED = "transformer_encoder_model"
_CAUSAL = "transformer_lm"
_GRAFTED = "bridge_transformer"
_ADAPTER = "ab_transformer"
_TWO_TABLES = "transformer"
_BOTH = ("encoder", "decoder")
_SIDES = {
    _MASKED: ("encoder",),
    _CAUSAL: ("decoder",),
    _GRAFTED: _BOTH,
    _ADAPTER: _BOTH,
    _TWO_TABLES: _BOTH,
}
_SHARED_SETTINGS = (
    "embed_dim",
    "ffn_embed_dim",
    "attention_heads",
    "normalize_before",
    "learned_pos",
)
# Settings of a single language model besides sizes, and the layouts of the baselines.
_SINGLE_MODEL_SETTINGS = {
    "masked_lm": {"arch": _MASKED, "share_encoder_input_output_embed": True},
    "causal_lm": {"arch": _CAUSAL, "share_decoder_input_output_embed": True},
}
_TWO_TABLE_LAYOUTS = ("encoder_decoder",)
# Values for both sides if the settings lack them.
_DEFAULTS = {"normalize_before": True, "learned_pos": False}


def language_model_settings(
    path: Path, fields: TypedFields, tensors: Mapping[str, LazyArray]
) -> Model | None:
    """Return the model of a checkpoint of Graformer's fairseq; None for other checkpoints.

    Args:
        path: path of the checkpoint.
        fields: its training settings.
        tensors: its tensors by name.

    Raises:
        UserError: if we have no such model.
    """
    kind = next((name for name in _SIDES if _architecture(fields).startswith(name)), None)
    others = {"register_factor", "attention_position_bias", "language_num"} & fields.values.keys()
    if kind is None or (
        kind == _TWO_TABLES and (others or fields.get("share_all_embeddings", True))
    ):
        return None
    shared = _shared_sizes(path, fields, tensors, _SIDES[kind])
    layers = {side: fields.integer(f"{side}_layers") for side in _SIDES[kind]}
    if kind in (_MASKED, _CAUSAL):
        layout = "masked_lm" if kind == _MASKED else "causal_lm"
        return Model(layout, tuple(layers.values()), **shared)
    if kind == _ADAPTER:
        methods = (TuningLayers(), Tables(output=True))
        return Model("encoder_decoder", tuple(layers.values()), methods=methods, **shared)
    if kind == _TWO_TABLES:
        tables = Tables(output=not fields.get("share_decoder_input_output_embed"))
        return Model("encoder_decoder", tuple(layers.values()), methods=(tables,), **shared)
    decoder_only = _layers_without_cross_attention(path, fields)
    stages = (layers["encoder"], decoder_only, layers["decoder"] - decoder_only)
    # Initialisation and freezing matter only for training that starts from two models.
    method = Graformer(bool(fields.get("lm_fusion")), encoder="none", decoder="none")
    return Model("grafted", stages, methods=(method,), **shared)


def language_model_arguments(model: Model) -> dict[str, Any] | None:
    """Return the settings of Graformer's fairseq besides sizes; None if it has no such model.

    Args:
        model: sizes, layout and methods.
    """
    if not model.methods:
        return (
            dict(_SINGLE_MODEL_SETTINGS[model.layout])
            if model.layout in _SINGLE_MODEL_SETTINGS
            else None
        )
    method, *others = model.methods
    if isinstance(method, Graformer) and not others:
        decoder_only = ",".join(map(str, range(model.stage_layers[1])))
        return {
            "arch": _GRAFTED,
            "no_encoder_attn_layers": decoder_only,
            "lm_fusion": method.fusion,
        }
    if model.layout not in _TWO_TABLE_LAYOUTS:
        return None
    if model.methods == (TuningLayers(), Tables(output=True)):
        return {"arch": _ADAPTER}
    if isinstance(method, Tables) and method.target and not others:
        return {"arch": _TWO_TABLES, "share_decoder_input_output_embed": not method.output}
    return None


def layers_setting(fields: TypedFields) -> str:
    """Return the name of the layer-count setting that every checkpoint of this architecture has."""
    masked = _architecture(fields).startswith(_MASKED)
    return "encoder_layers" if masked else "decoder_layers"


def _architecture(fields: TypedFields) -> str:
    return str(fields.get("arch") or fields.get("_name"))


def _shared_sizes(
    path: Path,
    fields: TypedFields,
    tensors: Mapping[str, LazyArray],
    sides: tuple[str, ...],
) -> dict[str, Any]:
    """Return the sizes, which must be equal on both sides."""
    get, (side, *others) = fields.get, sides

    def setting(side: str, name: str) -> Any:
        return get(f"{side}_{name}", _DEFAULTS.get(name))

    activation = fields.text("activation_fn", "relu")
    requirements = [
        ("layernorm_embedding", bool(get("layernorm_embedding")), False),
        ("activation_fn", activation, activation if activation in ACTIVATIONS else "relu"),
    ]
    for other in others:
        requirements += [
            (f"{other}_{name}", setting(other, name), setting(side, name))
            for name in _SHARED_SETTINGS
        ]
    check_supported(path, requirements)
    positions: tuple[Any, ...] = Model().positions
    if get("no_token_positional_embeddings"):
        positions = ()
    elif setting(side, "learned_pos"):
        positions = ("learned", _learned_positions(path, tensors))
    return {
        "embed": fields.integer(f"{side}_embed_dim"),
        "mlp": fields.integer(f"{side}_ffn_embed_dim"),
        "heads": fields.integer(f"{side}_attention_heads"),
        "norm": "pre" if setting(side, "normalize_before") else "post",
        "activation": activation,
        "positions": positions,
        "embedding_scale": not get("no_scale_embedding"),
        "dropout": fields.number("dropout", 0.1),
        "attention_dropout": fields.number("attention_dropout", 0.0),
    }


def _learned_positions(path: Path, tensors: Mapping[str, LazyArray]) -> int:
    """Return the number of learned positions."""
    ending = "embed_positions.weight"
    sizes = {t.shape[0] for name, t in tensors.items() if name.endswith(ending) and t.shape}
    if len(sizes) != 1:
        raise UserError(
            f"{path}: tables of {sorted(sizes)} learned positions; ours have one size for both "
            "sides"
        )
    return sizes.pop() - FIRST_ROW


def _layers_without_cross_attention(path: Path, fields: TypedFields) -> int:
    """Return the number of initial target layers without cross-attention to the source."""
    setting = str(fields.get("no_encoder_attn_layers") or "")
    numbers = [layer.strip() for layer in setting.split(",") if layer.strip()]
    is_list = all(number.isdecimal() and len(number) < 5 for number in numbers)
    layers = sorted(map(int, numbers)) if is_list else []
    if not layers or layers != list(range(len(layers))):
        raise UserError(
            f"{path}: no_encoder_attn_layers={short_repr(setting)}: the layers without a source "
            "must be the first"
        )
    return len(layers)
