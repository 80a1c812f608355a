"""Hooks of the training loop: times and order of calls, and stored values."""

from __future__ import annotations

import shutil
import signal
import types

import pytest

from mnmt_jax.config.sections import Train
from mnmt_jax.errors import UserError
from mnmt_jax.runs.parameters import best_steps
from mnmt_jax.training import hooks, open_run
from mnmt_jax.training.build import build
from mnmt_jax.training.session import Periodic, Session
from mnmt_jax.training.train import train
from mnmt_jax.training.validation import ValidationHistory
from tests.made_run import make_cache, make_config, steps_of
from tests.unit.test_train import stop_after

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("hooks") / "cache")


def fake_session(steps: int, calls: list, history: ValidationHistory) -> Session:
    """A session whose updates only count."""
    settings = types.SimpleNamespace(train=types.SimpleNamespace(steps=steps))
    session = Session(
        setup=types.SimpleNamespace(config=settings),
        history=history,
        step=0,
        **dict.fromkeys(("run", "lock", "checkpoints", "batches", "reporter", "state")),
        saved_step=-1,
    )

    def advance():
        session.step += 1
        calls.append(("advance", session.step))

    session.advance = advance
    return session


def test_hooks_are_called_in_order_at_multiples_and_after_the_last_update():
    calls: list = []
    session = fake_session(5, calls, ValidationHistory(0))

    def add(session, record):
        record["added"] = session.step

    def remember(session, record):
        calls.append((session.step, dict(record)))

    loop_hooks = (Periodic(2, add), Periodic(1, remember), Periodic(3, remember, at_end=True))
    assert session.loop(loop_hooks, lambda: calls.append("signal")) is None
    expected = ["signal"]
    for step in range(1, 6):
        record = {"added": step} if step in (2, 4, 5) else {}
        times = 2 if step in (3, 5) else 1
        expected += [("advance", step), *[(step, record)] * times, "signal"]
    assert calls == [*expected, (5, {})]


def test_signals_and_stalled_validation_end_the_loop_and_call_the_final_hooks():
    calls: list = []
    session = fake_session(9, calls, ValidationHistory(0))
    at_end = Periodic(7, lambda session, _: calls.append(("end", session.step)), at_end=True)
    signals = iter((None, None, "SIGTERM"))
    assert session.loop((at_end,), lambda: next(signals)) == "SIGTERM"
    assert calls == [("advance", 1), ("advance", 2), ("end", 2)]
    calls.clear()
    session = fake_session(9, calls, ValidationHistory(2, best=[1, 0.5]))
    assert session.loop((at_end,), lambda: None) is None
    assert session.step == 3 and calls[-1] == ("end", 3)


def test_metrics_are_written_between_validation_and_saving(monkeypatch):
    """A resumed run can drop lines of the metrics file, not add them."""
    calls: list = []
    monkeypatch.setattr(hooks, "log_metrics", lambda _: {"loss": 1.0})
    monkeypatch.setattr(hooks, "validate_params", lambda _: {"validation": {}})
    monkeypatch.setattr(hooks, "save_checkpoint", lambda session: calls.append(session.step))
    session = fake_session(4, calls, ValidationHistory(0))
    session.reporter = types.SimpleNamespace(write=calls.append)
    settings = Train(steps=4, log_every=2, eval_every=4, save_every=4)
    session.loop(hooks.training_hooks(settings), lambda: None)
    assert [call for call in calls if call not in [("advance", step) for step in range(5)]] == [
        {"step": 2, "loss": 1.0},
        {"step": 4, "loss": 1.0, "validation": {}},
        4,
        4,  # at the end; does nothing if the step is saved
    ]


def test_the_history_keeps_the_best_loss_and_the_latest():
    history = ValidationHistory(patience=4)
    assert history.best is None and history.stalled(100) == ""
    for step, loss in ((2, 3.0), (4, 1.0), (6, None), (8, 1.0)):
        history.add(step, loss)
        assert history.loss_at(step) == loss and history.loss_at(step - 1) is None
    assert history.best == (4, 1.0)  # the first of equals
    assert history.stalled(7) == ""
    assert history.stalled(8) == ": no better validation in 4 updates after step 4"
    assert ValidationHistory(0, best=[4, 1.0]).stalled(100) == ""


def test_building_writes_nothing(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = sorted(cache.rglob("*"))
    setup = build(make_config(cache))
    assert not list(tmp_path.iterdir()) and sorted(cache.rglob("*")) == files
    assert len(setup.config.data.tasks) == 4  # filled in
    assert setup.positions == {"source": 8 * 16, "target": 8 * 16}


def set_losses(monkeypatch, trained, unseen):
    """Let validation find these losses, by step, and train as always."""

    def measured(*_):
        step = sessions[0].step
        tasks = {"trained": {"loss": trained[step]}, "unseen": {"loss": unseen[step]}}
        return {"supervised": tasks["trained"], "tasks": tasks}

    monkeypatch.setattr(hooks, "validate", measured)
    sessions = []
    advance = Session.advance

    def advance_and_remember(self):
        sessions[:] = [self]
        advance(self)

    monkeypatch.setattr(Session, "advance", advance_and_remember)


@pytest.mark.parametrize(
    ("best_by", "keep_every", "kept", "best"),
    [
        ("supervised", 0, [2, 4, 5, 6], [2, 4]),
        ("all", 0, [1, 3, 5, 6], [3, 1]),
        ("supervised", 3, [2, 3, 4, 5, 6], [2, 4]),
    ],
)
def test_kept_checkpoints_are_the_last_and_the_best(
    best_by, keep_every, kept, best, cache, tmp_path, monkeypatch
):
    trained = {1: 5.0, 2: 1.0, 3: 4.0, 4: 2.0, 5: 3.0, 6: 6.0}
    unseen = {1: 1.0, 2: 9.0, 3: 1.0, 4: 9.0, 5: 9.0, 6: 9.0}
    set_losses(monkeypatch, trained, unseen)
    every = {"steps": 6, "eval_every": 1, "save_every": 1, "keep_last": 2, "keep_best": 2}
    every |= {"best_by": best_by, "keep_every": keep_every}
    run = tmp_path / "run"
    assert train(make_config(cache, train=every), run) is None
    assert steps_of(run) == kept
    assert best_steps(run, 2) == best


def test_a_checkpoint_of_a_stop_displaces_no_other(cache, tmp_path, monkeypatch):
    """The kept checkpoints, and so averages of them, do not depend on interruptions."""
    losses = dict(zip(range(1, 10), (5.0, 3.0, 4.0, 6.0, 1.0, 7.0, 2.5, 7.5, 8.0), strict=True))
    set_losses(monkeypatch, losses, losses)
    every = {"steps": 8, "eval_every": 1, "save_every": 2, "keep_last": 2, "keep_best": 1}
    config, run = make_config(cache, train=every), tmp_path / "run"
    assert train(config, tmp_path / "whole") is None
    for stop, kept in ((3, [2, 3]), (5, [2, 4, 5]), (7, [2, 4, 6, 7])):
        with monkeypatch.context() as patch:
            stop_after(patch, stop, lambda: signal.raise_signal(signal.SIGTERM))
            assert train(config, run) == "SIGTERM"
        assert steps_of(run) == kept
        assert best_steps(run, 1) == [5 if stop == 5 else 7 if stop == 7 else 2]
    assert train(config, run) is None
    assert steps_of(run) == steps_of(tmp_path / "whole") == [2, 6, 8]
    assert train(make_config(cache, train=every | {"steps": 9}), run) is None
    assert steps_of(run) == [2, 8, 9]  # the run's end is a regular one


def test_a_checkpoint_of_a_stop_that_was_not_removed_is_not_counted(cache, tmp_path, monkeypatch):
    """The process died after the next one was written."""
    every = {"steps": 6, "eval_every": 6, "save_every": 2, "keep_last": 3, "keep_best": 0}
    config, run = make_config(cache, train=every), tmp_path / "run"
    for stop in (3, 4):
        with monkeypatch.context() as patch:
            stop_after(patch, stop, lambda: signal.raise_signal(signal.SIGTERM))
            assert train(config, run) == "SIGTERM"
        if stop == 3:
            shutil.copytree(run / "checkpoints" / "3", tmp_path / "3")
    shutil.copytree(tmp_path / "3", run / "checkpoints" / "3")
    assert steps_of(run) == [2, 3, 4]
    assert train(config, run) is None
    assert steps_of(run) == [2, 4, 6]


def test_a_new_run_lists_each_task_once(cache, tmp_path, monkeypatch):
    """It would be read once; a run that was started so continues."""
    config = make_config(cache, data={"tasks": ("made_en_de", "made_de_en", "made_en_de")})
    run = tmp_path / "run"
    with pytest.raises(UserError, match="Data.tasks names 'made_en_de' twice; leave one of them"):
        train(config, run)
    assert not run.exists()
    with monkeypatch.context() as patch:
        patch.setattr(open_run, "check_once", lambda *_: None)  # as before
        stop_after(patch, 1, lambda: signal.raise_signal(signal.SIGTERM))
        assert train(config, run) == "SIGTERM"
    assert train(config, run) is None
