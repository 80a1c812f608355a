"""Says what a configuration amounts to: parameters, FLOPs, decode memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from mnmt_jax.checkpoint_files import array_types, check_arrays
from mnmt_jax.config import Model, Optimizer
from mnmt_jax.flops import Sentence, cache_bytes, forward_flops, train_flops
from mnmt_jax.lora import LORA_A, LORA_B
from mnmt_jax.model import build_model
from mnmt_jax.run_directory import RunDirectory
from mnmt_jax.trainable import Trainable

_COMPONENTS = {
    "lora": (LORA_A, LORA_B),
    "embedding": ("embedding",),
    "attention": ("attention",),
    "memory_attention": ("memory_attention",),
    "mlp": ("mlp",),
    "norms": ("attention_norm", "memory_attention_norm", "mlp_norm"),
    "adaption": ("adaption_input", "adaption_output"),
}
_EVERYTHING_TRAINS = Optimizer()


@functools.cache  # seconds for a deep model
def parameter_shapes(config: Model, vocab_size: int) -> Any:
    """Returns the parameter tree as shapes, without making an array; do not change the tree."""
    model = build_model(config, vocab_size)
    batch = {
        f"{role}_{kind}": jax.ShapeDtypeStruct((1, 2), np.int32)
        for role in model.layout.embedded_roles()
        for kind in ("tokens", "positions", "segment_ids")
    }
    return jax.eval_shape(model.init, jax.random.key(0), batch)["params"]


def check_parameters(run: RunDirectory, config: Model, vocab_size: int, params: Any) -> None:
    """Checks that the parameters of a run are those of its model.

    Args:
        run: names the checkpoints in an error.
        config: of the model.
        vocab_size: entries of the vocabulary.
        params: what was read.

    Raises:
        UserError: with the first array that differs: somebody changed the configuration.
    """
    shapes = parameter_shapes(config, vocab_size)
    check_arrays(run.checkpoints, array_types(params), array_types(shapes))


def count_parameters(shapes: Any) -> dict[str, int]:
    """Counts parameters per component and in `total`.

    Args:
        shapes: a parameter tree of arrays or shapes.
    """
    counts = dict.fromkeys((*_COMPONENTS, "total"), 0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        size = int(np.prod(leaf.shape))
        counts[_component([entry.key for entry in path])] += size
        counts["total"] += size
    return counts


def describe(
    config: Model,
    vocab_size: int,
    *,
    source_length: int,
    target_length: int,
    beam: int,
    optimizer: Optimizer = _EVERYTHING_TRAINS,
) -> Mapping[str, Any]:
    """Describes a model for one sentence pair of the given lengths.

    Args:
        config: the model.
        vocab_size: entries of the vocabulary.
        source_length: source tokens, tag and eos included.
        target_length: target tokens, eos included.
        beam: hypotheses while decoding.
        optimizer: says what does not train.

    Returns:
        JSON-ready figures; FLOPs count a multiply-add as two.
    """
    layout = build_model(config, vocab_size).layout
    sentence = Sentence(source_length, target_length)
    sizes = config, layout, vocab_size, sentence
    trainable = Trainable.from_config(config, optimizer)
    shapes = parameter_shapes(config, vocab_size)
    return {
        "layout": layout.name,
        "stages": [
            {"roles": stage.roles, "sees": stage.sees, "layers": stage.layers}
            for stage in layout.stages
        ],
        "vocabulary": vocab_size,
        "parameters": count_parameters(shapes) | {"learnable": trainable.count(shapes)},
        "lengths": {"source": source_length, "target": target_length, "beam": beam},
        "flops_per_target_token": {
            "forward": round(forward_flops(*sizes) / target_length),
            "train": round(train_flops(*sizes, trainable=trainable) / target_length),
        },
        "key_value_bytes_per_sentence": cache_bytes(config, layout, sentence, beam),
    }


def _component(names: list[str]) -> str:
    for component, members in _COMPONENTS.items():
        if any(name in members for name in names):
            return component
    return "norms"
