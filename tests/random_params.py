"""Random parameters without compiling an initialiser."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from mnmt_jax.model import Translator

_MOMENTS = {"embedding": (0, 0.4), "kernel": (0, 1.0), "bias": (0, 0.3), "scale": (1, 0.3)}
_MOMENTS |= {"lora_a": (0, 0.5), "lora_b": (0, 0.5)}


def random_params(model: Translator, batch: dict[str, np.ndarray], seed: int = 0) -> Any:
    """Draws every parameter.

    Weights are large beside the embedding, so that a model does not just repeat its input.
    """
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(model.init, jax.random.key(0), batch)["params"]

    def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        mean, std = _MOMENTS[path[-1].key]
        return jax.numpy.asarray(rng.normal(mean, std, leaf.shape).astype(np.float32))

    return jax.tree_util.tree_map_with_path(draw, shapes)
