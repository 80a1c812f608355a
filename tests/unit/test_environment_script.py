"""`scripts/environment.sh` installs each set of extras once, and again for another setup.cfg."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "environment.sh"


@pytest.fixture
def project(tmp_path) -> Path:
    """Return a folder with an environment whose Python writes down what it is called with."""
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@" >> calls.txt\n')
    python.chmod(0o755)
    (tmp_path / "setup.cfg").write_text("one\n")
    return tmp_path


def installations(project: Path, *extras: str) -> list[str]:
    """Prepare the environment with each of the extras; return what was installed."""
    (project / "calls.txt").write_text("")
    commands = [f"prepare_environment '{one}'" for one in extras]
    script = "; ".join(["set -euo pipefail", f". {SCRIPT}", *commands, 'test -x "$python"'])
    subprocess.run(["bash", "-c", script], cwd=project, check=True, capture_output=True)
    return [line.split()[-1] for line in (project / "calls.txt").read_text().splitlines()]


def test_extras_include_the_plain_installation(project):
    assert installations(project, "[test]", "", "[test]") == [".[test]"]
    (project / "setup.cfg").write_text("another\n")
    assert installations(project, "", "", "[test]", "[docs]") == [".", ".[test]", ".[docs]"]
