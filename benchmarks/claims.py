"""Runs the experiments behind docs/results.md; run again, it continues.

python benchmarks/claims.py triangle DIR [--workers 2] [--arms baseline,fcll] [--seeds 2]
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from claim_summary import equal_loss_table, last_terms, score_tables, summarize
from claim_tables import EXPERIMENTS
from experiments import Workspace, execute

from mnmt_jax.commands.arguments import CommandParser
from mnmt_jax.errors import UserError, run_command


def main() -> None:
    """Run the jobs of an experiment."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("table", choices=EXPERIMENTS)
    parser.add_argument("folder", type=Path, metavar="DIR", help="of all runs")
    parser.add_argument("--arms", help="comma-separated; default: all")
    parser.add_argument("--seeds", type=int, help="number of seeds; default: the experiment's")
    parser.add_argument("--workers", type=int, default=1, help="jobs at a time")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="JSON of what the runs show, to write"
    )
    parser.add_argument(
        "--print", action="store_true", help="run nothing; print the tables of --results"
    )
    flags = parser.parse_args()
    if flags.print:
        print_tables(json.loads(flags.results.read_text(encoding="utf-8")))
        return
    experiment = EXPERIMENTS[flags.table]
    if flags.seeds:
        experiment = dataclasses.replace(experiment, seeds=experiment.seeds[: flags.seeds])
    names = flags.arms.split(",") if flags.arms else list(experiment.arms)
    if unknown := [name for name in names if name not in experiment.arms]:
        raise UserError(f"--arms: no arm '{unknown[0]}'; there are {', '.join(experiment.arms)}")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    workspace = Workspace(flags.folder, experiment)
    failed = execute(workspace.jobs(names), flags.workers)
    summary = summarize(workspace)
    if flags.results:
        text = json.dumps(summary, ensure_ascii=False, indent=None, separators=(",", ":"))
        flags.results.write_text(text + "\n", encoding="utf-8")
    if summary["arms"]:
        print_tables(summary)
    if failed:
        raise UserError(f"{failed} jobs failed; the same command tries them again")


def print_tables(summary: Mapping[str, Any]) -> None:
    """Print the tables of an experiment as Markdown."""
    levels = summary.get("levels", ())
    print(score_tables(summary))
    if terms := last_terms(summary):
        print(f"\n### Terms after the last update\n\n{terms}")
    if levels:
        print(f"\n### Zero-shot nll at equal supervised nll\n\n{equal_loss_table(summary, levels)}")


if __name__ == "__main__":
    run_command(main)
