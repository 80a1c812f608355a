"""Training curves and training time from a run's `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnmt_jax.evaluation.result import Curve
from mnmt_jax.files.json_objects import is_number, read_records

_GROUPS = ("supervised", "zero_shot", "from_english", "to_english")
_MEASURES = ("nll", "perplexity")
_MAX_POINTS = 400  # maximal number of points of a curve, not counting the last one


@dataclass(frozen=True)
class TrainingLog:
    """Summary of a training run.

    Attributes:
        seconds: wall-clock seconds of training up to the requested step; None if unknown.
        curves: negative log-likelihood in nats per target token: `train`, and the validation means
            over directions `supervised`, `zero_shot`, `from_english` and `to_english`; curves
            without logged points are absent.
        validation: the means over directions at the requested step, by the same groups: "nll", and
            "perplexity", the mean of the directions' perplexities.
    """

    seconds: float | None = None
    curves: Mapping[str, Curve] = field(default_factory=dict)
    validation: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def read_training_log(path: Path | None, step: int | None = None) -> TrainingLog:
    """Read a log. A missing file counts as empty; a damaged line (of a killed run) is skipped.

    Args:
        path: path of `metrics.jsonl`.
        step: number of updates at which to read seconds and validation; None for the last record
            with them.
    """
    if path is None or not path.is_file():
        return TrainingLog()
    seconds, at_step = None, {}
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in ("train", *_GROUPS)}
    for _, record in read_records(path):
        record_step = record["step"]
        if is_number(record.get("seconds")) and (step is None or record_step <= step):
            seconds = float(record["seconds"])
        validation = record.get("validation")
        validation = validation if isinstance(validation, dict) else {}
        measures = {name: _measures(validation.get(name)) for name in _GROUPS}
        if step in (None, record_step) and any(measures.values()):
            at_step = {name: values for name, values in measures.items() if values}
        for name, values in {"train": _measures(record), **measures}.items():
            if "nll" in values:
                points[name].append((record_step, values["nll"]))
    curves = {name: _subsample(curve) for name, curve in points.items() if curve}
    return TrainingLog(seconds, curves, at_step)


def _measures(losses: Any) -> dict[str, float]:
    """Return the measures of a record that are finite numbers."""
    values = losses if isinstance(losses, dict) else {}
    return {name: values[name] for name in _MEASURES if is_number(values.get(name))}


def _subsample(points: list[tuple[float, float]]) -> Curve:
    """Return every n-th point and the last one, about `_MAX_POINTS` in all."""
    stride = -(-len(points) // _MAX_POINTS)
    subsampled = points[::stride]
    return tuple(subsampled if subsampled[-1] == points[-1] else [*subsampled, points[-1]])
