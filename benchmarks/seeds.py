"""Comparison of models over seeds: final scores, loss by step, zero-shot loss at equal loss.

    python benchmarks/seeds.py DIR/prefix_1 DIR/prefix_2 ... DIR/register_1 ...

Each folder is a run `{model}_{seed}` with its evaluation in `report/`. Prints Markdown.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path

from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.evaluation.result import read_result
from mnmt_jax.evaluation.result_tables import comparison_table
from mnmt_jax.pages.markdown_tables import markdown_table
from mnmt_jax.runtime.run_command import run_command

Curve = dict[int, tuple[float, float]]  # step -> supervised and zero-shot validation loss


def main() -> None:
    """Read the runs and print three tables."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="{model}_{seed}")
    runs: dict[str, list[Path]] = {}
    for folder in parser.parse_args().folders:
        runs.setdefault(folder.name.rsplit("_", 1)[0], []).append(folder)
    results = [read_result(run / "report") for group in runs.values() for run in sorted(group)]
    print(comparison_table(results), "\n")
    curves = {model: [_curve(run) for run in sorted(group)] for model, group in runs.items()}
    print(_by_step(curves), "\n")
    print(_at_equal_loss(curves))


def _curve(run: Path) -> Curve:
    curve = {}
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "validation" in record:
            losses = record["validation"]
            curve[record["step"]] = (losses["supervised"]["nll"], losses["zero_shot"]["nll"])
    return curve


def _by_step(curves: Mapping[str, list[Curve]]) -> str:
    """Return a table of mean losses over seeds at each validated step, supervised and zero-shot."""
    steps = sorted(set.intersection(*(set(c) for group in curves.values() for c in group)))
    rows = []
    for step in steps:
        cells = [f"{step:,}"]
        for group in curves.values():
            supervised, zero_shot = (_spread(curve[step][k] for curve in group) for k in (0, 1))
            cells += [supervised, zero_shot]
        rows.append(cells)
    header = [
        "step",
        *(f"{model} {group}" for model in curves for group in ("supervised", "zero-shot")),
    ]
    return markdown_table(header, rows)


def _at_equal_loss(curves: Mapping[str, list[Curve]]) -> str:
    """Return a table of the first step at or below a supervised loss, and its zero-shot loss."""
    rows = []
    for level in (0.5, 0.4, 0.3, 0.25, 0.2, 0.18):
        cells = [f"{level:.2f}"]
        for group in curves.values():
            reached = [point for curve in group if (point := _first_below(curve, level))]
            if len(reached) < len(group):
                cells += ["not reached", ""]
                continue
            cells.append(_spread((step for step, _ in reached), "{:,.0f}"))
            cells.append(_spread(zero_shot for _, zero_shot in reached))
        rows.append(cells)
    header = [
        "supervised loss",
        *(f"{model} {column}" for model in curves for column in ("steps", "zero-shot")),
    ]
    return markdown_table(header, rows)


def _first_below(curve: Curve, level: float) -> tuple[int, float] | None:
    return next(
        ((step, losses[1]) for step, losses in sorted(curve.items()) if losses[0] <= level), None
    )


def _spread(values: Iterable[float], form: str = "{:.3f}") -> str:
    numbers = list(values)
    mean = form.format(statistics.mean(numbers))
    return f"{mean} ({form.format(min(numbers))} to {form.format(max(numbers))})"


if __name__ == "__main__":
    run_command(main)
