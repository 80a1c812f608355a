"""Frozen branches of languages stay bit-identical under weight decay and earlier moments."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util

from mnmt_jax.config.sections import Model, Optimizer
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.model.trainable_params import Trainable
from mnmt_jax.training.averages import optimizer_average
from mnmt_jax.training.learner import Learner, batch_loss
from mnmt_jax.training.optimizer import AdamState
from mnmt_jax.training.state import create_state, make_init
from mnmt_jax.training.train import train
from mnmt_jax.training.train_step import train_step
from tests.made_run import make_cache, make_config
from tests.sample_batches import random_pairs, unpacked

VOCAB, UPDATES = 17, 3
CODES = ("en", "de", "fr", "it", "nl")
METHOD = LanguageLayers(CODES, ("en",), mlp=6, frozen=("fr", "de"), dropout=0.0)
RULE = Trainable(rows=(("branch/first", (0, 2)), ("scale", (1,))))
TREE = {
    "mlp": {
        "branch": {"first": {"kernel": np.ones((3, 2, 2)), "bias": np.ones((3, 2))}},
        "scale": np.array([1.0, -0.0, 3.0]),
    },
    "other": np.float32(2),
}


def test_frozen_rows_have_zero_gradients_and_are_restored():
    flat = traverse_util.flatten_dict(RULE.zero_frozen_rows(TREE), sep="/")
    for name in ("kernel", "bias"):
        actual = np.asarray(flat[f"mlp/branch/first/{name}"]).reshape(3, -1)
        np.testing.assert_array_equal(actual.any(axis=1), [False, True, False])
    np.testing.assert_array_equal(flat["mlp/scale"], [1.0, 0.0, 3.0])
    moved = jax.tree.map(lambda leaf: leaf * 0.5 + 0.0, TREE)
    flat = traverse_util.flatten_dict(RULE.restore_frozen_rows(moved, TREE), sep="/")
    np.testing.assert_array_equal(flat["mlp/branch/first/bias"], [[1, 1], [0.5, 0.5], [1, 1]])
    np.testing.assert_array_equal(flat["mlp/scale"], [0.5, 0.0, 1.5])
    assert np.signbit(flat["mlp/scale"][1]) and float(flat["other"]) == 1
    assert RULE.count(TREE) == 4 + 2 + 2 + 1 and Trainable().count(TREE) == 12 + 6 + 3 + 1
    assert (
        Trainable().zero_frozen_rows(TREE) is TREE
        and Trainable().restore_frozen_rows(moved, TREE) is moved
    )


def test_rows_of_frozen_languages():
    def rows(**settings) -> dict:
        method = LanguageLayers(CODES, mlp=6, **settings)
        model = Model("prefix", (1,), methods=(method,))
        return dict(Trainable.from_config(model, Optimizer()).rows)

    assert rows() == {}
    # Counted among those that have a branch.
    frozen = rows(without=("en", "fr"), frozen=("nl", "de", "en"))
    assert frozen == {f"mlp/branch/{name}": (0, 2) for name in ("first", "second", "scale")}
    frozen = rows(frozen=("en",), frozen_scales=False)
    assert frozen == {f"mlp/branch/{name}": (0,) for name in ("first", "second")}
    with pytest.raises(UserError, match="LanguageLayers.frozen names es; "):
        config = make_config(Path(), model={"methods": (LanguageLayers(CODES, frozen=("es",)),)})
        Learner.from_config(config, VOCAB, make_mesh(config.mesh, jax.devices()[:1]))


@functools.cache
def trained(scales: bool):
    """Return the learner, its batch, and states and norms of updates with nonzero moments."""
    settings = {"schedule": "constant", "warmup_steps": 0, "learning_rate": 0.1}
    method = LanguageLayers(**(METHOD.__dict__ | {"frozen_scales": scales}))
    config = make_config(
        Path(),
        model={"dropout": 0.0, "methods": (method,)},
        optimizer=settings | {"weight_decay": 0.5},
    )
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    learner = Learner.from_config(config, VOCAB, mesh)
    batch = unpacked(learner.model.layout, random_pairs(6))
    batch["target_labels"] = batch["target_tokens"]
    languages = np.array([[1], [2], [3], [4], [2], [0]], np.int32)
    batch |= {"target_lang": languages, "source_lang": 0 * languages}
    init = make_init(learner, batch, 0)
    state = create_state(init, mesh)
    ones = lambda tree: jax.tree.map(lambda a: jnp.full_like(a, 0.3), tree)  # noqa: E731
    state.params["layer_0"]["mlp"]["branch"]["scale"] = jnp.asarray([-0.0, 0.2, 0.3, 0.4])
    adam = state.opt_state
    assert isinstance(adam, AdamState)
    moments = AdamState(adam.updates, ones(adam.first_moment), ones(adam.second_moment))
    states, norms = [state.replace(opt_state=moments)], []
    stacked = {name: array[None] for name, array in batch.items()}
    step = jax.jit(functools.partial(train_step, learner))
    for _ in range(UPDATES):
        state, metrics = step(states[-1], stacked)
        states.append(state)
        norms.append(float(metrics["gradient_norm"]))
    return learner, batch, states, norms


@pytest.mark.parametrize("scales", [True, False])
def test_frozen_branches_are_bit_identical_and_others_change(scales):
    _, _, states, _ = trained(scales)
    first, last = (
        traverse_util.flatten_dict(state.params["layer_0"]["mlp"]["branch"], sep="/")
        for state in (states[0], states[-1])
    )
    assert len(first) == 5
    for name, leaf in first.items():
        before, after = (np.asarray(each).view(np.int32) for each in (leaf, last[name]))
        assert before.shape[0] == 4  # de, fr, it, nl
        frozen = 2 if scales or name != "scale" else 0
        np.testing.assert_array_equal(after[:frozen], before[:frozen])
        assert (after[frozen:] != before[frozen:]).all()
    for name in ("wi", "wo"):  # beside the branches
        kernels = [state.params["layer_0"]["mlp"][name]["kernel"] for state in states[::UPDATES]]
        assert (np.asarray(kernels[0]) != np.asarray(kernels[1])).all()


def test_a_new_run_freezes_no_random_parameters(tmp_path):
    cache = make_cache(tmp_path / "cache")
    languages = ("en", "de", "fr")
    model = {"methods": (LanguageLayers(languages, mlp=6, frozen=("de",)),)}
    with pytest.raises(
        UserError, match="LanguageLayers.frozen=.* random values; name a trained run"
    ) as e:
        train(make_config(cache, model=model), tmp_path / "run")
    assert "\n" not in str(e.value) and not (tmp_path / "run" / "checkpoints" / "0").exists()


def test_frozen_rows_do_not_count_in_the_gradient_norm():
    learner, batch, states, norms = trained(True)
    gradient = jax.jit(jax.grad(lambda p, b: batch_loss(learner, p, b)[0]))(states[0].params, batch)
    tokens = float((batch["target_segment_ids"] != 0).sum())
    whole = float(optax.global_norm(gradient)) / tokens
    branch = gradient["layer_0"]["mlp"]["branch"]
    frozen = float(optax.global_norm(jax.tree.map(lambda leaf: leaf[:2], branch))) / tokens
    assert frozen > 1e-3
    assert norms[0] == pytest.approx((whole**2 - frozen**2) ** 0.5, rel=1e-5)
    for moments in states[-1].opt_state[1:]:  # only what was there decays
        kernel = np.asarray(moments["layer_0"]["mlp"]["branch"]["first"]["kernel"])
        assert len(set(kernel[:2].reshape(-1).tolist())) == 1 < len(set(kernel[2].reshape(-1)))


def test_the_average_of_schedule_free_keeps_frozen_rows(relaxed_dtypes):
    settings = {"name": "schedule_free", "schedule": "constant", "warmup_steps": 0}
    config = make_config(
        Path(),
        model={"dropout": 0.0, "methods": (METHOD,)},
        optimizer=settings | {"learning_rate": 0.1, "weight_decay": 0.5},
    )
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    learner = Learner.from_config(config, VOCAB, mesh)
    batch = unpacked(learner.model.layout, random_pairs(6))
    batch["target_labels"] = batch["target_tokens"]
    languages = np.array([[1], [2], [3], [4], [2], [0]], np.int32)
    batch |= {"target_lang": languages, "source_lang": 0 * languages}
    first = state = create_state(make_init(learner, batch, 0), mesh)
    step = jax.jit(functools.partial(train_step, learner))
    for _ in range(UPDATES):
        state, _ = step(state, {name: array[None] for name, array in batch.items()})
    before, after = (
        np.asarray(params["layer_0"]["mlp"]["branch"]["first"]["kernel"])
        for params in (first.params, optimizer_average(learner, state))
    )
    np.testing.assert_array_equal(after[:2], before[:2])
    assert (after[2:] != before[2:]).any()
