"""Computing in bfloat16: stepping, training, and recomputing agree as they do in float32.

Flax's LayerNorm mixes bfloat16 and float32 on purpose, so these tests relax the promotion of types.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.model.network import build_model
from mnmt_jax.training.learner import Learner, batch_loss
from mnmt_jax.training.state import create_state, make_init
from mnmt_jax.training.train_step import train_step
from tests.applied import apply
from tests.made_run import make_config
from tests.sample_batches import VOCAB, make, random_pairs, small_config, unpacked

STEP_ATOL = 0.06  # of logits of size about 1: a few units in bfloat16's last place, 2 ** -8
LOSS_RTOL = 0.01
GRADIENT_ATOL = 1e-5
NAMES = ("register", "two_stage_trigger", "encoder_decoder")


@pytest.mark.parametrize("name", NAMES)
def test_stepping_equals_teacher_forcing(name, relaxed_dtypes):
    config = small_config(name, norm="pre", dtype="bfloat16")
    batch = unpacked(LAYOUTS[name], random_pairs(3, seed=5), pad=1)
    model, params = make(config)
    exact = build_model(dataclasses.replace(config, dtype="float32"), VOCAB)
    logits, near = apply(model, params, batch), apply(exact, params, batch)
    static = {k: v for k, v in batch.items() if not k.startswith("target")}
    steps = logits.shape[1]
    cache = apply(model, params, static, beam=1, max_steps=steps, method="prefill")
    assert {leaf.dtype for leaf in jax.tree.leaves(cache)} >= {jnp.dtype(jnp.bfloat16)}
    advance = jax.jit(
        lambda tokens, cache: model.apply({"params": params}, tokens, cache, method="step")
    )
    compared = 0
    for step in range(steps):
        found, cache = advance(batch["target_tokens"][:, step : step + 1], cache)
        assert found.dtype == jnp.float32
        found = np.asarray(found)
        real = batch["target_segment_ids"][:, step] != 0
        np.testing.assert_allclose(found[real, 0], logits[real, step], atol=STEP_ATOL)
        np.testing.assert_allclose(found[real, 0], near[real, step], atol=2 * STEP_ATOL)
        compared += int(real.sum())
    assert compared > 6
    difference = np.abs(logits - near)[batch["target_segment_ids"] != 0].max()
    assert 1e-4 < difference < np.abs(near).max() / 4  # it does compute in fewer digits


def make_learning(tmp_path, **changes):
    """A learner, its first state and a batch with labels."""
    config = make_config(tmp_path, model=changes)
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    learner = Learner.from_config(config, VOCAB, mesh)
    batch = unpacked(learner.model.layout, random_pairs(6))
    segments = batch["target_segment_ids"]
    labels = np.where(segments > 0, np.roll(batch["target_tokens"], -1, axis=1), 0)
    batch["target_labels"] = labels.astype(np.int32)
    init = make_init(learner, batch, seed=0)
    return learner, create_state(init, mesh), batch


def test_an_update_keeps_float32_where_it_matters(tmp_path, relaxed_dtypes):
    losses = {}
    for dtype in ("float32", "bfloat16"):
        learner, state, batch = make_learning(tmp_path, dtype=dtype, dropout=0.0)
        stacked = {name: array[None] for name, array in batch.items()}
        after, metrics = jax.jit(train_step, static_argnums=0)(learner, state, stacked)
        floats = [a.dtype for a in jax.tree.leaves(after) if jnp.issubdtype(a.dtype, jnp.floating)]
        assert len(floats) > 40 and set(floats) == {np.dtype("float32")}
        assert all(np.isfinite(a).all() for a in jax.tree.leaves(after))
        assert metrics["gradient_norm"] > 0
        losses[dtype] = float(metrics["loss"])
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=LOSS_RTOL)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recomputing_layers_draws_the_same_dropout(dtype, tmp_path, relaxed_dtypes):
    learner, state, batch = make_learning(tmp_path, dtype=dtype, dropout=0.3)
    kept = dataclasses.replace(learner.model.config, remat=True)
    recomputing = dataclasses.replace(learner, model=learner.model.clone(config=kept))

    arrays = jax.tree.map(jnp.asarray, batch)

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(learner, rng):
        return jax.grad(lambda params: batch_loss(learner, params, arrays, rng)[0])(state.params)

    one, two = jax.random.key(1), jax.random.key(2)
    expected, found = gradients(learner, one), gradients(recomputing, one)
    other = gradients(learner, two)
    scale = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(expected))
    atol = (GRADIENT_ATOL if dtype == "float32" else 0.02) * scale
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), found, expected)
    apart = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), other, expected)
    assert max(jax.tree.leaves(apart)) > 0.1 * scale  # dropout matters here
