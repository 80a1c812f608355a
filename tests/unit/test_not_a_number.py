"""Losses, scores and parameters that are not numbers end a command and are never the best."""

from __future__ import annotations

import math
import types

import numpy as np
import pytest

from mnmt_jax.commands.analysis_inputs import translator_facts
from mnmt_jax.config.sections import Decode, Optimizer
from mnmt_jax.decoding.scoring import Score, perplexity
from mnmt_jax.distributed.processes import Agreement
from mnmt_jax.errors import UserError
from mnmt_jax.runs import parameters
from mnmt_jax.training import hooks
from mnmt_jax.training.train import train
from mnmt_jax.training.validation import ValidationHistory
from tests.made_run import make_cache, make_config, records, steps_of

NAN = float("nan")


def test_an_epsilon_of_zero_is_refused():
    """Adam divides 0 by it where a gradient is 0, such as in rows of unused pieces."""
    with pytest.raises(UserError, match="Optimizer.eps=0"):
        Optimizer(eps=0.0)
    assert Optimizer(eps=1e-12).eps == 1e-12


def test_a_validation_loss_that_is_no_number_is_never_the_best(tmp_path, monkeypatch):
    history = ValidationHistory(patience=2)
    for step, loss in enumerate((NAN, 3.0, NAN, 2.0), start=1):
        history.add(step, loss)
    assert history.best == (4, 2.0) and not history.stalled(5)
    losses = {1: 3.0, 2: NAN, 3: None, 4: 2.0}
    monkeypatch.setattr(parameters, "available_steps", lambda _: list(losses))
    monkeypatch.setattr(parameters, "read_loss", lambda _, step, remedy: losses[step])
    run = types.SimpleNamespace(checkpoints=tmp_path)
    monkeypatch.setattr(parameters.RunDirectory, "open", lambda _: run)
    assert parameters.best_steps(tmp_path, 3) == [4, 1]


def test_a_state_whose_validation_is_no_number_is_not_saved(tmp_path, monkeypatch, one_device):
    """Until then, each batch of the validation is progress of the process."""
    steps = {"steps": 4, "log_every": 1, "eval_every": 2, "save_every": 2}
    config = make_config(make_cache(tmp_path / "cache"), train=steps)
    progress, validate = [], hooks.validate

    def validate_wrongly(batches, loss, tasks, languages):
        result = validate(batches, loss, tasks, languages)
        if len(records(tmp_path / "run")) > 2:
            next(iter(result["tasks"].values()))["loss"] = NAN
        return result

    monkeypatch.setattr(hooks, "validate", validate_wrongly)
    monkeypatch.setattr(Agreement, "progress", lambda _: progress.append(None))
    with pytest.raises(UserError, match=r"step 4: the validation loss is not a number \(made_"):
        train(config, tmp_path / "run")
    assert steps_of(tmp_path / "run") == [2]
    assert len(progress) > 2 * 3


def test_a_score_that_is_no_number_is_no_perplexity():
    assert perplexity([Score(-2.0, 2)]) == pytest.approx(math.e)
    with pytest.raises(UserError, match="^line 2: the model's output is not a number"):
        perplexity([Score(-2.0, 2), Score(NAN, 3)])


def test_a_model_that_is_no_number_is_not_analysed():
    def model(value: float):
        params = {"embedding": np.full((2, 2), value, np.float32), "ids": np.arange(2)}
        return types.SimpleNamespace(
            config=types.SimpleNamespace(decode=Decode()),
            inference_model=types.SimpleNamespace(params=params),
            identity={"parameters": 7},
            parameters=4,
            step=3,
        )

    assert translator_facts("run", model(1.0), None)["parameters_fingerprint"] == 7
    with pytest.raises(UserError, match="^run: has parameters that are not numbers"):
        translator_facts("run", model(NAN), None)
