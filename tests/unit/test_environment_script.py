"""`scripts/environment.sh` installs each set of extras once, and repairs what was interrupted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "environment.sh"
# Pythons that write down what they are called with. The folder has the files `pip` if pip is in the
# environment, `bundled` if it can be added, `offline` if it cannot install anything.
PYTHON = """#!/bin/sh
echo "$@" >> calls.txt
case "$*" in
    "-m pip --version") test -e pip ;;
    "-m ensurepip") test -e bundled && touch pip ;;
    "-m pip install"*) test ! -e offline ;;
esac
"""
SYSTEM_PYTHON = """#!/bin/sh
echo "$@" >> calls.txt
case "$*" in
    "-m venv .venv")
        mkdir -p .venv/bin
        cp python .venv/bin/python
        test -e bundled && touch pip ;;
esac
"""


@pytest.fixture
def project(tmp_path) -> Path:
    """Return a folder with an environment whose Python writes down what it is called with."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for path, text in {
        ".venv/bin/python": PYTHON,
        "python": PYTHON,
        "system": SYSTEM_PYTHON,
    }.items():
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    for name in ("pip", "bundled"):
        (tmp_path / name).touch()
    (tmp_path / "setup.cfg").write_text("one\n")
    return tmp_path


def prepare(project: Path, script: str, shell: str = "bash") -> subprocess.CompletedProcess[str]:
    """Run a script that has sourced the file, with `system` as Python."""
    (project / "calls.txt").write_text("")
    return subprocess.run(
        [shell, "-c", f". {SCRIPT}; {script}"],
        cwd=project,
        env=os.environ | {"PYTHON": "./system"},
        capture_output=True,
        text=True,
        check=False,
    )


def calls(project: Path) -> list[str]:
    return (project / "calls.txt").read_text().splitlines()


def installations(project: Path, *extras: str) -> list[str]:
    """Prepare the environment with each of the extras; return what was installed."""
    commands = [f"prepare_environment '{one}'" for one in extras]
    done = prepare(project, "; ".join(["set -euo pipefail", *commands, 'test -x "$python"']))
    assert done.returncode == 0, done.stderr
    return [line.split()[-1] for line in calls(project) if line.startswith("-m pip install")]


def test_extras_include_the_plain_installation(project):
    assert installations(project, "[test]", "", "[test]") == [".[test]"]
    (project / "setup.cfg").write_text("another\n")
    assert installations(project, "", "", "[test]", "[docs]") == [".", ".[test]", ".[docs]"]


def test_a_finished_installation_starts_no_python(project):
    assert installations(project, "[test]") == [".[test]"]
    assert prepare(project, "prepare_environment '[test]'").returncode == 0
    assert calls(project) == []


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_failed_installation_is_no_success_and_tried_again(project, shell):
    """Without `set -e`, as in the image of Kubernetes and on the hosts of a TPU."""
    (project / "offline").touch()
    assert prepare(project, "prepare_environment '[tpu,gcs]'", shell).returncode == 1
    assert not list((project / ".venv").glob("installed*"))
    (project / "offline").unlink()
    assert installations(project, "[tpu,gcs]") == [".[tpu,gcs]"]


def test_an_interrupted_environment_gets_its_pip(project):
    (project / "pip").unlink()
    assert installations(project, "[test]") == [".[test]"]
    assert "-m ensurepip" in calls(project) and "-m venv .venv" not in calls(project)


def test_an_environment_that_cannot_get_pip_is_one_error(project):
    for name in ("pip", "bundled"):
        (project / name).unlink()
    done = prepare(project, "prepare_environment '[test]'")
    assert done.returncode == 1 and "remove .venv" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_failed_environment_is_made_again(project):
    """Debian's Python without python3-venv leaves an interpreter without pip."""
    (project / ".venv").rename(project / "old")
    for name in ("pip", "bundled"):
        (project / name).unlink()
    done = prepare(project, "prepare_environment '[test]'")
    assert done.returncode == 1 and "error: ./system cannot make .venv" in done.stderr
    assert not any("pip install" in call for call in calls(project))
    (project / "bundled").touch()
    assert installations(project, "[test]") == [".[test]"]
    assert "-m venv .venv" in calls(project)


def test_no_python_is_status_2(project):
    (project / ".venv").rename(project / "old")
    done = prepare(project, "PYTHON=none PATH=$PWD:/none; prepare_environment '[test]'")
    assert done.returncode == 2 and "error: no Python 3.11" in done.stderr
