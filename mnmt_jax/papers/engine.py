"""Snakemake as the engine of a workflow: it decides which steps are missing, and runs them."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mnmt_jax.data.published_corpora import DATA_VARIABLE
from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import lock, write_text
from mnmt_jax.papers.steps import RESOURCES, Step

SNAKEFILE = Path(__file__).parent / "Snakefile"


def run_steps(
    steps: Sequence[Step],
    targets: Sequence[str],
    *,
    name: str,
    output: Path,
    data: Path,
    cores: int,
    arguments: Sequence[str] = (),
) -> None:
    """Run the steps of a workflow that are not done yet.

    Args:
        steps: all steps.
        targets: names of the steps that must be done.
        name: name of the plan's file.
        output: folder of the workflow.
        data: folder of the corpora, `MNMT_JAX_DATA`.
        cores: number of steps that run at a time on this machine.
        arguments: further arguments of Snakemake, e.g. `--executor slurm`.

    The folder is locked while this process or Snakemake lives. Snakemake's own locks would survive
    a killed process, and then refuse to continue.

    Raises:
        UserError: if Snakemake is not installed, another process works in the folder or a step
            fails.
    """
    if importlib.util.find_spec("snakemake") is None:
        raise UserError("Snakemake is not installed: pip install 'mnmt-jax[papers]'")
    plan = output / "plans" / f"{name}.json"
    plan.parent.mkdir(parents=True, exist_ok=True)
    facts = {
        "targets": list(targets),
        "resources": RESOURCES,
        "steps": [
            {"name": step.name, "inputs": step.inputs, "shell": shlex.join(step.command)}
            for step in steps
        ],
    }
    write_text(plan, json.dumps(facts, indent=1) + "\n")
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE)]
    command += ["--directory", str(output), "--config", f"plan={plan.resolve()}"]
    command += ["--cores", str(cores), "--rerun-incomplete", "--rerun-triggers", "mtime"]
    command += ["--keep-going", "--printshellcmds", "--nolock", *arguments]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    environment = {**os.environ, DATA_VARIABLE: str(data.resolve()), "PATH": path}
    with (plan.parent / "lock").open("w") as file:
        if not lock(file):
            raise UserError(
                f"{output}: another 'mnmt reproduce' works in this folder; wait for its end, or "
                "choose another --output"
            )
        status = subprocess.run(
            command, env=environment, check=False, pass_fds=(file.fileno(),)
        ).returncode
    if status:
        raise UserError(
            f"{output}: a step failed; its output is in logs/, and the same command continues"
        )
