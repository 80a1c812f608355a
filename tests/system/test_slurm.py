"""scripts/slurm/train.sbatch with a fake SLURM: two tasks train, and the job is requeued."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from mnmt_jax.config.loading import save_config
from tests.batch_record import ROWS
from tests.documents import start_python
from tests.fresh_process import PATIENCE
from tests.made_run import compiler_variables, make_cache, make_config, steps_of

ROOT = Path(__file__).resolve().parents[2]
STEPS = 8
STOP_AFTER = 3
_FIRST_PORT = 65536 - 4096  # JAX adds the job's number modulo 4096
# Starts the tasks with the variables of SLURM that JAX reads, and ends with their highest status.
SRUN = f"""#!{sys.executable}
import os, subprocess, sys
flags = [word for word in sys.argv[1:] if word.startswith("-")][:1]
if flags != ["--kill-on-bad-exit=0"] or not sys.argv[2].endswith("python"):
    sys.exit(f"srun: {{sys.argv}}")
count = int(os.environ["SLURM_NTASKS"])
tasks = []
for number in range(count):
    task = {{"SLURM_PROCID": str(number), "SLURM_LOCALID": str(number)}}
    step = {{"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_NODES": "1"}}
    tasks.append(subprocess.Popen(sys.argv[2:], env=os.environ | task | step))
sys.exit(max(task.wait() for task in tasks))
"""
SCONTROL = '#!/bin/sh\n[ "$1" = requeue ] && [ $# = 2 ] && echo "$2" >> "$FAKE/requeued"\n'


def write_commands(folder: Path) -> None:
    python = f"#!/bin/sh\n{start_python()}\n"
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "python": python}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def free_job() -> int:
    """Return a job number whose port for the processes is free."""
    for number in range(1, 4096):
        with socket.socket() as free:
            if free.connect_ex(("localhost", _FIRST_PORT + number)):
                return number
    raise AssertionError("no port is free")


def run_job(fake: Path, job: int, start: int, *flags: str, **variables: str) -> str:
    """Run the job's script as SLURM does at a start; return what it printed."""
    environment = {
        "PATH": f"{fake}:{os.environ['PATH']}",
        "HOME": str(fake),
        "FAKE": str(fake),
        "PYTHON": str(fake / "python"),
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        **compiler_variables(),
        "SLURM_JOB_ID": str(job),
        "SLURM_NTASKS": "2",
        "SLURM_RESTART_COUNT": str(start),
        **variables,
    }
    done = subprocess.run(
        ["bash", "scripts/slurm/train.sbatch", *flags],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_job_is_requeued_after_sigterm_and_completes_its_run(tmp_path):
    """SIGTERM reaches one task; both save at the same update and end with 143."""
    write_commands(tmp_path)
    changes = {"steps": STEPS, "log_every": 1, "eval_every": 8, "save_every": 8}
    config = make_config(
        make_cache(tmp_path / "cache"),
        data={"rows": ROWS, "chunk_examples": 1800, "max_segments": 2},
        train=changes,
    )
    save_config(config, tmp_path / "run.gin")
    run = tmp_path / "run"
    flags = (f"--gin_file={tmp_path / 'run.gin'}", f"--workdir={run}")
    job = free_job()
    stop = {"BATCH_RECORD": str(tmp_path / "batches"), "STOP_AFTER": str(STOP_AFTER)}
    said = run_job(
        tmp_path, job, 0, *flags, "--module_import=tests.batch_record", STOP_PROCESS="1", **stop
    )
    (stopped_at,) = steps_of(run)
    assert STOP_AFTER <= stopped_at < STEPS
    assert f"{signal.SIGTERM.name}: {run} is at step {stopped_at} of {STEPS}" in said
    assert (tmp_path / "requeued").read_text() == f"{job}\n"
    said = run_job(tmp_path, job, 1, *flags)
    assert f"continues at step {stopped_at}" in said and f"complete: {run} is at step" in said
    assert (tmp_path / "requeued").read_text() == f"{job}\n"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(1, STEPS + 1)]
    assert all(len(line["batch_seconds"]["by_process"]) == 2 for line in lines)
