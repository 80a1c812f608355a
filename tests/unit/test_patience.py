"""Train.patience: a run ends when validation stops improving, also after interruptions."""

from __future__ import annotations

import signal

import pytest

from mnmt_jax.config.sections import Train
from mnmt_jax.errors import UserError
from mnmt_jax.training.train import train
from tests.made_run import assert_same_training, make_cache, make_config, records
from tests.unit.test_train import stop_after


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("patience"))


def configure(cache, patience, rate=0.0):
    """Return a configuration; with a learning rate of 0, no validation improves."""
    return make_config(
        cache,
        optimizer={"learning_rate": rate, "initial_learning_rate": rate, "schedule": "constant"},
        train={"steps": 8, "eval_every": 1, "save_every": 1, "log_every": 1, "patience": patience},
    )


def test_a_run_without_improvement_ends(cache, tmp_path, capfd, one_device, kept_programs):
    run = tmp_path / "run"
    assert train(configure(cache, 3), run) is None
    assert records(run)[-1]["step"] == 4
    stderr = capfd.readouterr().err
    assert "is at step 4 of 8: no better validation in 3 updates after step 1" in stderr
    assert "continues" not in stderr
    assert train(configure(cache, 3), run) is None  # nothing more to do
    assert records(run)[-1]["step"] == 4
    assert train(configure(cache, 0), run) is None  # patience may change
    assert records(run)[-1]["step"] == 8


def test_an_interrupted_run_ends_at_the_same_step(
    cache, tmp_path, monkeypatch, one_device, kept_programs
):
    uninterrupted, interrupted = tmp_path / "whole", tmp_path / "broken"
    assert train(configure(cache, 3), uninterrupted) is None
    with monkeypatch.context() as patch:
        stop_after(patch, 2, lambda: signal.raise_signal(signal.SIGTERM))
        assert train(configure(cache, 3), interrupted) == "SIGTERM"
    assert train(configure(cache, 3), interrupted) is None
    assert_same_training(interrupted, uninterrupted, 4)


def test_an_improving_run_continues(cache, tmp_path, one_device, kept_programs):
    run = tmp_path / "run"
    assert train(configure(cache, 1, rate=1e-3), run) is None
    assert records(run)[-1]["step"] == 8


def test_patience_must_be_a_multiple_of_validation():
    with pytest.raises(UserError, match="Train.patience=150 must be a multiple of Train.eval_eve"):
        Train(eval_every=100, save_every=100, patience=150)
