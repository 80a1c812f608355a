"""Stand-ins of the packages mlflow and wandb, which check the calls that they are given.

They refuse what the packages refuse. `read_mlflow` and `read_wandb` read what was tracked, with the
stand-ins and with the packages.
"""

from __future__ import annotations

import dataclasses
import importlib.machinery
import importlib.util
import json
import re
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

PACKAGES = ("mlflow", "wandb")


def is_installed(package: str) -> bool:
    """Return whether a package can be imported."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


@dataclasses.dataclass
class TrackedFacts:
    """What a tracker has of a run.

    Attributes:
        id: identifier of the run.
        name: name of the run.
        status: status or exit code.
        config: parameters.
        metrics: (step, value) by name of the metric, in the order of the calls.
    """

    id: str = ""
    name: str = ""
    status: Any = None
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    metrics: dict[str, list[tuple[int, float]]] = dataclasses.field(default_factory=dict)


def use_stand_ins(patch: pytest.MonkeyPatch) -> None:
    """Let `import mlflow` and `import wandb` give stand-ins without any runs."""
    mlflow, entities, wandb = (_module(name) for name in ("mlflow", "mlflow.entities", "wandb"))
    stores: dict[str, dict[str, Any]] = {}
    mlflow.MlflowClient = lambda tracking_uri: MlflowClient(
        stores.setdefault(tracking_uri, {"experiments": {}, "runs": {}})
    )
    entities.Param, entities.Metric = Param, Metric
    wandb.init, wandb.login, wandb.Settings = _init, _login, _settings
    for module in (mlflow, entities, wandb, *map(_module, ("sqlalchemy", "alembic"))):
        patch.setitem(sys.modules, module.__name__, module)


def _module(name: str) -> Any:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, origin="stand-in")
    return module


@dataclasses.dataclass
class Param:
    """As `mlflow.entities.Param`."""

    key: str
    value: str

    def __post_init__(self):
        assert isinstance(self.value, str) and 0 < len(self.value) <= 6000
        assert re.fullmatch(r"[\w\-. :/]{1,250}", self.key)


@dataclasses.dataclass
class Metric:
    """As `mlflow.entities.Metric`."""

    key: str
    value: float
    timestamp: int
    step: int

    def __post_init__(self):
        assert type(self.value) is float and type(self.timestamp) is type(self.step) is int
        assert re.fullmatch(r"[\w\-. :/]{1,250}", self.key)


class MlflowClient:
    """As `mlflow.MlflowClient`, with the methods that the tracker and `read_mlflow` call."""

    def __init__(self, store):
        self._experiments, self._runs = store["experiments"], store["runs"]

    def get_experiment_by_name(self, name):
        found = self._experiments.get(name)
        return types.SimpleNamespace(experiment_id=found) if found else None

    def create_experiment(self, name):
        assert isinstance(name, str) and name and name not in self._experiments
        return self._experiments.setdefault(name, str(len(self._experiments) + 1))

    def create_run(self, experiment_id, run_name):
        assert experiment_id in self._experiments.values() and run_name
        run_id = f"run{len(self._runs)}"
        self._runs[run_id] = run = types.SimpleNamespace(
            info=types.SimpleNamespace(run_id=run_id, run_name=run_name, status="RUNNING"),
            data=types.SimpleNamespace(params={}, tags={}, metrics={}),
            history={},
            experiment_id=experiment_id,
        )
        return run

    def log_batch(self, run_id, metrics=(), params=()):
        assert len(params) <= 100 and len(metrics) <= 1000
        run = self._runs[run_id]
        assert run.info.status == "RUNNING"
        for param in params:
            assert run.data.params.setdefault(param.key, param.value) == param.value
        for metric in metrics:
            assert isinstance(metric, Metric)
            run.data.metrics[metric.key] = metric.value
            run.history.setdefault(metric.key, []).append(metric)

    def set_tag(self, run_id, key, value):
        assert isinstance(value, str)
        self._runs[run_id].data.tags[key] = value

    def update_run(self, run_id, status):
        assert status in ("RUNNING", "FINISHED", "KILLED", "FAILED")
        self._runs[run_id].info.status = status

    def set_terminated(self, run_id, status):
        self.update_run(run_id, status)

    def get_run(self, run_id):
        return self._runs[run_id]

    def search_runs(self, experiment_ids):
        return [run for run in self._runs.values() if run.experiment_id in experiment_ids]

    def get_metric_history(self, run_id, key):
        return self._runs[run_id].history[key]


def read_mlflow(uri: str) -> list[TrackedFacts]:
    """Return the runs of the experiment `mnmt-jax` in a store, the oldest first."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("mnmt-jax")
    return [
        TrackedFacts(
            run.info.run_id,
            run.info.run_name,
            run.info.status,
            {key: run.data.tags.get(key, value) for key, value in run.data.params.items()},
            {
                key: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)]
                for key in run.data.metrics
            },
        )
        for run in sorted(
            client.search_runs([experiment.experiment_id]),
            key=lambda run: getattr(run.info, "start_time", 0),
        )
    ]


_SETTINGS = {"console": "off", "silent": True, "symlink": False}
_FILE = "stand-in.json"


def _settings(**values):
    assert values == _SETTINGS
    return values


def _login(*, verify):
    raise ValueError("No API key configured")


def _init(
    *, project, name, id, resume, dir, config, allow_val_change, reinit, settings
):  # the parameters of wandb.init
    assert project == "mnmt-jax" and resume == "allow" and reinit == "create_new"
    assert isinstance(name, str) and allow_val_change is True and settings == _SETTINGS
    assert re.fullmatch(r"[\w-]{1,64}", id) and Path(dir).is_dir()
    json.dumps(config)
    folder = Path(dir) / "wandb"
    number = len(list(folder.iterdir())) if folder.is_dir() else 0
    return _Run(folder / f"offline-run-{number}-{id}", TrackedFacts(id, name, None, config))


class _Run:
    """As the run that `wandb.init` returns."""

    offline = True

    def __init__(self, folder, facts):
        self._folder, self._facts, self._step = folder, facts, -1

    def log(self, data, *, step):
        assert type(step) is int and step > self._step and self._facts.status is None
        self._step = step
        for name, value in data.items():
            assert isinstance(name, str) and isinstance(value, int | float)
            self._facts.metrics.setdefault(name, []).append((step, value))

    def finish(self, *, exit_code):
        self._facts.status = exit_code
        self._folder.mkdir(parents=True)
        (self._folder / _FILE).write_text(json.dumps(dataclasses.asdict(self._facts)))


def read_wandb(folder: Path) -> list[TrackedFacts]:
    """Return the offline runs in a folder `wandb`, one for each start, the oldest first."""
    runs = []
    for run in sorted(folder.iterdir(), key=lambda path: path.stat().st_ctime_ns):
        if (run / _FILE).is_file():
            facts = json.loads((run / _FILE).read_text())
            facts["metrics"] = {k: [tuple(v) for v in vs] for k, vs in facts["metrics"].items()}
            runs.append(TrackedFacts(**facts))
        else:
            (file,) = run.glob("*.wandb")
            runs.append(_read_ended(file))
    return runs


def _read_ended(file: Path) -> TrackedFacts:
    """Read the log of an ended run; W&B's process may write the end after `finish` returns."""
    for _ in range(600):
        if (facts := _read_records(file.read_bytes())).status is not None:
            break
        time.sleep(0.1)
    return facts


def _read_records(content: bytes) -> TrackedFacts:
    """Read W&B's log of protocol buffers, whose records have LevelDB's framing."""
    from wandb.proto.wandb_internal_pb2 import Record

    facts, position, partial = TrackedFacts(), 7, b""
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:  # a block ends
            position += 32768 - position % 32768
            continue
        length, kind = (
            int.from_bytes(content[position + 4 : position + 6], "little"),
            content[position + 6],
        )
        partial += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            _add_record(facts, Record.FromString(partial))
            partial = b""
    return facts


def _add_record(facts: TrackedFacts, record: Any) -> None:
    if record.HasField("run"):
        facts.id, facts.name = record.run.run_id, record.run.display_name
        facts.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    elif record.HasField("exit"):
        facts.status = record.exit.exit_code
    elif record.HasField("history"):
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            if not name.startswith("_"):
                value = (record.history.step.num, json.loads(item.value_json))
                facts.metrics.setdefault(name, []).append(value)
