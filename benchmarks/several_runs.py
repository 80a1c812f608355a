"""What benchmarks of several runs share: scripts that are run, and a table of their scores."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from mnmt_jax.evaluation.result import RunResult
from mnmt_jax.evaluation.table import format_score, group_mean, leading_metrics, markdown_table

ROOT = Path(__file__).resolve().parents[1]


def run_script(script: str, *arguments: str) -> None:
    """Runs a script; its output is not wanted, its progress is. Ends as it does if it fails."""
    print(f"== {script} {' '.join(arguments[:3])}", file=sys.stderr)
    command = [sys.executable, f"scripts/{script}.py", *arguments]
    if status := subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit(status)


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
