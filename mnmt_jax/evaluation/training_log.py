"""What a run's `metrics.jsonl` tells: curves and the seconds training took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnmt_jax.evaluation.result import Curve
from mnmt_jax.files.json_objects import is_number, read_records

_CURVES = ("train", "supervised", "zero_shot", "from_english", "to_english")
_POINTS = 400  # kept of a curve; more than a chart is wide


@dataclass(frozen=True)
class TrainingLog:
    """Sums up a training.

    Attributes:
        seconds: of training up to the step asked for; None if unknown.
        curves: negative log-likelihood in nats per target token: `train`, and on validation
            `supervised`, `zero_shot`, `from_english` and `to_english`, means over directions;
            absent where nothing was logged.
    """

    seconds: float | None = None
    curves: Mapping[str, Curve] = field(default_factory=dict)


def read_training_log(path: Path | None, step: int | None = None) -> TrainingLog:
    """Read a log; a missing file is an empty one, a damaged line (of a killed run) is skipped.

    Args:
        path: of `metrics.jsonl`.
        step: updates to take the seconds at; None takes the last.
    """
    if path is None or not path.is_file():
        return TrainingLog()
    seconds = None
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in _CURVES}
    for _, record in read_records(path):
        at = record["step"]
        if is_number(record.get("seconds")) and (step is None or at <= step):
            seconds = float(record["seconds"])
        validation = record.get("validation")
        validation = validation if isinstance(validation, dict) else {}
        for name in points:
            losses = record if name == "train" else validation.get(name)
            if (value := _loss(losses)) is not None:
                points[name].append((at, value))
    return TrainingLog(seconds, {name: _thinned(curve) for name, curve in points.items() if curve})


def _loss(losses: Any) -> float | None:
    """Return the plain loss of a record: null where it was not finite."""
    value = losses.get("nll") if isinstance(losses, dict) else None
    return value if is_number(value) else None


def _thinned(points: list[tuple[float, float]]) -> Curve:
    """Keep every n-th point and the last."""
    every = -(-len(points) // _POINTS)
    kept = points[::every]
    return tuple(kept if kept[-1] == points[-1] else [*kept, points[-1]])
