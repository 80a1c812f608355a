"""The TPU kernel of attention, interpreted, against what it stands for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.attention import fused, kernels, split
from mnmt_jax.design.layout import Stage
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.model.dropout import Drawn

HEADS, HEAD_DIM = 4, 64
REGISTER = LAYOUTS["register"].stages[0]
LENGTHS = {"source": 32, "register": 48, "target": 32, "trigger": 16}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Runs kernels on the CPU, as if it were a TPU that computes with any type."""
    run = functools.partial(kernels.pl.pallas_call, interpret=True)
    monkeypatch.setattr(kernels.pl, "pallas_call", run)
    monkeypatch.setattr(fused, "platform", lambda: "tpu")


def drawn_spans(stage: Stage, rows: int = 2, seed: int = 0, dtype: str = "bfloat16") -> tuple:
    """Draws queries, keys and values, and segments of which the last are padding."""
    rng = np.random.default_rng(seed)
    shapes = {role: (rows, LENGTHS[role], HEADS, HEAD_DIM) for role in stage.roles}
    states = [
        {role: jnp.asarray(rng.normal(size=shape) * scale, dtype) for role, shape in shapes.items()}
        for scale in (HEAD_DIM**-0.5, 1, 1)
    ]
    segments = {}
    for role in stage.roles:
        ids = np.sort(rng.integers(1, 4, (rows, LENGTHS[role])), axis=1).astype(np.int32)
        segments[role] = np.where(np.arange(LENGTHS[role]) < LENGTHS[role] - 5, ids, 0)
    return states, segments


def values_and_gradients(module, stage, segments, states, rate=0.0):
    """Returns what a module reads, and its gradients for an arbitrary sum of that."""
    keys = iter(jax.random.split(jax.random.key(7), 8))

    def dropout() -> Drawn:
        return Drawn(rate, next(keys)) if rate else Drawn()

    def read(queries, keys, values):
        masks = module.make_masks(stage, segments)
        return module.attend(stage, masks, queries, keys, values, dropout=dropout)

    found, back = jax.vjp(read, *states)
    rng = np.random.default_rng(1)
    weights = {r: jnp.asarray(rng.normal(size=x.shape), x.dtype) for r, x in found.items()}
    return jax.tree.map(lambda x: np.asarray(x, np.float32), (found, back(weights)))


def compare(expected, found, atol):
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(other, one, atol=atol * np.abs(one).max())


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("name", ["register", "prefix_trigger", "causal"])
def test_it_equals_split(name, rate):
    """Packed and padded rows; also rows that are padding alone, and queries of padding."""
    stage = LAYOUTS[name].stages[0]
    states, segments = drawn_spans(stage)
    calls = count_calls(lambda: values_and_gradients(fused, stage, segments, states, rate))
    assert calls == 2 * len(stage.roles)
    expected, found = (
        values_and_gradients(module, stage, segments, states, rate) for module in (split, fused)
    )
    compare(expected, found, atol=0.02)
