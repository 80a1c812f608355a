"""Commands of SLURM for tests: jobs run at once on this machine, and their flags are written down.

The folder in `FAKE_SLURM` holds a file for each job: `ID.json` with name, flags and state.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

JOBS = Path(os.environ.get("FAKE_SLURM", "fake_slurm"))
PATIENCE = 30  # Snakemake gives up a query after 60
COMMANDS = ("sbatch", "sacct", "srun", "scancel", "scontrol", "sinfo", "sacctmgr", "sshare")
SNAKEMAKE_ARGUMENTS = (
    *("--executor", "slurm", "--jobs", "2", "--slurm-init-seconds-before-status-checks", "1"),
    *("--default-resources", "slurm_partition=gpus", "slurm_account=lab"),
)


def put_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the commands into `folder` and put them first on `PATH`; return the folder of jobs."""
    commands, jobs = folder / "bin", folder / "jobs"
    commands.mkdir(parents=True, exist_ok=True)
    for name in COMMANDS:
        command = commands / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(jobs))
    return jobs


def sbatch(arguments: list[str]) -> int:
    """Write down a job, start it in the background and print its number."""
    JOBS.mkdir(parents=True, exist_ok=True)
    number = len(list(JOBS.glob("*.json"))) + 1
    flags = dict(_flags(arguments))
    script = flags.pop("wrap", None) or sys.stdin.read()
    _write(number, {"name": flags.get("job-name", ""), "flags": flags, "state": "RUNNING"})
    log = Path(flags.get("output", "/dev/null").replace("%j", str(number)))
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        subprocess.Popen(
            [sys.executable, __file__, "run", str(number), script],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    print(number)
    return 0


def run(arguments: list[str]) -> int:
    """Run the script of a job, and write its state down."""
    number, script = arguments
    environment = os.environ | {"SLURM_JOB_ID": number, "SLURM_CPUS_ON_NODE": "1"}
    status = subprocess.run(["bash", "-c", script], env=environment, check=False).returncode
    job = json.loads((JOBS / f"{number}.json").read_text(encoding="utf-8"))
    _write(int(number), job | {"state": "FAILED" if status else "COMPLETED"})
    return status


def sacct(arguments: list[str]) -> int:
    """Print `ID|STATE` of the jobs of a name, once they have ended or `PATIENCE` seconds later.

    Snakemake waits ten seconds more before it asks again for a job that is still running.
    """
    name = dict(_flags(arguments)).get("name")
    deadline = time.monotonic() + PATIENCE
    while _is_running(name) and time.monotonic() < deadline:
        time.sleep(0.1)
    for path in sorted(JOBS.glob("*.json"), key=lambda file: int(file.stem)):
        job = json.loads(path.read_text(encoding="utf-8"))
        if job["name"] == name:
            print(f"{path.stem}|{job['state']}")
    return 0


def _is_running(name: str | None) -> bool:
    jobs = (json.loads(path.read_text(encoding="utf-8")) for path in JOBS.glob("*.json"))
    return any(job["name"] == name and job["state"] == "RUNNING" for job in jobs)


def srun(arguments: list[str]) -> int:
    """Run the command after the flags."""
    while arguments and arguments[0].startswith("-"):
        arguments = arguments[1:] if "=" in arguments[0] or arguments[0] == "-n1" else arguments[2:]
    return subprocess.run(arguments, check=False).returncode


def _flags(arguments: list[str]) -> list[tuple[str, str]]:
    """Return (name, value) of the flags; a flag without a value has an empty one."""
    flags = []
    for position, word in enumerate(arguments):
        if word.startswith("-"):
            name, separator, value = word.lstrip("-").partition("=")
            following = arguments[position + 1 : position + 2]
            if not separator and following and not following[0].startswith("-"):
                value = following[0]
            flags.append((name, value))
    return flags


def _write(number: int, job: dict) -> None:
    partial = JOBS / f"{number}.partial"
    partial.write_text(json.dumps(job), encoding="utf-8")
    partial.rename(JOBS / f"{number}.json")


if __name__ == "__main__":
    commands = {"sbatch": sbatch, "run": run, "sacct": sacct, "srun": srun}
    sys.exit(commands.get(sys.argv[1], lambda _: 0)(sys.argv[2:]))
