"""`benchmarks/on_gpu.sh` with a fake interpreter: parts, and failures of single measurements."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Prints what it measures, and fails where a batch of the script in FAIL does not fit.
PYTHON = """#!/bin/sh
echo "$@"
case "$*" in *"$FAIL"*" --batch=256"*) exit 1 ;; esac
"""


@pytest.mark.parametrize("failing", ["", "benchmarks/peers.py", "benchmarks/decoding.py"])
def test_a_failed_measurement_fails_its_part_and_leaves_the_others(tmp_path, failing):
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", ROOT / "benchmarks" / "on_gpu.sh", tmp_path / "out", "decoding"],
        env=os.environ | {"PYTHON": str(python), "FAIL": failing or "nothing"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == bool(failing)
    assert f"== decoding: {'failed' if failing else 'done'}, " in done.stdout
    measured = [line.split()[0] for line in done.stdout.splitlines() if " --batch=" in line]
    assert measured == ["benchmarks/peers.py"] * 3 + ["benchmarks/decoding.py"] * 3


def test_all_names_of_parts_are_checked_before_the_first_one(tmp_path):
    done = subprocess.run(
        ["bash", ROOT / "benchmarks" / "on_gpu.sh", tmp_path / "out", "decoding", "blocs"],
        env=os.environ | {"PYTHON": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "") and not (tmp_path / "out").exists()
    assert done.stderr.startswith("error: blocs: no such part;") and done.stderr.count("\n") == 1
