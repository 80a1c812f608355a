"""What benchmarks of several runs share: scripts that are run, and a table of their scores."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from mnmt_jax.evaluation.markdown_tables import (
    format_score,
    group_mean,
    leading_metrics,
    markdown_table,
)
from mnmt_jax.evaluation.result import RunResult

ROOT = Path(__file__).resolve().parents[1]

PUBLISHED_VOCABULARY = ("--no-byte_fallback", "--text_normalization=none")
"""Flags of the vocabularies of docs/results.md, which have neither."""


def run_script(script: str, *arguments: str) -> None:
    """Runs a script; its output is not wanted, its progress is. Ends as it does if it fails."""
    print(f"== {script} {' '.join(arguments[:3])}", file=sys.stderr)
    command = [sys.executable, f"scripts/{script}.py", *arguments]
    if status := subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit(status)


def train(run: Path, configuration: tuple[str, str], cache: Path, steps: int, *flags: str) -> None:
    """Trains a run, validated and saved four times.

    Args:
        run: its directory.
        configuration: names of the files of its model and of its run.
        cache: what it learns of.
        steps: updates.
        flags: of the command besides.
    """
    model, settings = configuration
    every = max(steps // 4, 1)
    run_script(
        "train",
        f"--workdir={run}",
        f"--gin_file=gin_configs/models/{model}.gin",
        f"--gin_file=gin_configs/runs/{settings}.gin",
        f"--gin.Data.cache='{cache}'",
        f"--gin.Train.steps={steps}",
        f"--gin.Train.eval_every={every}",
        f"--gin.Train.save_every={every}",
        *flags,
    )


def train_vocabulary(folder: Path, task: str, *flags: str) -> Path:
    """Returns a vocabulary's folder, made of a mixture's text if it is not there."""
    if not folder.is_dir():
        run_script("train_vocabulary", f"--mixture={task}", *flags, f"--output={folder}")
    return folder


def make_cache(folder: Path, task: str, vocabulary: Path, *flags: str) -> Path:
    """Returns a cache's folder, made of a mixture if it is not there."""
    if not folder.is_dir():
        given = f"--vocabulary={vocabulary}", f"--output={folder}"
        run_script("cache_tasks", f"--mixture={task}", *given, *flags)
    return folder


def table(found: dict[str, list[RunResult]]) -> str:
    """Writes one row per system and group of directions, means over the seeds with their range."""
    metrics = leading_metrics([result for results in found.values() for result in results])
    header = ["system", "parameters", "directions", *(metric.title for metric in metrics)]
    rows = []
    for field, title in (("supervised", "supervised"), ("zero_shot", "zero-shot")):
        for name, results in found.items():
            means = [[group_mean(r, metric.key, field).mean for r in results] for metric in metrics]
            parameters = f"{results[0].parameters:,}"
            rows.append([name, parameters, title, *map(_spread, means)])
    return markdown_table(header, rows)


def _spread(values: Iterable[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return "–"
    mean = format_score(statistics.mean(numbers))
    if len(numbers) == 1:
        return mean
    return f"{mean} ({format_score(min(numbers))} to {format_score(max(numbers))})"
