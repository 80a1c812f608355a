"""MLflow: parameters, metrics and status of a run, in a local database or on a server."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.training.trackers.interface import Status, TrackedRun, Tracker

_EXPERIMENT = "mnmt-jax"
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
# Limits of MLflow's log_batch.
_PARAMS_PER_CALL = 100
_METRICS_PER_CALL = 1000
_MAX_PARAM_LENGTH = 6000
_NOT_ALLOWED = re.compile(r"[^\w\-. :/]")  # in names of metrics


class MLflowTracker(Tracker):
    """Writer of an MLflow run, through MLflow's client.

    The store is that of the environment variable MLFLOW_TRACKING_URI, or a database in the run
    directory. The experiment is that of MLFLOW_EXPERIMENT_NAME, or `mnmt-jax`.
    """

    def __init__(self, folder: Path, run_name: str, tracked: TrackedRun) -> None:
        """Initialise the tracker.

        Args:
            folder: folder of the database.
            run_name: name of the run in MLflow.
            tracked: record of the tracked run.
        """
        database = f"sqlite:///{folder.absolute() / 'mlflow.db'}"
        self._uri = os.environ.get("MLFLOW_TRACKING_URI") or database
        self._folder, self._run_name, self._tracked = folder, run_name, tracked

    def start(self, config: Mapping[str, Any]) -> str:
        """Create an MLflow run with the configuration as parameters, or reopen the run's own.

        MLflow refuses to change a parameter: a value that has changed since is a tag of that name.
        """
        from mlflow import MlflowClient
        from mlflow.entities import Param

        for name in ("mlflow.store.db.utils", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)  # lines about each table
        self._folder.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(tracking_uri=self._uri)
        if self._tracked.id:
            self._client.update_run(self._tracked.id, status="RUNNING")
        else:
            run = self._client.create_run(self._experiment_id(), run_name=self._run_name)
            self._tracked.id = run.info.run_id
            self._tracked.save()
        texts = {key: _param_text(value) for key, value in config.items()}
        data = self._client.get_run(self._tracked.id).data
        logged = {**data.params, **data.tags}
        params = [Param(key, text) for key, text in texts.items() if key not in logged]
        for chunk in _chunks(params, _PARAMS_PER_CALL):
            self._client.log_batch(self._tracked.id, params=chunk)
        for key, text in texts.items():
            if logged.get(key, text) != text:
                self._client.set_tag(self._tracked.id, key, text)
        return self._uri

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of one step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = [Metric(_metric_name(tag), float(n), now, step) for tag, n in metrics.items()]
        for chunk in _chunks(values, _METRICS_PER_CALL):
            self._client.log_batch(self._tracked.id, metrics=chunk)

    def end(self, status: Status) -> None:
        """Set the status of the MLflow run."""
        self._client.set_terminated(self._tracked.id, _STATUS[status])

    def _experiment_id(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _EXPERIMENT
        experiment = self._client.get_experiment_by_name(name)
        return experiment.experiment_id if experiment else self._client.create_experiment(name)


def _param_text(value: Any) -> str:
    """Return a value as text; MLflow refuses empty and very long texts."""
    text = value if isinstance(value, str) and value else repr(value)
    return text if len(text) <= _MAX_PARAM_LENGTH else f"{text[: _MAX_PARAM_LENGTH - 3]}..."


def _metric_name(tag: str) -> str:
    return _NOT_ALLOWED.sub("_", tag)


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
