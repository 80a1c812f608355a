"""All trackers of a run: checks, opening, and isolation of their errors from training."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.config.loading import key_values
from mnmt_jax.config.sections import Config
from mnmt_jax.errors import UserError, install_remedy
from mnmt_jax.files.bucket import absolute_path
from mnmt_jax.files.storage_errors import one_line
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training.trackers.background import BackgroundTracker
from mnmt_jax.training.trackers.interface import Status, TrackedRun, Tracker
from mnmt_jax.training.trackers.mlflow import MLflowTracker
from mnmt_jax.training.trackers.tensorboard import TensorBoard
from mnmt_jax.training.trackers.wandb import WandbTracker, check_login

OPTIONAL: Mapping[str, Callable[[Path, str, TrackedRun], Tracker]] = {
    "mlflow": MLflowTracker,
    "wandb": WandbTracker,
}
"""Trackers with a package of their own, which is an extra of the same name."""

_REMEDIES = {
    "tensorboard": "see to the storage of the run",
    "mlflow": "see to the server of MLFLOW_TRACKING_URI and your rights there",
    "wandb": "see to the network and 'wandb login', or set WANDB_MODE=offline",
}

Record = Mapping[str, Any]


def check_trackers(names: Sequence[str], *, is_writer: bool) -> None:
    """Import the packages of trackers, and log in to W&B, which may ask for a key.

    The threads of the trackers then import nothing, which is not safe in several threads at once.

    Args:
        names: names of trackers.
        is_writer: whether this process writes to them.

    Raises:
        UserError: if a package cannot be imported, or W&B has no key.
    """
    for name in names:
        for package in _packages(name):
            if reason := _import_error(package):
                raise UserError(
                    f"Train.trackers: '{name}' needs the package {package}, which {reason}; "
                    f"{install_remedy(name)}, or leave '{name}' out"
                )
    if "wandb" in names and is_writer:
        check_login()


def _packages(name: str) -> tuple[str, ...]:
    """Return the packages that a tracker imports."""
    if name == "mlflow" and not os.environ.get("MLFLOW_TRACKING_URI"):
        return ("mlflow", "sqlalchemy", "alembic")  # for its local database
    return (name,) if name in OPTIONAL else ()


def _import_error(package: str) -> str:
    """Import a package; return why it cannot be imported, empty if it can."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:  # a folder of its name, such as W&B makes
        return "is not installed"
    try:
        importlib.import_module(package)
    except ImportError as error:
        return f"cannot be imported ({one_line(error)})"
    return ""


class TrackerGroup:
    """All trackers of a run. Errors are printed once per tracker; training continues."""

    def __init__(
        self,
        run: RunDirectory,
        config: Config,
        history: Sequence[Record],
        *,
        after_step: int,
        warn_once: Callable[[Mapping[str, str]], None],
        say: Callable[[str], None],
    ) -> None:
        """Open the trackers of `Train.trackers`.

        Args:
            run: run directory.
            config: configuration of the run.
            history: records of earlier starts; each tracker receives those that it lacks.
            after_step: step of the restored checkpoint; 0 for a new run.
            warn_once: prints warnings by name.
            say: prints a line.
        """
        self._warn_once, self._say = warn_once, say
        self._trackers: dict[str, TensorBoard | BackgroundTracker] = {
            name: self._open(name, run, after_step) for name in config.train.trackers
        }
        values = key_values(config)
        for name, tracker in self._trackers.items():
            with self._reporting_errors(name):
                tracker.start(values)
        last_steps = {name: tracker.last_step for name, tracker in self._trackers.items()}
        for record in history:
            self._write(
                record, [name for name, last in last_steps.items() if record["step"] > last]
            )

    def write(self, record: Record) -> None:
        """Write a record with its `step` to all trackers."""
        self._write(record, list(self._trackers))

    def close(self, status: Status) -> None:
        """End all trackers."""
        for name, tracker in self._trackers.items():
            with self._reporting_errors(name):
                tracker.end(status)

    def _open(
        self, name: str, run: RunDirectory, after_step: int
    ) -> TensorBoard | BackgroundTracker:
        if name not in OPTIONAL:
            return TensorBoard(run.tensorboard, after_step=after_step)
        file = run.trackers / f"{name}.json"
        tracked = TrackedRun.open(file, is_resumed=after_step > 0)
        return BackgroundTracker(
            OPTIONAL[name](run.trackers, absolute_path(run.location).name, tracked),
            tracked,
            started=lambda location: self._say(f"{name}: {location}") if location else None,
            failed=lambda error: self._warn(name, error),
        )

    def _write(self, record: Record, names: Sequence[str]) -> None:
        metrics = _flatten({key: value for key, value in record.items() if key != "step"})
        for name in names:
            with self._reporting_errors(name):
                self._trackers[name].write(record["step"], metrics)

    @contextlib.contextmanager
    def _reporting_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # packages raise many types
            self._warn(name, error)

    def _warn(self, name: str, error: Exception) -> None:
        self._warn_once(
            {
                f"tracker {name}": f"{name}: {one_line(error)}; training is not "
                f"affected, and metrics.jsonl has all metrics; {_REMEDIES[name]}"
            }
        )


def _flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a record by their paths, such as `validation/supervised/loss`."""
    scalars: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            scalars |= _flatten(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            scalars[prefix + name] = value
    return scalars
