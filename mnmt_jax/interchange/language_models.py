"""Settings of Graformer's fairseq: its two language models, the graft of them, and the Adapter.

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
from mnmt_jax.interchange.foreign import check_supported
from mnmt_jax.interchange.names import FIRST_POSITION
from mnmt_jax.methods.graformer import Graformer
from mnmt_jax.methods.tables import Tables
from mnmt_jax.methods.tuning_layers import TuningLayers
from mnmt_jax.model.modules import ACTIVATIONS

# Beginnings of the names of architectures.
_MASKED, _CAUSAL, _GRAFTED, _ADAPTER = (
    "transformer_encoder_model",
    "transformer_lm",
    "bridge_transformer",
    "ab_transformer",
)
_SIDES = {
    _MASKED: ("encoder",),
    _CAUSAL: ("decoder",),
    _GRAFTED: ("encoder", "decoder"),
    _ADAPTER: ("encoder", "decoder"),
}
_ALIKE = ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "learned_pos")
# Of both sides, where settings say nothing.
_DEFAULTS = {"normalize_before": True, "learned_pos": False}


def language_model_settings(
    path: Path, arguments: Mapping[str, Any], tensors: Mapping[str, LazyArray]
) -> Model | None:
    """Returns the model of a checkpoint of Graformer's fairseq; None if it is another's.

    Args:
        path: of the checkpoint.
        arguments: of its training.
        tensors: by their names.

    Raises:
        UserError: if no model of ours is like it.
    """
    arch = str(arguments.get("arch") or arguments.get("_name"))
    kind = next((name for name in _SIDES if arch.startswith(name)), None)
    if kind is None:
        return None
    shared = _shared(path, arguments, tensors, _SIDES[kind])
    layers = {side: int(arguments[f"{side}_layers"]) for side in _SIDES[kind]}
    if kind in (_MASKED, _CAUSAL):
        layout = "masked_lm" if kind == _MASKED else "causal_lm"
        return Model(layout, tuple(layers.values()), **shared)
    if kind == _ADAPTER:
        methods = (TuningLayers(), Tables(output=True))
        return Model("encoder_decoder", tuple(layers.values()), methods=methods, **shared)
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
    methods = {method.name: method for method in model.methods}
    fused = methods.get("graformer")
    if model.layout == "masked_lm" and not methods:
        return {"arch": _MASKED, "share_encoder_input_output_embed": True}
    if model.layout == "causal_lm" and not methods:
        return {"arch": _CAUSAL, "share_decoder_input_output_embed": True}
    if model.layout == "grafted" and [*methods] == ["graformer"] and isinstance(fused, Graformer):
        first = ",".join(map(str, range(model.stage_layers[1])))
        return {"arch": _GRAFTED, "no_encoder_attn_layers": first, "lm_fusion": fused.fusion}
    adapted = (TuningLayers(), Tables(output=True))
    if model.layout == "encoder_decoder" and model.methods == adapted:
        return {"arch": _ADAPTER}
    return None


def _shared(
    path: Path,
    arguments: Mapping[str, Any],
    tensors: Mapping[str, LazyArray],
    sides: tuple[str, ...],
) -> dict[str, Any]:
    """Returns the sizes, which both sides must have alike."""
    get, (side, *others) = arguments.get, sides

    def told(side: str, name: str) -> Any:
        return get(f"{side}_{name}", _DEFAULTS.get(name))

    activation = get("activation_fn", "relu")
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
        "embed": int(told(side, "embed_dim")),
        "mlp": int(told(side, "ffn_embed_dim")),
        "heads": int(told(side, "attention_heads")),
        "norm": "pre" if told(side, "normalize_before") else "post",
        "activation": activation,
        "positions": positions,
        "embedding_scale": not get("no_scale_embedding"),
        "dropout": float(get("dropout", 0.1)),
        "attention_dropout": float(get("attention_dropout", 0.0)),
    }


def _rows(path: Path, tensors: Mapping[str, LazyArray]) -> int:
    """Returns the number of learned positions."""
    sizes = {t.shape[0] for name, t in tensors.items() if name.endswith("embed_positions.weight")}
    if len(sizes) != 1:
        raise UserError(
            f"{path}: tables of {sorted(sizes)} learned positions; ours have one size for both "
            "sides"
        )
    return sizes.pop() - FIRST_POSITION


def _layers_without_memory(path: Path, arguments: Mapping[str, Any]) -> int:
    """Returns how many of the target's first layers know no source."""
    named = str(arguments.get("no_encoder_attn_layers") or "")
    layers = sorted(int(layer) for layer in named.split(",") if layer.strip())
    if not layers or layers != list(range(len(layers))):
        raise UserError(
            f"{path}: no_encoder_attn_layers={named!r}: the layers without a source must be the "
            "first"
        )
    return len(layers)
