"""Shared helpers of benchmarks of several runs: scripts to run, and a table of scores."""

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
"""Flags of the vocabularies of docs/results.md: no byte fallback, no text normalization."""


def run_script(script: str, *arguments: str) -> None:
    """Run a script without its output; its progress stays visible.

    Raises:
        SystemExit: with the status of the script, if it fails.
    """
    print(f"== {script} {' '.join(arguments[:3])}", file=sys.stderr)
    command = [sys.executable, f"scripts/{script}.py", *arguments]
    if status := subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit(status)


def train(run: Path, configuration: tuple[str, str], cache: Path, steps: int, *flags: str) -> None:
    """Train a run; validate and save four times.

    Args:
        run: run directory.
        configuration: names of its model file and run file.
        cache: token cache to train on.
        steps: updates.
        flags: further flags of the command.
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
    """Return a vocabulary's folder; train it on the text of a mixture if it does not exist."""
    if not folder.is_dir():
        run_script("train_vocabulary", f"--mixture={task}", *flags, f"--output={folder}")
    return folder


def make_cache(folder: Path, task: str, vocabulary: Path, *flags: str) -> Path:
    """Return a token cache's folder; write it from a mixture if it does not exist."""
    if not folder.is_dir():
        folders = f"--vocabulary={vocabulary}", f"--output={folder}"
        run_script("cache_tasks", f"--mixture={task}", *folders, *flags)
    return folder


def table(results_by_system: dict[str, list[RunResult]]) -> str:
    """Return a table, one row per system and group of directions: means over seeds and ranges."""
    metrics = leading_metrics(
        [result for results in results_by_system.values() for result in results]
    )
    header = ["system", "parameters", "directions", *(metric.title for metric in metrics)]
    rows = []
    for field, title in (("supervised", "supervised"), ("zero_shot", "zero-shot")):
        for name, results in results_by_system.items():
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
