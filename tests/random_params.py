"""Random parameters without compiling an initialiser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from mnmt_jax.model.network import Network
from mnmt_jax.model.shapes import shapes_of_model

# Kind of parameter -> mean and standard deviation.
Moments = Mapping[str, tuple[float, float]]
_LORA = {"lora_a": (0, 0.5), "lora_b": (0, 0.5)}
# Weights large beside the embedding, so that a model does not just repeat its input.
STRONG: Moments = {
    "embedding": (0, 0.4),
    "kernel": (0, 1.0),
    "bias": (0, 0.3),
    "scale": (1, 0.3),
    "weight": (0, 1.0),
}
# About the size that training begins with, biases and norms not at their zeros.
MILD: Moments = {
    "embedding": (0, 0.25),
    "kernel": (0, 0.25),
    "bias": (0, 0.1),
    "scale": (1, 0.1),
    "weight": (0, 1.0),
}
_SHAPES: dict[Network, Any] = {}  # of a model's parameters


def random_params(model: Network, seed: int = 0, moments: Moments = STRONG) -> Any:
    """Draw every parameter; one whose name is not in `moments` as `kernel`."""
    rng = np.random.default_rng(seed)
    if model not in _SHAPES:
        _SHAPES[model] = shapes_of_model(model)

    def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        kind = "embedding" if "embedding" in path[-1].key else path[-1].key
        mean, std = (_LORA | moments).get(kind, moments["kernel"])
        return jax.numpy.asarray(rng.normal(mean, std, leaf.shape).astype(np.float32))

    return jax.tree_util.tree_map_with_path(draw, _SHAPES[model])
