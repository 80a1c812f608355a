"""Averages of parameters in training: their values, resuming, checkpoints and translation."""

from __future__ import annotations

import dataclasses
import functools
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from mnmt_jax.runs.parameters import load_params
from mnmt_jax.training.averages import move_average
from mnmt_jax.training.source_runs import SourceRunSpec
from mnmt_jax.training.train import train
from tests.made_run import assert_same_training, make_cache, make_config, records, saved
from tests.unit.test_train import stop_after

pytestmark = pytest.mark.usefixtures("one_device", "relaxed_dtypes")
EMA = {"ema_decay": 0.2}
SCHEDULE_FREE = {"name": "schedule_free", "schedule": "constant"}
KINDS = {"ema": EMA, "schedule_free": SCHEDULE_FREE}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("averages"))


def configure(cache, **optimizer):
    return make_config(
        cache,
        optimizer=optimizer,
        train={"steps": 4, "eval_every": 1, "save_every": 1, "keep_last": 9},
    )


@pytest.fixture(scope="module")
def run_of(cache, tmp_path_factory):
    """Return a function that trains a run of each kind once."""
    runs = {}

    def trained(kind):
        if kind not in runs:
            runs[kind] = tmp_path_factory.mktemp(kind) / "run"
            assert train(configure(cache, **KINDS[kind]), runs[kind]) is None
        return runs[kind]

    return trained


def flat(run, step, **options):
    params, _ = load_params(run, step, **options)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def test_the_moving_average_by_hand(run_of):
    """The decay is min(0.2, (1 + t) / (10 + t)): 0.1, 2/11 and then 0.2."""
    run = run_of("ema")
    expected = flat(run, 1)
    for step, decay in ((2, 2 / 11), (3, 0.2), (4, 0.2)):
        expected = decay * expected + (1 - decay) * flat(run, step, averaged=False)
        np.testing.assert_allclose(flat(run, step), expected, atol=1e-7)
    assert np.abs(flat(run, 4) - flat(run, 4, averaged=False)).max() > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_run_equals_an_uninterrupted_one(kind, cache, run_of, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(patch, 2, lambda: signal.raise_signal(signal.SIGTERM))
        assert train(configure(cache, **KINDS[kind]), run) == "SIGTERM"
    assert train(configure(cache, **KINDS[kind]), run) is None
    assert_same_training(run, run_of(kind), 4)
    np.testing.assert_array_equal(flat(run, 4), flat(run_of(kind), 4))


@pytest.mark.parametrize("kind", KINDS)
def test_validation_and_translation_use_the_average(kind, cache, run_of, tmp_path):
    """A run that starts from the average, at rate 0, has its validation loss."""
    run = run_of(kind)
    still = configure(cache, learning_rate=0.0)
    losses = {}
    for averaged in (True, False):
        copied = tmp_path / str(averaged)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "mnmt_jax.training.source_runs.load_params",
                lambda *args, averaged=averaged: load_params(*args, averaged=averaged),
            )
            train(still, copied, [SourceRunSpec(run)])
        losses[averaged] = records(copied)[-1]["validation"]["supervised"]["loss"]
    assert losses[True] == records(run)[-1]["validation"]["supervised"]["loss"] != losses[False]

    average, last = Translator.load(run), Translator.load(run, bindings=["Decode.averaged=False"])
    scores = [model.score(["a"], ["b"], source="en", target="de")[0] for model in (average, last)]
    assert scores[0] != scores[1]
    with pytest.raises(UserError, match="averaged: set when a model is loaded"):
        average.translate(["hello"], source="en", target="de", averaged=False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_starts_from_another_averages_its_parameters(kind, cache, run_of, tmp_path):
    source = run_of("ema")
    still = configure(cache, **KINDS[kind])
    still = dataclasses.replace(still, train=dataclasses.replace(still.train, steps=0))
    train(still, tmp_path / "run", [SourceRunSpec(source)])
    rounding = 0 if kind == "ema" else 1e-6
    np.testing.assert_allclose(flat(tmp_path / "run", 0), flat(source, 4), rtol=rounding)
    if kind == "schedule_free":
        optimizer = saved(tmp_path / "run", 0)
        (name,) = (name for name in optimizer if "'z'" in name and "embedding" in name)
        params, _ = load_params(source, 4)
        np.testing.assert_array_equal(optimizer[name], params["embedding"])


def test_parameters_equal_to_their_average_keep_their_bits():
    """Frozen ones, such as a negative zero of an imported model: adapters compare the bits."""
    params = {"w": jnp.asarray([1.0, -0.0, 0.1, 0.0], jnp.float32)}
    update = jax.jit(functools.partial(move_average, 0.99))
    average = update(update(params, params, jnp.int32(0)), params, jnp.int32(1))
    assert np.asarray(average["w"]).tobytes() == np.asarray(params["w"]).tobytes()
    assert np.signbit(average["w"]).tolist() == [False, True, False, False]
