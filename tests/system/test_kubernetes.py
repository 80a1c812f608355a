"""The JobSet of scripts/kubernetes/jobset.sh trains with the processes of its pods."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

from mnmt_jax import Translator
from mnmt_jax.config.loading import save_config
from mnmt_jax.files.bucket import bucket_path, copy_files
from mnmt_jax.files.local_copies import FOLDER_VARIABLE
from tests.documents import start_python
from tests.fake_kubernetes import JobSet
from tests.made_bucket import serve
from tests.made_run import compiler_variables, make_cache, make_config, steps_of

ROOT = Path(__file__).resolve().parents[2]
STEPS = 4
STOPPED_STEPS = 6  # more than three after the second
BUCKET_VARIABLES = (
    "STORAGE_EMULATOR_HOST",
    "TENSORSTORE_GCS_HTTP_URL",
    "GOOGLE_CLOUD_PROJECT",
    "EPATH_USE_TF",
)
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


def print_jobset(image: Path, *flags: str) -> JobSet:
    """Return the JobSet of two pods that use a folder as their image."""
    variables = {"NAME": "mine", "IMAGE": "i", "HOSTS": "2", "GPUS": "1", "FOLDER": str(image)}
    done = subprocess.run(
        ["bash", ROOT / "scripts" / "kubernetes" / "jobset.sh", "print", *flags],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return JobSet.read(done.stdout)


def machine(folder: Path) -> dict[str, str]:
    """Return the variables of the image."""
    return {
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        **compiler_variables(),
    }


def metrics(text: str) -> list[dict]:
    """Return the lines of metrics.jsonl, which has one for every step."""
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["step"] for line in lines] == [*range(1, len(lines) + 1)]
    assert lines and all(len(line["batch_seconds"]["by_process"]) == 2 for line in lines)
    return lines


def test_pods_train_from_a_cache_in_a_bucket_to_a_run_there(tmp_path):
    """As in docs/scale.md; SIGTERM reaches the first pod once, and the pods start again."""
    changes = {"steps": STOPPED_STEPS, "log_every": 1, "eval_every": 6, "save_every": 6}
    config = make_config(make_cache(tmp_path / "cache"), train=changes)
    save_config(config, tmp_path / "run.gin")
    image = make_image(tmp_path / "image", "mine-hosts-0-0.mine:12355")
    with serve() as store:
        copy_files(tmp_path / "cache", bucket_path("gs://my-bucket/cache"))
        variables = {
            **{name: os.environ[name] for name in BUCKET_VARIABLES},
            FOLDER_VARIABLE: str(tmp_path / "copies"),
            "BATCH_RECORD": str(tmp_path / "batches"),
            "STOP_AFTER": "2",
        }
        jobs = print_jobset(
            image,
            *(f"--env={name}={value}" for name, value in variables.items()),
            "--module_import=tests.batch_record",
            f"--gin_file={tmp_path / 'run.gin'}",
            "--gin.Data.cache='gs://my-bucket/cache'",
            "--workdir=gs://my-bucket/runs/mine",
        )
        assert jobs.run(machine(tmp_path), tmp_path / "attempt") == ("Completed", 2)
        lines = metrics(store.objects["runs/mine/metrics.jsonl"][1].decode())
        assert len(lines) == STOPPED_STEPS
        shards = [name for name in store.read if "train-0" in name]
        assert len(shards) == len(set(shards)) > 0  # one copy for both pods and both starts
        assert Translator.load("gs://my-bucket/runs/mine").step == STOPPED_STEPS


def test_pods_train_together(tmp_path):
    changes = {"steps": STEPS, "log_every": 1, "eval_every": 4, "save_every": 4}
    config = make_config(make_cache(tmp_path / "cache"), train=changes)
    save_config(config, tmp_path / "run.gin")
    image = make_image(tmp_path / "image", "mine-hosts-0-0.mine:12355")
    flags = (f"--gin_file={tmp_path / 'run.gin'}", f"--workdir={tmp_path / 'run'}")
    jobs = print_jobset(image, *flags)
    assert jobs.run(machine(tmp_path), tmp_path / "attempt") == ("Completed", 1)
    assert steps_of(tmp_path / "run") == [STEPS]
    text = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    assert len(metrics(text)) == STEPS
