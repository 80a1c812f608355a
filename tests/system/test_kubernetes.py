"""The JobSet of scripts/kubernetes/jobset.sh trains with the processes of its pods."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

from mnmt_jax.config.loading import save_config
from tests.documents import start_python
from tests.fake_kubernetes import JobSet
from tests.made_run import compiler_variables, make_cache, make_config, steps_of

ROOT = Path(__file__).resolve().parents[2]
STEPS = 4
# The pods of a cluster find one another by names, those of this machine by a port.
PYTHON = """#!/usr/bin/env bash
set -- "${{@/{address}/localhost:{port}}}"
{start}
"""


def make_image(folder: Path, address: str) -> Path:
    """Make a folder like the checkout in an image, on whose machine an address is another."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.format(address=address, port=port, start=start_python()))
    python.chmod(0o755)
    (folder / "scripts").symlink_to(ROOT / "scripts")
    return folder


def test_pods_train_together(tmp_path):
    changes = {"steps": STEPS, "log_every": 1, "eval_every": 4, "save_every": 4}
    config = make_config(make_cache(tmp_path / "cache"), train=changes)
    save_config(config, tmp_path / "run.gin")
    image = make_image(tmp_path / "image", "mine-hosts-0-0.mine:12355")
    variables = {"NAME": "mine", "IMAGE": "i", "HOSTS": "2", "GPUS": "1", "FOLDER": str(image)}
    flags = (f"--gin_file={tmp_path / 'run.gin'}", f"--workdir={tmp_path / 'run'}")
    done = subprocess.run(
        ["bash", ROOT / "scripts" / "kubernetes" / "jobset.sh", "print", *flags],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    jobs = JobSet.read(done.stdout)
    environment = {
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        **compiler_variables(),
    }
    assert jobs.run(environment, tmp_path / "attempt") == ("Completed", 1)
    assert steps_of(tmp_path / "run") == [STEPS]
    text = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["step"] for line in lines] == [*range(1, STEPS + 1)]
    assert all(len(line["batch_seconds"]["by_process"]) == 2 for line in lines)
