"""Parameter counts, FLOPs and decoding memory of a model configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from mnmt_jax.config.sections import Model, Optimizer
from mnmt_jax.design.layouts import translates
from mnmt_jax.design.plan import Plan
from mnmt_jax.distributed.sharding import check_param_axes
from mnmt_jax.model.flops import Sentence, cache_bytes, forward_flops, train_flops
from mnmt_jax.model.lora import LORA_A, LORA_B
from mnmt_jax.model.modules import FIRST_ROW
from mnmt_jax.model.network import build_model
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.model.trainable_params import Trainable

_LORA, _EMBEDDING, _NORMS = "lora", "embedding", "norms"
# Listed even if a model has none.
_COMPONENTS = (_LORA, _EMBEDDING, "attention", "memory_attention", "mlp", _NORMS, "adaption")
_EVERYTHING_TRAINS = Optimizer()


def count_parameters(shapes: Any, plan: Plan) -> dict[str, int]:
    """Count parameters per component and in `total`, without auxiliary sublayers.

    Args:
        shapes: a parameter tree of arrays or shapes.
        plan: plan of the model.
    """
    auxiliary = {sublayer.name for sublayer in plan.auxiliary}
    tables = [table.name for table in plan.tables]
    tables += [f"{name}_positions" for name in tables]
    arrays = dict.fromkeys(tables, _EMBEDDING) | {LORA_A: _LORA, LORA_B: _LORA}
    components: dict[str, str] = {}
    layers = (sublayer for _, layer in plan.layers() for sublayer in layer)
    for sublayer in (*layers, *plan.outer_sublayers()):
        components |= {sublayer.name: sublayer.kind.component, f"{sublayer.name}_norm": _NORMS}
        components |= sublayer.kind.inner
    counts = dict.fromkeys((*_COMPONENTS, *arrays.values(), *components.values()), 0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        *groups, name = (entry.key for entry in path)
        if (groups or [name])[0] in auxiliary:
            continue
        owners = [components[group] for group in reversed(groups) if group in components]
        counts[arrays[name] if name in arrays else owners[0]] += int(np.prod(leaf.shape))
    return counts | {"total": sum(counts.values())}


def count_auxiliary_parameters(shapes: Any, plan: Plan) -> dict[str, int]:
    """Count the parameters of each auxiliary sublayer; only training uses them.

    Args:
        shapes: as for `count_parameters`.
        plan: plan of the model.
    """
    trees = {sublayer.name: jax.tree.leaves(shapes[sublayer.name]) for sublayer in plan.auxiliary}
    return {name: sum(int(np.prod(x.shape)) for x in leaves) for name, leaves in trees.items()}


def describe(
    config: Model,
    vocab_size: int,
    *,
    source_length: int,
    target_length: int,
    beam: int,
    optimizer: Optimizer = _EVERYTHING_TRAINS,
) -> Mapping[str, Any]:
    """Describe a model for a sentence pair of given lengths.

    Args:
        config: the model.
        vocab_size: entries of the vocabulary.
        source_length: source tokens, tag and eos included.
        target_length: target tokens, eos included.
        beam: hypotheses while decoding.
        optimizer: names the frozen parameters.

    Returns:
        JSON-serialisable figures; FLOPs count a multiply-add as two. Parameters of auxiliary
        sublayers, such as a critic, are only counted in `parameters_beside`. Only translation
        models have beams; masked language models have no key-value cache.

    Raises:
        UserError: if the kind of a sublayer does not name the axes of its parameters.
    """
    plan = build_model(config, vocab_size).plan
    layout = plan.layout
    sentence = Sentence(source_length, target_length)
    sizes = config, layout, vocab_size, sentence
    trainable = Trainable.from_config(config, optimizer)
    shapes = parameter_shapes(config, vocab_size)
    check_param_axes(shapes, plan.param_axes())  # as training does
    counts = count_parameters(shapes, plan) | {"learnable": trainable.count(shapes)}
    if unused := _unused_elsewhere(config, plan):
        counts["unused_elsewhere"] = unused  # additional parameters in the authors' code
    auxiliary = count_auxiliary_parameters(shapes, plan)
    lengths = {"source": source_length, "target": target_length}
    figures = {
        "layout": layout.name,
        "stages": [
            {"roles": stage.roles, "sees": stage.sees, "layers": stage.layers}
            for stage in layout.stages
        ],
        "vocabulary": vocab_size,
        "parameters": counts,
        **({"parameters_beside": auxiliary} if auxiliary else {}),
        "lengths": lengths | ({"beam": beam} if translates(layout) else {}),
        "flops_per_target_token": {
            "forward": round(forward_flops(*sizes) / target_length),
            "train": round(train_flops(*sizes, trainable=trainable) / target_length),
        },
    }
    if layout.is_autoregressive:
        beams = beam if translates(layout) else 1
        figures["key_value_bytes_per_sentence"] = cache_bytes(config, layout, sentence, beams)
    return figures


def _unused_elsewhere(config: Model, plan: Plan) -> int:
    """Count the unused parameters of the authors' models: in layers and positions of padding."""
    sublayers = (sublayer for _, layer in plan.layers() for sublayer in layer)
    in_layers = sum(sublayer.kind.unused_elsewhere() for sublayer in sublayers)
    if "learned" not in config.positions:
        return in_layers
    return in_layers + FIRST_ROW * config.embed * sum(table.embeds for table in plan.tables)
