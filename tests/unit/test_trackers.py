"""Experiment trackers: one interface, TensorBoard, MLflow and Weights & Biases.

The tests of MLflow and W&B run with stand-ins, and with the packages where they are installed.
"""

from __future__ import annotations

import configparser
import dataclasses
import importlib
import json
import sys
import threading
import time
import types
import typing

import pytest

from mnmt_jax.config.sections import (
    Config,
    Data,
    Decode,
    Mesh,
    Model,
    Optimizer,
    TrackerName,
    Train,
)
from mnmt_jax.errors import UserError
from mnmt_jax.runs.run_directory import MAY_CHANGE, RunDirectory
from mnmt_jax.training.reporter import Reporter
from mnmt_jax.training.session import Session
from mnmt_jax.training.trackers import background, group
from mnmt_jax.training.trackers.interface import TrackedRun, Tracker
from mnmt_jax.training.trackers.mlflow import MLflowTracker
from mnmt_jax.training.trackers.tensorboard import TensorBoard
from mnmt_jax.training.train import train
from tests.full_disk import files_up_to
from tests.made_trackers import (
    PACKAGES,
    MlflowClient,
    is_installed,
    read_mlflow,
    read_wandb,
    use_stand_ins,
)
from tests.run_commands import ROOT

BACKENDS = ["stand-in", *(["package"] if all(map(is_installed, PACKAGES)) else [])]


@pytest.fixture(params=BACKENDS)
def packages(request, monkeypatch):
    """Make mlflow and wandb importable, offline."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT", "WANDB_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("WANDB_DIR", raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    # On a busy machine the packages take longer to end a run than a training waits for them.
    monkeypatch.setattr(background, "_END_SECONDS", 300.0)
    if request.param == "stand-in":
        use_stand_ins(monkeypatch)
    return request.param


def configured(*trackers, **train_fields):
    settings = Train(trackers=trackers, **train_fields)
    return Config(Data(), Model(), Optimizer(), settings, Decode(), Mesh())


def track(folder, config, first_step, steps, status="finished"):
    """Write the loss of some steps as a training process does that starts after `first_step`."""
    folder.mkdir(exist_ok=True)
    reporter = Reporter(RunDirectory(folder), first_step, 10, config=config)
    for step in steps:
        reporter.write({"step": step, "loss": 1 / step, "validation": {"a@b": {"loss": 0.5}}})
    reporter.close(status)


def logged_steps(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_names_of_trackers_are_those_of_the_key_and_of_extras():
    names = {*typing.get_args(TrackerName)}
    assert names == {"tensorboard", *group.OPTIONAL} and Train().trackers == ("tensorboard",)
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg", encoding="utf-8")
    assert {*group.OPTIONAL} <= {*metadata["options.extras_require"]}
    assert "train.trackers" in MAY_CHANGE


@pytest.mark.parametrize(
    "trackers, message",
    [
        (("tensorbord",), "must be one of tensorboard, mlflow, wandb"),
        (("mlflow", "mlflow"), "Train.trackers names 'mlflow' twice; leave one"),
    ],
)
def test_invalid_trackers_are_refused(trackers, message):
    with pytest.raises(UserError, match=message):
        Train(trackers=trackers)


def test_mlflow_continues_its_run_without_repeated_steps(packages, tmp_path):
    run, config = tmp_path / "register", configured("mlflow")
    track(run, config, 0, (2, 4, 6), "failed")
    uri = f"sqlite:///{run / 'trackers' / 'mlflow.db'}"
    (failed,) = read_mlflow(uri)
    assert failed.status == "FAILED"
    track(run, config, 4, (6, 8), "stopped")  # the last checkpoint was that of step 4
    assert read_mlflow(uri)[0].status == "KILLED"
    longer = configured("mlflow", steps=200_000)
    track(run, longer, 8, (10,))
    (tracked,) = read_mlflow(uri)
    assert (tracked.id, tracked.name, tracked.status) == (failed.id, "register", "FINISHED")
    assert tracked.config["Model.embed"] == "1024" and tracked.config["Data.cache"] == "''"
    assert tracked.config["Train.trackers"] == "('mlflow',)"
    assert tracked.config["Train.steps"] == "200000"
    losses = [(step, pytest.approx(1 / step)) for step in (2, 4, 6, 8, 10)]
    assert tracked.metrics["loss"] == losses
    assert [step for step, _ in tracked.metrics["validation/a_b/loss"]] == [2, 4, 6, 8, 10]
    track(run, config, 0, (2,))  # again from the start: there was no checkpoint
    first, second = read_mlflow(uri)
    assert first.metrics["loss"] == losses and len(second.metrics["loss"]) == 1


def test_wandb_continues_its_run_without_repeated_steps(packages, tmp_path):
    run, config = tmp_path / "register", configured("wandb")
    track(run, config, 0, (2, 4, 6), "failed")
    track(run, config, 4, (6, 8), "stopped")
    track(run, configured("wandb", steps=200_000), 8, (10,))
    starts = read_wandb(run / "trackers" / "wandb")
    assert [start.status for start in starts] == [1, 255, 0]
    assert len({start.id for start in starts}) == 1 and starts[0].name == "register"
    assert [start.config["Train.steps"] for start in starts] == [100_000, 100_000, 200_000]
    losses = [value for start in starts for value in start.metrics["loss"]]
    assert losses == [(step, pytest.approx(1 / step)) for step in (2, 4, 6, 8, 10)]
    assert starts[0].metrics["validation/a@b/loss"][0] == (2, 0.5)


def test_a_tracker_that_was_added_later_gets_the_earlier_steps(monkeypatch, tmp_path):
    use_stand_ins(monkeypatch)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    track(tmp_path, configured("tensorboard"), 0, (2, 4, 6))
    track(tmp_path, configured("tensorboard", "mlflow"), 4, (6,))
    (tracked,) = read_mlflow("http://server")
    assert [step for step, _ in tracked.metrics["loss"]] == [2, 4, 6]


def test_long_values_are_shortened_for_mlflow(monkeypatch, tmp_path):
    use_stand_ins(monkeypatch)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    config = configured("mlflow")
    tasks = tuple(f"task_{number}" for number in range(2000))
    config = dataclasses.replace(config, data=Data(tasks=tasks))
    track(tmp_path, config, 0, (2,))
    text = read_mlflow("http://server")[0].config["Data.tasks"]
    assert text.startswith("('task_0', ") and text.endswith("...") and len(text) == 6000


def test_calls_of_mlflow_stay_within_its_limits(monkeypatch, tmp_path):
    use_stand_ins(monkeypatch)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    tracker = MLflowTracker(tmp_path, "run", TrackedRun(tmp_path / "mlflow.json"))
    tracker.start({f"Model.key{number}": number for number in range(250)})
    tracker.write(2, dict.fromkeys(map(str, range(2500)), 1))
    (tracked,) = read_mlflow("http://server")
    assert len(tracked.config) == 250 and len(tracked.metrics) == 2500


def test_mlflow_gets_the_configuration_after_a_refused_call(monkeypatch, tmp_path):
    use_stand_ins(monkeypatch)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    log_batch, calls = MlflowClient.log_batch, iter(range(9))

    def log_or_refuse(client, run_id, **values):
        if next(calls) == 1:  # the second part of the configuration
            raise ConnectionError
        log_batch(client, run_id, **values)

    monkeypatch.setattr(MlflowClient, "log_batch", log_or_refuse)
    config = {f"Model.key{number}": number for number in range(250)}
    tracker = MLflowTracker(tmp_path, "run", TrackedRun(tmp_path / "mlflow.json"))
    with pytest.raises(ConnectionError):
        tracker.start(config)
    config["Model.key0"] = 7
    tracker.start(config)
    (tracked,) = read_mlflow("http://server")
    assert tracked.config == {key: str(value) for key, value in config.items()}


@pytest.mark.parametrize("text", ["", "[]", '{"id": "run0"}', '{"id": "run0", "last_step": [1]}'])
def test_a_damaged_record_starts_a_new_tracked_run(text, tmp_path):
    file = tmp_path / "mlflow.json"
    TrackedRun(file, "run0", 4).save()
    assert TrackedRun.open(file, is_resumed=True) == TrackedRun(file, "run0", 4)
    file.write_text(text)
    assert TrackedRun.open(file, is_resumed=True) == TrackedRun(file)


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_package_is_one_line_before_anything_is_written(name, monkeypatch, tmp_path):
    use_stand_ins(monkeypatch)
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [])
    message = f"Train.trackers: '{name}' needs the package {name}, .*'\\.\\[{name}\\]'"
    with pytest.raises(UserError, match=message):
        train(configured("tensorboard", name), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_mlflow_without_a_server_needs_its_database(monkeypatch):
    use_stand_ins(monkeypatch)
    monkeypatch.delitem(sys.modules, "alembic")
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    group.check_trackers(("mlflow",), is_writer=True)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(UserError, match="needs the package alembic"):
        group.check_trackers(("mlflow",), is_writer=True)


def test_a_folder_called_wandb_and_a_broken_package_are_refused(monkeypatch, tmp_path):
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(UserError, match="needs the package wandb, which is not installed"):
        group.check_trackers(("wandb",), is_writer=False)
    (tmp_path / "wandb" / "__init__.py").write_text("import no_such_dependency")
    importlib.invalidate_caches()
    with pytest.raises(UserError, match="cannot be imported .No module named 'no_such_depend"):
        group.check_trackers(("wandb",), is_writer=False)


def test_wandb_without_a_key_is_one_line(monkeypatch):
    use_stand_ins(monkeypatch)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with pytest.raises(UserError, match="wandb cannot log in .No API key.*WANDB_MODE=offline"):
        group.check_trackers(("wandb",), is_writer=True)
    group.check_trackers(("wandb",), is_writer=False)  # another process writes
    monkeypatch.setenv("WANDB_MODE", "offline")
    group.check_trackers(("wandb",), is_writer=True)


class Fragile(Tracker):
    """A tracker whose calls fail as often as the class says."""

    failures: typing.ClassVar[dict[str, int]] = {}
    calls: typing.ClassVar[list[str]] = []

    def __init__(self, folder, run_name, tracked):
        pass

    def _call(self, name):
        if self.failures.get(name, 0):
            self.failures[name] -= 1
            raise ConnectionError(f"{name} is refused")
        self.calls.append(name)

    def start(self, config):
        self._call("start")
        return ""

    def write(self, step, metrics):
        self._call(f"write {step}")

    def end(self, status):
        self._call(f"end {status}")


@pytest.fixture
def fragile(monkeypatch):
    monkeypatch.setattr(group, "OPTIONAL", {**group.OPTIONAL, "mlflow": Fragile})
    monkeypatch.setattr(Fragile, "failures", {})
    monkeypatch.setattr(Fragile, "calls", [])
    return Fragile


def test_errors_are_printed_once_and_cost_nothing_else(fragile, tmp_path, capfd):
    fragile.failures |= {"start": 2, "write 4": 1, "end stopped": 1}
    track(tmp_path, configured("tensorboard", "mlflow"), 0, (2, 4, 6), "stopped")
    assert fragile.calls == ["start", "write 6"]  # tried again at steps 2 and 4
    assert logged_steps(tmp_path) == [2, 4, 6] and list((tmp_path / "tensorboard").iterdir())
    warnings = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
    assert warnings == [
        "warning: mlflow: start is refused; training is not affected, and metrics.jsonl has all "
        "metrics; see to the server of MLFLOW_TRACKING_URI and your rights there"
    ]


def test_an_error_of_tensorboard_is_printed_too(monkeypatch, tmp_path, capfd):
    def refuse():
        raise PermissionError("no events here")

    monkeypatch.setattr("mnmt_jax.training.trackers.tensorboard._import_record_writer", refuse)
    track(tmp_path, configured("tensorboard"), 0, (2, 4))
    assert logged_steps(tmp_path) == [2, 4]
    assert capfd.readouterr().err.count("warning: tensorboard: no events here") == 1


def read_events(folder):
    """Return the scalars of a folder by (tag, step), without those that a later file replaces."""
    from tensorboardX.proto.event_pb2 import Event

    scalars = {}
    for file in sorted(folder.iterdir(), key=lambda path: int(path.suffix[1:])):
        content, position = file.read_bytes(), 0
        while position < len(content):
            length = int.from_bytes(content[position : position + 8], "little")
            event = Event.FromString(content[position + 12 : position + 12 + length])
            position += 16 + length
            if event.HasField("session_log"):
                scalars = {key: n for key, n in scalars.items() if key[1] < event.step}
            scalars |= {
                (value.tag, event.step): value.simple_value for value in event.summary.value
            }
    return scalars


def test_tensorboard_continues_after_a_refused_write(tmp_path):
    """The thread of tensorboardX's own writer ends then, and the training would wait for it."""
    board = TensorBoard(tmp_path / "tensorboard", after_step=0)
    board.start({})
    metrics = {f"task_{number}@x": 1.0 for number in range(40)}
    board.write(2, metrics)
    for step in (4, 6):
        with files_up_to(1000), pytest.raises(OSError, match="File too large"):
            board.write(step, metrics)
    board.write(8, metrics)
    board.end("finished")
    scalars = read_events(tmp_path / "tensorboard")
    assert {step for _, step in scalars} == {2, 8} and ("task_0_x", 8) in scalars


def test_tensorboard_added_later_gets_the_earlier_steps(tmp_path):
    track(tmp_path, configured(), 0, (2, 4, 6))
    track(tmp_path, configured("tensorboard"), 4, (6, 8))
    assert [step for tag, step in read_events(tmp_path / "tensorboard") if tag == "loss"] == [
        *(2, 4, 6, 8)
    ]
    (first,) = (tmp_path / "tensorboard").iterdir()
    track(tmp_path, configured("tensorboard"), 6, (8,))
    (second,) = {*(tmp_path / "tensorboard").iterdir()} - {first}
    assert second.stat().st_size < first.stat().st_size  # only what is new


def test_training_does_not_wait_for_a_tracker(fragile, monkeypatch, tmp_path, capfd):
    answer = threading.Event()
    monkeypatch.setattr(background, "_END_SECONDS", 0.2)
    monkeypatch.setattr(fragile, "write", lambda *_: answer.wait(60))
    before = time.monotonic()
    track(tmp_path, configured("mlflow"), 0, (2, 4, 6))
    assert time.monotonic() - before < 20
    answer.set()
    for thread in threading.enumerate():
        if thread.name == "tracker":
            thread.join(60)
    assert "warning: mlflow: no answer for 0.2 seconds;" in capfd.readouterr().err


def test_only_the_first_process_opens_trackers(fragile, tmp_path):
    reporter = Reporter(RunDirectory(tmp_path), 0, 10, config=configured("mlflow"), silent=True)
    reporter.write({"step": 2, "loss": 1.0})
    reporter.close("finished")
    assert fragile.calls == [] and not list(tmp_path.iterdir())


def ended_session(step, close_checkpoints):
    """Return a session and the list of the statuses that its reporter gets."""
    ends = []
    resource = types.SimpleNamespace(close=lambda **_: None, publish=lambda **_: None)
    session = Session(
        **dict.fromkeys(("lock", "state", "saved_step")),
        batches=resource,
        setup=types.SimpleNamespace(config=configured("tensorboard", steps=10)),
        run=resource,
        checkpoints=types.SimpleNamespace(close=close_checkpoints),
        reporter=types.SimpleNamespace(close=ends.append),
        history=types.SimpleNamespace(stalled=lambda step: ""),
        step=step,
    )
    return session, ends


@pytest.mark.parametrize(
    "step, error, status",
    [(10, None, "finished"), (9, None, "stopped"), (9, ValueError("NaN"), "failed")],
)
def test_a_session_tells_trackers_how_it_ended(step, error, status):
    session, ends = ended_session(step, lambda **_: None)
    session.__exit__(type(error), error, None)
    assert ends == [status]


@pytest.mark.parametrize("step", [9, 10])
def test_a_session_whose_last_state_is_not_saved_has_failed(step):
    def close(*, raise_errors):
        assert raise_errors
        raise UserError("checkpoint 10 could not be written")

    session, ends = ended_session(step, close)
    with pytest.raises(UserError, match="could not be written"):
        session.__exit__(None, None, None)
    assert ends == ["failed"]
