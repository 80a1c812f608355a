"""Validation loss per task, and its means over supervised and zero-shot tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from mnmt_jax.data.pipeline import VALIDATION, Pipeline
from mnmt_jax.training.losses import NLL_TOKENS, Sums

SUPERVISED, ZERO_SHOT = "supervised", "zero_shot"


class ValidationTasks(NamedTuple):
    """Names of the tasks that validation measures.

    Attributes:
        supervised: tasks trained on.
        zero_shot: tasks never trained on.
    """

    supervised: tuple[str, ...]
    zero_shot: tuple[str, ...]


def validation_tasks(pipeline: Pipeline) -> ValidationTasks:
    """Groups the cache's tasks that have a validation split by whether they are trained on."""
    present = pipeline.cache.tasks_with(VALIDATION)
    trained = set(pipeline.task_names)
    zero_shot = tuple(name for name in present if name not in trained)
    return ValidationTasks(tuple(name for name in present if name in trained), zero_shot)


def validate(
    batches: Iterable[tuple[str, Mapping[str, np.ndarray]]],
    loss: Callable[[Mapping[str, np.ndarray]], Sums],
    tasks: ValidationTasks,
) -> dict[str, Any]:
    """Measures the loss per target token of each task.

    Args:
        batches: pairs of a task's name and a batch of that task alone.
        loss: sums of a batch, on the device; nothing waits for it before the last batch.
        tasks: which group each task belongs to.

    Returns:
        `tasks`: name -> {"loss", "nll"} in nats per token; `supervised` and `zero_shot`: unweighted
        means over their tasks, absent for an empty group.
    """
    sums: dict[str, Sums] = {}
    for name, batch in batches:
        found = loss(batch)
        sums[name] = jax.tree.map(lambda a, b: a + b, sums[name], found) if name in sums else found
    per_task = {name: _per_token(total) for name, total in jax.device_get(sums).items()}
    result: dict[str, Any] = {}
    for group, names in zip((SUPERVISED, ZERO_SHOT), tasks, strict=True):
        measured = [per_task[name] for name in names if name in per_task]
        if measured:
            result[group] = {
                part: float(np.mean([values[part] for values in measured])) for part in measured[0]
            }
    return {**result, "tasks": per_task}


def chosen_by(result: Mapping[str, Any], tasks: Literal["supervised", "all"]) -> float | None:
    """Returns the loss that says how good a checkpoint is.

    Args:
        result: of `validate`.
        tasks: `Train.best_by`.

    Returns:
        The unweighted mean over the tasks; None if none of them was measured.
    """
    if tasks == "supervised":
        loss: float | None = result.get(SUPERVISED, {}).get("loss")
        return loss
    losses = [values["loss"] for values in result["tasks"].values()]
    return float(np.mean(losses)) if losses else None


def _per_token(sums: Sums) -> dict[str, float]:
    tokens = max(float(sums["tokens"]), 1.0)
    asked = max(float(sums.get(NLL_TOKENS, tokens)), 1.0)
    return {"loss": float(sums["smoothed"]) / tokens, "nll": float(sums["nll"]) / asked}
