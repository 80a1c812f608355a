"""Experiments of docs/results_claims.md. To resume after an interruption, repeat the command.

Example:
    python benchmarks/claims.py triangle DIR [--workers 2] [--arms baseline,fcll] [--seeds 2]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from claim_summary import (
    equal_loss_table,
    evaluated_arms,
    last_terms,
    score_tables,
    summarize,
    validation_table,
)
from claim_tables import EXPERIMENTS
from experiments import Experiment, Workspace, execute

from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import write_text
from mnmt_jax.runtime.run_command import run_command

_TRIAL = ("Data.rows=4", "Data.validation_examples=8", "Decode.max_length=10", "Train.patience=0")


def main() -> None:
    """Run the jobs of experiments."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("tables", help=f"comma-separated: {', '.join(EXPERIMENTS)}")
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("runs/claims"),
        metavar="DIR",
        help="folder of all runs, one subfolder per table; default: runs/claims",
    )
    parser.add_argument("--arms", help="comma-separated; default: all")
    parser.add_argument("--seeds", type=int, help="number of seeds; default: the experiment's")
    parser.add_argument("--workers", type=int, default=1, help="number of parallel jobs")
    parser.add_argument(
        "--trial", action="store_true", help="4 updates and 3 test sentences, to check the program"
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="folder for TABLE.json, the results of the runs, written after each one; runs whose "
        "results are there already are not repeated, even if they ran on another machine",
    )
    parser.add_argument(
        "--print", action="store_true", help="run nothing; print the tables of --results"
    )
    parser.add_argument(
        "--baseline",
        default="",
        metavar="ARM",
        help="with --print: the arm that the others are compared with; default: the first, or "
        "that of the same data",
    )
    flags = parser.parse_args()
    tables = flags.tables.split(",")
    if unknown := [name for name in tables if name not in EXPERIMENTS]:
        raise UserError(f"{unknown[0]}: no such table; choose from {', '.join(EXPERIMENTS)}")
    if flags.trial and flags.results:
        raise UserError("--trial: results of 4 updates are not recorded; leave out --results")
    if flags.print and not flags.results:
        raise UserError("--print: needs --results, e.g. --results docs/results")
    if flags.baseline and not flags.print:
        raise UserError("--baseline: is of printed tables; give --print too, or leave it out")
    if flags.print:
        for table in tables:
            if not (summary := read_results(flags.results, table)):
                raise UserError(f"{flags.results}: no {table}.json; run {table} with --results")
            print_tables(summary, flags.baseline)
        return
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    workspaces = {table: workspace(flags, table) for table in tables}
    jobs = [
        job
        for table, table_workspace in workspaces.items()
        for job in table_workspace.jobs(arm_names(flags, table_workspace.experiment))
    ]
    failed = execute(jobs, flags.workers, lambda: record(workspaces, flags.results))
    for table_workspace in workspaces.values():
        print_tables(summarize(table_workspace))
    if failed:
        raise UserError(f"{failed} jobs failed; repeat the command to retry them")


def workspace(flags: argparse.Namespace, table: str) -> Workspace:
    """Return the workspace of a table, limited to --seeds seeds; tiny for --trial."""
    experiment = EXPERIMENTS[table]
    if flags.trial:
        arms = {name: dataclasses.replace(arm, steps=0) for name, arm in experiment.arms.items()}
        bindings = (*experiment.bindings, *_TRIAL)
        experiment = dataclasses.replace(
            experiment, arms=arms, bindings=bindings, steps=4, every=2, limit=3
        )
    if flags.seeds:
        experiment = dataclasses.replace(experiment, seeds=experiment.seeds[: flags.seeds])
    return Workspace(flags.folder / table, experiment, read_results(flags.results, table))


def read_results(folder: Path | None, table: str) -> dict[str, Any]:
    """Return the recorded results of a table; empty if there are none."""
    file = folder / f"{table}.json" if folder else None
    return json.loads(file.read_text(encoding="utf-8")) if file and file.is_file() else {}


def arm_names(flags: argparse.Namespace, experiment: Experiment) -> list[str]:
    """Return the names of the arms that --arms selects.

    Raises:
        UserError: if there is no such arm.
    """
    names = flags.arms.split(",") if flags.arms else list(experiment.arms)
    if unknown := [name for name in names if name not in experiment.arms]:
        raise UserError(
            f"--arms={unknown[0]}: no such arm; choose from {', '.join(experiment.arms)}"
        )
    return names


def record(workspaces: Mapping[str, Workspace], folder: Path | None) -> None:
    """Write the results of finished runs to files, one per table."""
    if not folder:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for table, table_workspace in workspaces.items():
        summary = summarize(table_workspace)
        if summary["arms"]:
            text = json.dumps(summary, ensure_ascii=False, separators=(",", ":"))
            write_text(folder / f"{table}.json", text + "\n")


def print_tables(summary: Mapping[str, Any], baseline: str = "") -> None:
    """Print the tables of an experiment as Markdown.

    Args:
        summary: from `summarize`.
        baseline: name of the arm that the others are compared with; empty as in `score_tables`.

    Raises:
        UserError: if the baseline has no results.
    """
    levels = summary.get("levels", ())
    if baseline and baseline not in (known := evaluated_arms(summary)):
        raise UserError(f"--baseline={baseline}: has no results; choose from {', '.join(known)}")
    print(score_tables(summary, baseline))
    print(f"\n### Lowest validation nll\n\n{validation_table(summary)}")
    if terms := last_terms(summary):
        print(f"\n### Terms after the last update\n\n{terms}")
    if levels:
        print(f"\n### Zero-shot nll at equal supervised nll\n\n{equal_loss_table(summary, levels)}")


if __name__ == "__main__":
    run_command(main)
