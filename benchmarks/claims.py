"""Runs the experiments behind docs/results.md; run again, it continues.

python benchmarks/claims.py triangle DIR [--workers 2] [--arms baseline,fcll] [--seeds 2]
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

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
    flags = parser.parse_args()
    experiment = EXPERIMENTS[flags.table]
    if flags.seeds:
        experiment = dataclasses.replace(experiment, seeds=experiment.seeds[: flags.seeds])
    names = flags.arms.split(",") if flags.arms else list(experiment.arms)
    if unknown := [name for name in names if name not in experiment.arms]:
        raise UserError(f"--arms: no arm '{unknown[0]}'; there are {', '.join(experiment.arms)}")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    workspace = Workspace(flags.folder, experiment)
    if failed := execute(workspace.jobs(names), flags.workers):
        raise UserError(f"{failed} jobs failed; the same command tries them again")


if __name__ == "__main__":
    run_command(main)
