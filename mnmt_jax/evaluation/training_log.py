"""Training curves and training time from a run's `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnmt_jax.evaluation.result import Curve
from mnmt_jax.files.json_objects import is_number, read_records

_CURVES = ("train", "supervised", "zero_shot", "from_english", "to_english")
_MAX_POINTS = 400  # maximal number of points of a curve, not counting the last one


@dataclass(frozen=True)
class TrainingLog:
    """Summary of a training run.

    Attributes:
        seconds: wall-clock seconds of training up to the requested step; None if unknown.
        curves: negative log-likelihood in nats per target token: `train`, and the validation means
            over directions `supervised`, `zero_shot`, `from_english` and `to_english`; curves
            without logged points are absent.
    """

    seconds: float | None = None
    curves: Mapping[str, Curve] = field(default_factory=dict)


def read_training_log(path: Path | None, step: int | None = None) -> TrainingLog:
    """Read a log. A missing file counts as empty; a damaged line (of a killed run) is skipped.

    Args:
        path: path of `metrics.jsonl`.
        step: number of updates at which to read the seconds; None for the last record.
    """
    if path is None or not path.is_file():
        return TrainingLog()
    seconds = None
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in _CURVES}
    for _, record in read_records(path):
        record_step = record["step"]
        if is_number(record.get("seconds")) and (step is None or record_step <= step):
            seconds = float(record["seconds"])
        validation = record.get("validation")
        validation = validation if isinstance(validation, dict) else {}
        for name in points:
            losses = record if name == "train" else validation.get(name)
            if (value := _loss(losses)) is not None:
                points[name].append((record_step, value))
    return TrainingLog(
        seconds, {name: _subsample(curve) for name, curve in points.items() if curve}
    )


def _loss(losses: Any) -> float | None:
    """Return the negative log-likelihood of a record; None if absent or not finite."""
    value = losses.get("nll") if isinstance(losses, dict) else None
    return value if is_number(value) else None


def _subsample(points: list[tuple[float, float]]) -> Curve:
    """Return every n-th point and the last one, about `_MAX_POINTS` in all."""
    stride = -(-len(points) // _MAX_POINTS)
    subsampled = points[::stride]
    return tuple(subsampled if subsampled[-1] == points[-1] else [*subsampled, points[-1]])
