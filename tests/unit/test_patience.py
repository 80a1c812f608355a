"""Train.patience: a run ends when validation stops improving, also after interruptions."""

from __future__ import annotations

import dataclasses
import signal

import pytest

from mnmt_jax.config.sections import Train
from mnmt_jax.data.cache_writer import TaskSource, write_cache
from mnmt_jax.errors import UserError
from mnmt_jax.runs.parameters import available_steps, best_steps
from mnmt_jax.training.train import train
from tests.made_run import (
    assert_same_training,
    make_cache,
    make_config,
    random_pairs,
    records,
)
from tests.unit import made_text
from tests.unit.test_train import stop_after


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("patience"))


def configure(cache, patience, rate=0.0, **train_fields):
    """Return a configuration; with a learning rate of 0, no validation improves."""
    every = {"steps": 8, "eval_every": 1, "save_every": 1, "log_every": 1}
    return make_config(
        cache,
        optimizer={"learning_rate": rate, "initial_learning_rate": rate, "schedule": "constant"},
        train={**every, "patience": patience} | train_fields,
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
    assert "compiling" not in capfd.readouterr().err
    assert train(configure(cache, 0), run) is None  # patience may change
    assert records(run)[-1]["step"] == 8


def test_the_last_metrics_of_a_run_that_ends_early_are_logged(
    cache, tmp_path, one_device, kept_programs
):
    run = tmp_path / "run"
    assert train(configure(cache, 3, log_every=3), run) is None
    by_step = {record["step"]: record for record in records(run)}
    assert max(by_step) == 4 and [step for step in by_step if "loss" in by_step[step]] == [3, 4]


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


def test_the_best_of_equal_checkpoints_is_kept(cache, tmp_path, capfd, one_device, kept_programs):
    run = tmp_path / "run"
    assert train(configure(cache, 4, keep_last=2), run) is None
    assert available_steps(run / "checkpoints") == [1, 4, 5]
    assert best_steps(run, 1) == [1]
    assert "in 4 updates after step 1, the best (--step=best)" in capfd.readouterr().err


def test_a_best_validation_without_a_checkpoint_is_not_named(
    cache, tmp_path, capfd, one_device, kept_programs
):
    run = tmp_path / "run"
    assert train(configure(cache, 3, save_every=2), run) is None
    assert best_steps(run, 1) == [2]
    stderr = capfd.readouterr().err
    assert "no better validation in 3 updates after step 1" in stderr and "the best" not in stderr


def write_centric(folder, seed):
    """Write one direction from English, trained on and validated, with a seed of validation."""
    splits = {"train": lambda: random_pairs(40, 1), "validation": lambda: random_pairs(6, seed)}
    task = TaskSource("made_en_de", "en", "de", splits)
    write_cache(folder, [task], vocabulary=made_text.vocabulary())
    return folder


@pytest.fixture(scope="module")
def centric_cache(tmp_path_factory):
    return write_centric(tmp_path_factory.mktemp("centric") / "cache", 2)


def test_other_validation_text_is_named_and_starts_another_best(
    centric_cache, tmp_path, capfd, one_device, kept_programs
):
    run, other = tmp_path / "run", write_centric(tmp_path / "other", 3)
    assert train(configure(centric_cache, 4, steps=2), run) is None
    assert train(configure(centric_cache, 4, steps=4), run) is None
    assert "validation text" not in capfd.readouterr().err
    assert train(configure(other, 4), run) is None
    stderr = capfd.readouterr().err
    assert f"validation text of Data.cache='{other}' differs from that of earlier" in stderr
    assert records(run)[-1]["step"] == 8 and "no better validation" not in stderr


@pytest.mark.parametrize("best_by", ["zero_shot", "to_english/nll"])
def test_a_group_without_tasks_is_named(best_by, centric_cache, tmp_path, capfd, one_device):
    """It would have no effect on patience and the checkpoints that are kept."""
    measure = best_by.removeprefix("zero_shot").removeprefix("to_english")
    groups = [f"'{name}{measure}'" for name in ("supervised", "from_english", "all")]
    reason = f"Train.best_by='{best_by}' measures none of the validation tasks; {groups[0]}, "
    with pytest.raises(UserError, match=f"Train.patience=3: {reason}"):
        train(configure(centric_cache, 3, best_by=best_by), tmp_path / "run")
    assert not (tmp_path / "run" / "config.gin").exists()
    assert train(configure(centric_cache, 0, best_by=best_by, steps=1), tmp_path / "run") is None
    stderr = capfd.readouterr().err
    assert reason in stderr and "no checkpoint is kept as the best" in stderr
    assert all(group in stderr for group in groups)


def test_patience_without_validation_is_refused(centric_cache, tmp_path):
    config = configure(centric_cache, 3)
    data = dataclasses.replace(config.data, validation_examples=0)
    with pytest.raises(UserError, match="patience=3: Data.validation_examples=0 validates nothing"):
        train(dataclasses.replace(config, data=data), tmp_path / "run")


def test_translations_rank_without_validation_losses(centric_cache, tmp_path, capfd, one_device):
    config = configure(
        centric_cache, 3, steps=0, translate_pairs=2, best_by="supervised/chrf", keep_best=1
    )
    data = dataclasses.replace(config.data, validation_examples=0)
    run, config = tmp_path / "run", dataclasses.replace(config, data=data)
    assert train(config, run, scorer=lambda *_: {}) is None
    assert "no checkpoint is kept as the best" not in capfd.readouterr().err


def test_validation_pairs_longer_than_a_row_rank_nothing(tmp_path):
    """Of the pairs that validation reads: the fifth of a task would fit."""
    too_long, fits = ([5] * 30, [6] * 30), ([5], [6])
    splits = {
        "train": lambda: random_pairs(40, 1),
        "validation": lambda: [*[too_long] * 4, fits],
    }
    tasks = [
        TaskSource("made_en_de", "en", "de", splits),
        TaskSource("made_de_en", "de", "en", splits | {"validation": lambda: [too_long, fits]}),
    ]
    write_cache(tmp_path / "cache", tasks, vocabulary=made_text.vocabulary())
    reason = (
        r"'from_english' measures none of the validation tasks: their pairs are longer than a row "
        r"\(Data.source_length=16, Data.target_length=16\); 'supervised', 'to_english', 'all' "
        "would, so training would never"
    )
    with pytest.raises(UserError, match=reason):
        train(configure(tmp_path / "cache", 3, best_by="from_english"), tmp_path / "run")
