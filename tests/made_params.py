"""Parameter trees for tests of checkpoints in and out."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from mnmt_jax.config import Model
from mnmt_jax.describe import parameter_shapes
from mnmt_jax.lazy_array import LazyArray


def read_all(tree: Any) -> Any:
    """Reads every lazy array of a tree."""
    if isinstance(tree, LazyArray):
        return tree.read()
    return {key: read_all(branch) for key, branch in tree.items()}


def zeros_of(model: Model, vocab_size: int) -> Any:
    """Returns parameters as a model has them, all zero, to be read one by one."""
    shapes = parameter_shapes(model, vocab_size)
    return jax.tree.map(lambda leaf: LazyArray.of(np.zeros(leaf.shape, leaf.dtype)), shapes)


def assert_same(found: Any, expected: Any) -> None:
    """Compares two trees bit for bit."""
    assert found.keys() == expected.keys() and found
    for key, value in expected.items():
        if isinstance(value, dict):
            assert_same(found[key], value)
        else:
            np.testing.assert_array_equal(np.asarray(found[key]), np.asarray(value), err_msg=key)
            assert np.asarray(found[key]).dtype == np.asarray(value).dtype
