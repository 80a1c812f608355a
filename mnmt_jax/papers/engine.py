"""Snakemake as the engine of a workflow: it decides which steps are missing, and runs them."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from mnmt_jax.data.published_corpora import DATA_VARIABLE
from mnmt_jax.errors import UserError, install_remedy
from mnmt_jax.files.atomic_write import lock, write_text
from mnmt_jax.papers.steps import RESOURCES, Step, differing_words

_EXECUTORS = ("local", "dryrun", "touch")  # of Snakemake itself
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

    The folder is locked while this process or Snakemake lives. Snakemake's own locks would survive
    a killed process, and then refuse to continue.

    Args:
        steps: all steps.
        targets: names of the steps that must be done.
        name: name of the plan's file.
        output: folder of the workflow.
        data: folder of the corpora, `MNMT_JAX_DATA`.
        cores: number of steps that run at a time on this machine.
        arguments: further arguments of Snakemake, e.g. `--executor slurm`.

    Raises:
        UserError: if Snakemake is not installed, another process works in the folder, a step was
            done by another command, or a step fails.
    """
    if importlib.util.find_spec("snakemake") is None:
        raise UserError(f"Snakemake is not installed; {install_remedy('papers')}")
    check_executor(arguments)
    check_finished(steps, output)
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
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE)]
    command += ["--directory", str(output), "--config", f"plan={plan.resolve()}"]
    command += ["--cores", str(cores), "--rerun-incomplete", "--rerun-triggers", "mtime"]
    command += ["--keep-going", "--printshellcmds", "--nolock", *arguments]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    environment = {**os.environ, DATA_VARIABLE: str(data.resolve()), "PATH": path}
    with (plan.parent / "lock").open("a+", encoding="utf-8") as file:
        file.seek(0)
        if not lock(file):
            raise UserError(
                f"{output}: Snakemake works in this folder, process {file.read().strip()}, also if "
                "its 'mnmt reproduce' was killed; wait for its end, or choose another --output"
            )
        write_text(plan, json.dumps(facts, indent=1) + "\n")
        start = time.time()
        process = subprocess.Popen(command, env=environment, pass_fds=(file.fileno(),))
        file.truncate(0)
        print(process.pid, file=file, flush=True)
        status = process.wait()
    if status:
        raise UserError(f"{output}: {_describe_failure(steps, output, start, status)}")


def finished_steps(steps: Iterable[Step], output: Path) -> list[str]:
    """Return the names of the steps that are done in the folder of a workflow."""
    return [step.name for step in steps if _done_file(step.name, output).is_file()]


def _done_file(name: str, output: Path) -> Path:
    """Return the file that a finished step leaves, with its command."""
    return output / "done" / name


def check_finished(steps: Sequence[Step], output: Path) -> None:
    """Check that finished steps were done by the commands that are planned now.

    Raises:
        UserError: naming the first that was not. Files without a command, of earlier versions, are
            not checked.
    """
    finished = {*finished_steps(steps, output)}
    for step in steps:
        if step.name not in finished:
            continue
        file = _done_file(step.name, output)
        remedy = "choose another --output, or remove this file and what the step made"
        try:
            words = shlex.split(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{file}: damaged ({error}); {remedy}") from error
        if words and (difference := differing_words(tuple(words), step.command)):
            before, now = difference
            raise UserError(
                f"{file}: this step was done with {before}, and now has {now}; {remedy}; if that "
                "makes no difference, empty this file: only the steps after it are repeated"
            )


def check_executor(arguments: Sequence[str]) -> None:
    """Check that the plugin of `--executor NAME` is installed.

    Raises:
        UserError: if it is not.
    """
    names = [value for flag, value in itertools.pairwise(arguments) if flag == "--executor"]
    names += [word.partition("=")[2] for word in arguments if word.startswith("--executor=")]
    for name in names:
        module = f"snakemake_executor_plugin_{name.replace('-', '_')}"
        if name not in _EXECUTORS and importlib.util.find_spec(module) is None:
            raise UserError(f"--executor {name}: pip install snakemake-executor-plugin-{name}")


def _describe_failure(steps: Sequence[Step], output: Path, start: float, status: int) -> str:
    """Return which steps failed after a time, with the last line of the first one's log."""
    done = finished_steps(steps, output)
    logs = {step.name: output / "logs" / f"{step.name}.log" for step in steps}
    failed = {
        name: log
        for name, log in logs.items()
        if name not in done and log.is_file() and log.stat().st_mtime >= start - 1
    }
    if not failed:
        return f"Snakemake ended with status {status}; its message is above, no step failed"
    (name, log), *others = failed.items()
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    more = f" (and {len(others)} more failed)" if others else ""
    return f"{name} failed{more}: {last} [{log}]; once mended, the same command continues"
