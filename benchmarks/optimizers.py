r"""Updates that optimizers take to a validation loss, and seconds of an update, over seeds.

    python benchmarks/optimizers.py --workdir=DIR --gin_file=MODEL.gin --gin_file=RUN.gin \
        --gin.Data.cache="'CACHE'" adam "muon:Optimizer.name='muon'"

A variant is `NAME[:BINDING[;BINDING...]]` on top of the gin files and flags. Each is trained with
each seed in DIR/NAME_SEED; repeat the command to continue after an interruption. The loss to reach
is the highest final loss of the first variant's seeds, by supervised validation text. Seconds of an
update are the median over its runs, without compilation, validation and saving. On a busy machine
compare them by `benchmarks/update_cost.py` instead, which takes turns.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.commands.common_flags import CommandParser, add_gin_flags, parse_command_line
from mnmt_jax.pages.markdown_tables import markdown_table
from mnmt_jax.runtime.run_command import run_command

Curve = Mapping[int, float]  # step -> supervised validation loss


def main() -> None:
    """Train all variants with all seeds and print the table."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("variants", nargs="+", metavar="NAME[:BINDING[;BINDING...]]")
    parser.add_argument("--workdir", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="SEED")
    add_gin_flags(parser)
    flags, gin_files, bindings = parse_command_line(parser)
    runs: dict[str, list[list[dict[str, Any]]]] = {}
    for seed in flags.seeds:  # outside: an interrupted comparison has complete seeds
        for variant in flags.variants:
            name, _, changes = variant.partition(":")
            workdir = flags.workdir / f"{name}_{seed}"
            fields = [*bindings, *filter(None, changes.split(";")), f"Train.seed={seed}"]
            _train(workdir, gin_files, fields)
            runs.setdefault(name, []).append(_records(workdir))
    print(table(runs))


def _train(workdir: Path, gin_files: Sequence[str], bindings: Iterable[str]) -> None:
    files = [f"--gin_file={file}" for file in gin_files]
    fields = [f"--gin.{binding}" for binding in bindings]
    command = [sys.executable, "-m", "mnmt_jax", "train", *files, *fields, f"--workdir={workdir}"]
    subprocess.run(command, check=True)


def _records(workdir: Path) -> list[dict[str, Any]]:
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def table(runs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> str:
    """Return a table of variants: final loss, and updates and seconds to the first one's loss.

    Args:
        runs: records of `metrics.jsonl`, by variant and seed.
    """
    curves = {name: [_curve(records) for records in seeds] for name, seeds in runs.items()}
    level = max(curve[max(curve)] for curve in next(iter(curves.values())))
    header = ["optimizer", "final loss", f"updates to {level:.3f}", "seconds of an update"]
    rows = []
    for name, seeds in runs.items():
        reached = [_first_below(curve, level) for curve in curves[name]]
        steps = [step for step in reached if step is not None]
        missed = f"; {len(reached) - len(steps)} of {len(reached)} never"
        cell = _spread(steps, "{:,.0f}") if steps else ""
        update_seconds = [seconds for records in seeds for seconds in _update_seconds(records)]
        final = [curve[max(curve)] for curve in curves[name]]
        cells = [name, _spread(final, "{:.4f}"), cell + missed * (len(steps) < len(reached))]
        rows.append([*cells, f"{statistics.median(update_seconds):.4f}" if update_seconds else ""])
    return markdown_table(header, rows)


def _curve(records: Sequence[Mapping[str, Any]]) -> Curve:
    validated = (record for record in records if "validation" in record)
    return {record["step"]: record["validation"]["supervised"]["loss"] for record in validated}


def _first_below(curve: Curve, level: float) -> int | None:
    return next((step for step, loss in sorted(curve.items()) if loss <= level), None)


def _update_seconds(records: Sequence[Mapping[str, Any]]) -> list[float]:
    rates = (record.get("steps_per_second") for record in records)
    return [1 / rate for rate in rates if rate]


def _spread(values: Sequence[float], form: str) -> str:
    mean, *limits = (
        form.format(value) for value in (statistics.mean(values), min(values), max(values))
    )
    return f"{mean} ({limits[0]} to {limits[1]})"


if __name__ == "__main__":
    run_command(main)
