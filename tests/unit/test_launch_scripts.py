"""Launch scripts for pods and clusters, with fake commands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Keeps what the cloud would: the slice's state, and the training's statuses still to come.
GCLOUD = """#!/usr/bin/env bash
echo "$*" >> "$FAKE/calls"
case "$*" in
    *describe*) [ -e "$FAKE/state" ] && cat "$FAKE/state" || exit 1 ;;
    *" create "*) echo READY > "$FAKE/state" ;;
    *" delete "*) rm "$FAKE/state" ;;
    *scripts/train.py*)
        status=$(head -n 1 "$FAKE/statuses")
        sed -i 1d "$FAKE/statuses"
        [ "$status" = 255 ] && echo PREEMPTED > "$FAKE/state"
        exit "$status" ;;
esac
"""


@pytest.fixture
def fake(tmp_path):
    """Make a folder of fake commands that record their calls."""
    for name, text in {
        "gcloud": GCLOUD,
        "git": '#!/bin/sh\necho "git $*" >> "$FAKE/calls"\n',
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def run(fake: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{fake}:{os.environ['PATH']}", "FAKE": str(fake)}
    environment |= {"NAME": "pod", "ZONE": "z", "WAIT": "0", "BUCKET": "b"} | variables
    return subprocess.run(
        ["bash", *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def kinds(fake: Path) -> list[str]:
    """Return the recorded calls in order."""
    words = {"describe": "state", " create ": "create", " delete ": "delete", " scp ": "setup"}
    words |= {"scripts/train.py": "train"}
    lines = (fake / "calls").read_text().split("compute tpus tpu-vm")
    return [kind for line in lines for word, kind in words.items() if word in line]


def test_a_loop_survives_preemption_and_loss(fake):
    (fake / "statuses").write_text("75\n255\n143\n0\n")
    done = run(fake, "scripts/tpu/pod.sh", "loop", "--gin_file=a b.gin", "--workdir=/mnt/bucket/x")
    assert done.returncode == 0, done.stderr
    made = ["create", "setup"]
    assert kinds(fake) == [
        *("state", *made, "train"),
        *("state", "train"),  # a process was lost
        *("state", "delete", "state", *made, "train"),  # preempted
        *("state", "train"),
    ]
    calls = (fake / "calls").read_text()
    assert "--distributed --gin_file=a\\ b.gin --workdir=/mnt/bucket/x" in calls
    assert "gcsfuse --implicit-dirs b /mnt/bucket" in calls and "--spot" in calls


def test_a_loop_ends_on_an_error_of_the_command(fake):
    (fake / "state").write_text("READY\n")
    (fake / "statuses").write_text("2\n0\n")
    assert run(fake, "scripts/tpu/pod.sh", "loop", "--workdir=/x").returncode == 2
    assert kinds(fake) == ["state", "setup", "train"]


def test_a_loop_stops_after_repeated_failures(fake):
    (fake / "statuses").write_text("75\n" * 5)
    done = run(fake, "scripts/tpu/pod.sh", "loop", "--workdir=/x", TRIES="3")
    assert done.returncode == 75 and "gave up after 3 tries" in done.stderr
    assert kinds(fake).count("train") == 3


def test_an_unknown_argument_is_one_error_line(fake):
    done = run(fake, "scripts/tpu/pod.sh", "fly")
    assert done.returncode == 2 and done.stderr.startswith("error: fly: must be create, setup")


@pytest.mark.parametrize(
    ("status", "requeued"), [(0, False), (75, True), (137, True), (143, True), (2, False)]
)
def test_a_slurm_job_is_requeued_after_recoverable_errors(status, requeued, fake):
    (fake / "srun").write_text(
        f'#!/bin/sh\necho "$XLA_FLAGS $*" > "$FAKE/srun.txt"\nexit {status}\n'
    )
    (fake / "scontrol").write_text('#!/bin/sh\necho "$*" > "$FAKE/scontrol.txt"\n')
    for name in ("srun", "scontrol"):
        (fake / name).chmod(0o755)
    done = run(
        fake, "scripts/slurm/train.sbatch", "--workdir=/x", SLURM_JOB_ID="7", XLA_FLAGS="--mine"
    )
    assert done.returncode == (0 if requeued else status)
    recorded = (fake / "srun.txt").read_text()
    assert recorded.startswith("--xla_gpu_enable_latency_hiding_scheduler=true --mine")
    assert recorded.strip().endswith("scripts/train.py --distributed --workdir=/x")
    again = fake / "scontrol.txt"
    if requeued:
        last = run(fake, "scripts/slurm/train.sbatch", SLURM_JOB_ID="8", SLURM_RESTART_COUNT="20")
        assert last.returncode == status
    assert again.exists() == requeued and (not requeued or again.read_text() == "requeue 7\n")
