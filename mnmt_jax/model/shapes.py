"""Shapes of a model's parameters, without allocating them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from mnmt_jax.config.sections import Model
from mnmt_jax.design.layouts import LANGUAGES
from mnmt_jax.model.network import build_model


@functools.cache  # tracing a deep model takes seconds
def parameter_shapes(config: Model, vocab_size: int) -> Any:
    """Return the parameter tree as shapes, without allocating arrays. Do not modify the tree."""
    model = build_model(config, vocab_size)
    batch = {
        f"{role}_{kind}": jax.ShapeDtypeStruct((1, 2), np.int32)
        for role in model.layout.embedded_roles()
        for kind in ("tokens", "positions", "segment_ids")
    } | dict.fromkeys(LANGUAGES, jax.ShapeDtypeStruct((1, 1), np.int32))
    return jax.eval_shape(model.init, jax.random.key(0), batch)["params"]
