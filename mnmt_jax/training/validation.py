"""Validation measures per task, their means over groups of tasks, and their history in a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from mnmt_jax.config.sections import TRANSLATION_MEASURES
from mnmt_jax.data.input_pipeline import VALIDATION, Pipeline
from mnmt_jax.decoding.scoring import perplexity_of
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.training.losses import NLL_TOKENS, Sums
from mnmt_jax.vocabulary.languages import find_english

SUPERVISED, ZERO_SHOT = "supervised", "zero_shot"
PERPLEXITY = "perplexity"
TRANSLATION = "translation"
_HIGHER_IS_BETTER = ("bleu", "chrf")


class ValidationTasks(NamedTuple):
    """Names of the tasks that are validated.

    Attributes:
        supervised: tasks trained on.
        zero_shot: tasks never trained on.
        from_english: tasks of either kind from English to another language.
        to_english: tasks of either kind from another language to English.
    """

    supervised: tuple[str, ...]
    zero_shot: tuple[str, ...]
    from_english: tuple[str, ...] = ()
    to_english: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Tasks of both kinds."""
        return self.supervised + self.zero_shot


@dataclasses.dataclass
class ValidationHistory:
    """The latest and the best validation loss of a run, by `checkpoint_loss`.

    Attributes:
        patience: updates without a better loss after which training stops; 0 never stops it.
        best: step and loss of the best validation; None before the first one.
        latest: step and loss of the latest validation since the start of the process; the loss is
            None if none of the tasks that count was measured.
    """

    patience: int
    best: Sequence[float] | None = None
    latest: tuple[int, float | None] = (-1, None)

    def add(self, step: int, loss: float | None) -> None:
        """Add the loss after a step, as `checkpoint_loss` returns it."""
        self.latest = (step, loss)
        if loss is None or math.isnan(loss):
            return
        if self.best is None or loss < self.best[1]:
            self.best = (step, loss)

    def loss_at(self, step: int) -> float | None:
        """Return the loss after a step; None if the latest validation is of another step."""
        return self.latest[1] if self.latest[0] == step else None

    def stalled(self, step: int) -> str:
        """Return the reason why training stops at a step; empty while it goes on."""
        if not self.patience or self.best is None or step - self.best[0] < self.patience:
            return ""
        return f": no better validation in {self.patience} updates after step {self.best[0]:.0f}"


def validation_tasks(pipeline: Pipeline) -> ValidationTasks:
    """Group the cache's tasks that have a validation split.

    Groups depend on whether a task is trained on, and on which side is English.
    """
    present = pipeline.cache.tasks_with(VALIDATION)
    trained = set(pipeline.task_names)
    pairs = {
        name: (task.source_lang, task.target_lang)
        for name in present
        if (task := pipeline.cache.tasks[name]).source_lang != task.target_lang
    }
    english = find_english(dict.fromkeys(code for pair in pairs.values() for code in pair))
    return ValidationTasks(
        supervised=tuple(name for name in present if name in trained),
        zero_shot=tuple(name for name in present if name not in trained),
        from_english=tuple(name for name, (source, _) in pairs.items() if source == english),
        to_english=tuple(name for name, (_, target) in pairs.items() if target == english),
    )


def task_languages(pipeline: Pipeline) -> dict[str, str]:
    """Return the languages of the cache's monolingual tasks, by task name."""
    tasks = pipeline.cache.tasks.items()
    return {name: task.source_lang for name, task in tasks if task.source_lang == task.target_lang}


def validate(
    batches: Iterable[tuple[str, Mapping[str, np.ndarray]]],
    loss: Callable[[Mapping[str, np.ndarray]], Sums],
    tasks: ValidationTasks,
    languages: Mapping[str, str],
) -> dict[str, Any]:
    """Measure the loss per target token of each task.

    Args:
        batches: pairs of a task's name and a batch of that task alone.
        loss: computes the sums of a batch on the device, without waiting for it.
        tasks: groups of tasks.
        languages: languages of the monolingual tasks.

    Returns:
        `tasks`: name -> {"loss", "nll"} in nats per token, and "perplexity", exp(nll).
        For each group of `ValidationTasks`: unweighted means of the three over its tasks, absent
        for an empty group. Perplexities averaged over `to_english` and `from_english` are the two
        columns of Graformer's Tables 5 and 6.
        `perplexity`: by language of `languages`, over the tokens of all its tasks, absent if there
        are none.
        For a model that fills masks, `nll` and so perplexities are per predicted token.
    """
    sums: dict[str, Sums] = {}
    for name, batch in batches:
        _add(sums, name, loss(batch))
    sums = jax.device_get(sums)
    measures = {name: _per_token(total) for name, total in sums.items()}
    per_task = {name: v | {PERPLEXITY: perplexity_of(v["nll"])} for name, v in measures.items()}
    by_language = _perplexities(sums, languages)
    perplexities = {PERPLEXITY: by_language} if by_language else {}
    return {**group_means(per_task, tasks), **perplexities, "tasks": per_task}


def check_validation(result: Mapping[str, Any], step: int) -> None:
    """Check the losses that `validate` returned after a step.

    Raises:
        UserError: if one is not a number; the parameters are then not to be saved.
    """
    wrong = [name for name, measured in result["tasks"].items() if math.isnan(measured["loss"])]
    if wrong:
        raise UserError(
            f"step {step}: the validation loss is not a number ({join_names(wrong)}); lower "
            "Optimizer.learning_rate or set Optimizer.clip_norm in a new --workdir"
        )


def group_means(
    per_task: Mapping[str, Mapping[str, float | None]], tasks: ValidationTasks
) -> dict[str, dict[str, float]]:
    """Return the unweighted means over groups of tasks; absent for groups without measured tasks.

    Args:
        per_task: measures by task. Those that a task lacks (None) are left out of the mean.
        tasks: groups of tasks.
    """
    means = {}
    for group, names in tasks._asdict().items():
        if measured := [per_task[name] for name in names if name in per_task]:
            means[group] = _means(measured)
    return means


def _means(measured: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    columns = {
        measure: [value for values in measured if (value := values[measure]) is not None]
        for measure in measured[0]
    }
    return {measure: float(np.mean(values)) for measure, values in columns.items() if values}


def _perplexities(sums: Mapping[str, Sums], languages: Mapping[str, str]) -> dict[str, float]:
    """Return the perplexity of each language over all its tasks."""
    totals: dict[str, Sums] = {}
    for name, code in languages.items():
        if name in sums:
            _add(totals, code, sums[name])
    return {code: perplexity_of(_per_token(total)["nll"]) for code, total in totals.items()}


def _add(totals: dict[str, Sums], name: str, sums: Sums) -> None:
    """Add sums to the total of a name."""
    total = totals.get(name)
    totals[name] = sums if total is None else jax.tree.map(lambda a, b: a + b, total, sums)


def checkpoint_loss(result: Mapping[str, Any], best_by: str) -> float | None:
    """Return the loss by which the best checkpoint is chosen.

    Args:
        result: result of `validate`; with the scores of translations under `translation`.
        best_by: `Train.best_by`.

    Returns:
        The unweighted mean over the tasks, negated where higher is better; None if none of them was
        measured.
    """
    group, _, measure = best_by.partition("/")
    measure = measure or "loss"
    measures = result.get(TRANSLATION, {}) if measure in TRANSLATION_MEASURES else result
    tasks = list(measures.get("tasks", {}).values())
    means = (_means(tasks) if tasks else {}) if group == "all" else measures.get(group, {})
    value = means.get(measure)
    return None if value is None else -value if measure in _HIGHER_IS_BETTER else value


def _per_token(sums: Sums) -> dict[str, float]:
    tokens = max(float(sums["tokens"]), 1.0)
    nll_tokens = max(float(sums.get(NLL_TOKENS, tokens)), 1.0)
    return {"loss": float(sums["smoothed"]) / tokens, "nll": float(sums["nll"]) / nll_tokens}
