"""What a run's `metrics.jsonl` tells: curves and the seconds training took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnmt_jax.evaluation.result import Curve
from mnmt_jax.files.json_objects import parse_json

_POINTS = 400  # kept of a curve; more than a chart is wide


@dataclass(frozen=True)
class TrainingLog:
    """Sums up a training.

    Attributes:
        seconds: of training up to the step asked for; None if unknown.
        curves: negative log-likelihood in nats per target token: `train`, and on validation
            `supervised` and `zero_shot`; absent where nothing was logged.
    """

    seconds: float | None = None
    curves: Mapping[str, Curve] = field(default_factory=dict)


def read_training_log(path: Path | None, step: int | None = None) -> TrainingLog:
    """Reads a log; a missing file is an empty one, a damaged line (of a killed run) is skipped.

    Args:
        path: of `metrics.jsonl`.
        step: updates to take the seconds at; None takes the last.
    """
    if path is None or not path.is_file():
        return TrainingLog()
    seconds = None
    points: dict[str, list[tuple[float, float]]] = {"train": [], "supervised": [], "zero_shot": []}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = parse_json(line, finite=False)
            at = record["step"]
        except (ValueError, KeyError, TypeError):
            continue
        if record.get("seconds") is not None and (step is None or at <= step):
            seconds = float(record["seconds"])
        validation = record.get("validation") or {}
        for name in points:
            losses = record if name == "train" else validation.get(name)
            if (value := _loss(losses)) is not None:
                points[name].append((at, value))
    return TrainingLog(seconds, {name: _thinned(curve) for name, curve in points.items() if curve})


def _loss(losses: Mapping[str, Any] | None) -> float | None:
    """Returns the plain loss of a record: null where it was not finite."""
    return None if losses is None else losses.get("nll")


def _thinned(points: list[tuple[float, float]]) -> Curve:
    """Keeps every n-th point and the last."""
    every = -(-len(points) // _POINTS)
    kept = points[::every]
    return tuple(kept if kept[-1] == points[-1] else [*kept, points[-1]])
