"""Check of the scores in evaluations that tables share: none is lost or replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mnmt_jax.errors import UserError, join_names
from mnmt_jax.evaluation.neural_metrics import identify_model, model_part, name_model
from mnmt_jax.evaluation.result import OPTIONAL_METRICS, SCORES_FILE, RunResult, read_result
from mnmt_jax.evaluation.spbleu import FloresTokenizer, cached_model_path
from mnmt_jax.papers.score_models import SCORE_MODELS
from mnmt_jax.papers.table_plan import TablePlan


def check_scores(plan: TablePlan, output: Path) -> None:
    """Check that the steps of a plan keep the scores of evaluations that are there.

    Args:
        plan: the plan.
        output: output folder of the workflow.

    Raises:
        UserError: if a score lacks its flag, or its flag names another model.
    """
    metrics = plan.workflow.metrics
    for trial, step in zip(plan.trials, plan.targets, strict=False):
        folder = output / trial.evaluation
        if not metrics or trial.experiment.benchmark or not (folder / SCORES_FILE).is_file():
            continue
        result = read_result(folder)
        _check_models(folder, result, metrics)
        if not (output / "done" / step).is_file():
            _check_flags(folder, result, metrics)


def _check_models(folder: Path, result: RunResult, metrics: Mapping[str, tuple[str, str]]) -> None:
    for metric, (flag, path) in metrics.items():
        if not _has_model(result, metric, Path(path)):
            raise UserError(
                f"{flag}={path}: {folder} has {SCORE_MODELS[metric].title} by another model; "
                "choose another --output, or replace the scores there by 'mnmt evaluate "
                "--overwrite' (--dry_run prints its other flags)"
            )


def _check_flags(folder: Path, result: RunResult, metrics: Mapping[str, tuple[str, str]]) -> None:
    """Check that the scores of an evaluation are computed again when others are added."""
    lost = [
        metric
        for metric in OPTIONAL_METRICS
        if metric.key not in metrics
        and any(value is not None for value in result.values(metric.key).values())
        and not (metric.key == "spbleu" and _has_default_spbleu(result))
    ]
    if not lost:
        return
    flags = [
        f"--{model.flag} {model.kind}" for metric in lost if (model := SCORE_MODELS.get(metric.key))
    ]
    remedy = f"add {join_names(flags)}" if len(flags) == len(lost) else "choose another --output"
    titles = join_names([metric.title for metric in lost])
    raise UserError(f"{folder}: has {titles}, which would be lost with new scores; {remedy}")


def _has_default_spbleu(result: RunResult) -> bool:
    """Return whether `mnmt evaluate` computes the spBLEU of an evaluation without a flag."""
    path, is_left_out = cached_model_path(), result.off_target.key == "off_target_nearest"
    return path.is_file() and not is_left_out and _has_model(result, "spbleu", path)


def _has_model(result: RunResult, metric: str, path: Path) -> bool:
    """Return whether a model is that of an evaluation's scores; True without such scores.

    Args:
        result: the evaluation.
        metric: key of `SCORE_MODELS`.
        path: file or folder of the model.
    """
    recorded = result.signatures.get(metric, {})
    signatures: Sequence[str] = [recorded] if isinstance(recorded, str) else [*recorded.values()]
    if not signatures:
        return True
    if metric == "spbleu":
        return model_part(signatures[0]) == f"model:{FloresTokenizer(path).fingerprint}"
    if metric == "comet":
        return model_part(signatures[0]) == identify_model(path)
    parts = [model_part(signature) for signature in signatures]  # of target languages
    names = {part.removeprefix("model:").partition("|")[0] for part in parts}
    models = tuple(f"{name_model(path / name, name)}|" for name in names)
    return all(part.startswith(models) for part in parts)
