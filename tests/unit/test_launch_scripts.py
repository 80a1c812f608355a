"""Launch scripts for pods and clusters, with fake commands."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.fake_gcloud import write_command

ROOT = Path(__file__).resolve().parents[2]
PHASES = {"describe": "state", "create": "create", "delete": "delete", "scp": "setup"}


@pytest.fixture
def fake(tmp_path):
    """Make a folder of fake commands that record their calls."""
    write_command(tmp_path)
    (tmp_path / "git").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "git").chmod(0o755)
    return tmp_path


def run(fake: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{fake}:{os.environ['PATH']}", "FAKE": str(fake)}
    environment |= {"NAME": "pod", "ZONE": "z", "WAIT": "0", "BUCKET": "b"} | variables
    return subprocess.run(
        ["bash", *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def calls(fake: Path) -> list[str]:
    """Return the recorded calls, each with its lines joined."""
    text = (fake / "calls").read_text()
    return [
        line.replace("\n", " ") for line in re.split(r"^(?=tpu-vm|queued-res)", text, flags=re.M)
    ][1:]


def kinds(fake: Path) -> list[str]:
    """Return the kinds of the recorded calls in order."""
    phases = []
    for call in calls(fake):
        verb = call.split()[1]
        if verb != "ssh":
            phases.append(PHASES[verb])
        elif "train.py --distributed" in call:
            phases.append("train")
    return phases


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
    recorded = (fake / "trainings").read_text().splitlines()
    assert len(recorded) == 4 * 5 and "xla_jf_spmd_threshold" in recorded[0]
    expected = [
        "scripts/train.py",
        "--distributed",
        "--gin_file=a b.gin",
        "--workdir=/mnt/bucket/x",
    ]
    assert recorded[1:5] == expected
    everything = " ".join(calls(fake))
    assert "gcsfuse --implicit-dirs b /mnt/bucket" in everything and "--spot" in everything


@pytest.mark.parametrize(
    ("slices", "nodes"), [("1", "--node-id=pod"), ("4", "--node-count=4 --node-prefix=pod")]
)
def test_a_loop_waits_for_a_queued_resource(slices, nodes, fake):
    """The request waits, is granted, is preempted and made again; waiting is no try."""
    (fake / "statuses").write_text("75\n255\n0\n")
    done = run(fake, "scripts/tpu/pod.sh", "loop", "--workdir=gs://b/x", SLICES=slices, TRIES="3")
    assert done.returncode == 0, done.stderr
    granted = ["state", "create", "state", "state", "state", "setup", "train"]
    assert kinds(fake) == [*granted, "state", "train", "state", "delete", *granted]
    assert all(call.startswith("queued-resources ") for call in calls(fake))
    (first, _) = (call for call in calls(fake) if " create " in call)
    assert f"--runtime-version=v2-alpha-tpuv5-lite {nodes} --spot" in first


def test_a_loop_gives_up_a_request_that_is_refused(fake):
    (fake / "refuses").touch()
    done = run(fake, "scripts/tpu/pod.sh", "loop", "--workdir=/x", SLICES="2", TRIES="3")
    assert done.returncode == 75 and "gave up after 3 tries" in done.stderr
    assert kinds(fake) == ["state", *["create", "state", "delete", "state"] * 3][:-1]


def test_a_loop_ends_on_an_error_of_the_command(fake):
    (fake / "state").write_text("READY")
    (fake / "statuses").write_text("2\n0\n")
    assert run(fake, "scripts/tpu/pod.sh", "loop", "--workdir=/x").returncode == 2
    assert kinds(fake) == ["state", "setup", "train"]


def without_python(fake: Path) -> None:
    """Take the environment and every supported Python from the host."""
    (fake / "host" / "mnmt-jax" / ".venv").rename(fake / "taken")
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        (fake / name).write_text("#!/bin/sh\nexit 1\n")
        (fake / name).chmod(0o755)


def test_a_loop_ends_if_the_hosts_have_no_python(fake):
    (fake / "state").write_text("READY")
    without_python(fake)
    done = run(fake, "scripts/tpu/pod.sh", "loop", "--workdir=/x", PYTHON="/usr/lib/none")
    assert done.returncode == 2 and "install one or set PYTHON=" in done.stderr
    assert kinds(fake) == ["state", "setup"]


def test_setup_installs_a_python_and_is_told_its_path(fake):
    """SETUP runs in the checkout on each host; PYTHON is a path there, with a space."""
    (fake / "state").write_text("READY")
    without_python(fake)
    python = fake / "my python"
    python.write_text(
        '#!/bin/sh\n[ "$1" = -m ] || exit 0\necho "$@" >> "$FAKE/made"\n'
        'mkdir -p .venv/bin && cp "$FAKE/taken/bin/python" .venv/bin/python\n'
    )
    setup = f"test -e setup.cfg && chmod +x '{python}'"
    done = run(fake, "scripts/tpu/pod.sh", "setup", SETUP=setup, PYTHON=str(python))
    assert done.returncode == 0, done.stderr
    assert (fake / "made").read_text() == "-m venv .venv\n"
    assert list((fake / "host" / "mnmt-jax" / ".venv").glob("installed[[]tpu,gcs[]]-*"))


@pytest.mark.parametrize("status", [2, 100])  # 2 is that of hosts without Python
def test_a_loop_tries_a_failed_setup_again(status, fake):
    (fake / "state").write_text("READY")
    (fake / "statuses").write_text("0\n")
    setup = f'test -e "$FAKE/installed" || {{ touch "$FAKE/installed"; exit {status}; }}'
    done = run(fake, "scripts/tpu/pod.sh", "loop", "--workdir=/x", SETUP=setup)
    assert done.returncode == 0 and "setup: status 1: trying again" in done.stderr
    assert kinds(fake) == ["state", "setup", "state", "setup", "train"]


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


def test_a_slurm_job_asks_for_a_signal_before_its_end():
    """`srun` forwards it to the processes, which have two minutes to save."""
    text = (ROOT / "scripts" / "slurm" / "train.sbatch").read_text(encoding="utf-8")
    directives = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", text, re.MULTILINE))
    assert len(directives) == text.count("#SBATCH")
    assert directives.pop("output").endswith("-%j.txt") and directives.pop("job-name")
    assert directives == {
        "time": "24:00:00",
        "signal": "TERM@120",
        "requeue": "",
        "open-mode": "append",
    }
