"""Extras of setup.cfg: their requirements parse, and a script resolves each of them."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
METADATA = configparser.ConfigParser()
METADATA.read(ROOT / "setup.cfg", encoding="utf-8")
EXTRAS = tuple(METADATA["options.extras_require"])

# An interpreter that logs what pip is asked for and fails for one extra.
STUB = """#!/usr/bin/env bash
case "$1 ${2:-}" in
    "-c "*) exit 0 ;;
    "- ") exec REAL - ;;
    "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip") echo "$*" >> LOG; case "$*" in *"[BROKEN]"*) echo "no numpy" >&2; exit 1 ;; esac ;;
esac
"""


def requirements(extra: str) -> list[Requirement]:
    lines = METADATA["options.extras_require"][extra].splitlines()
    return [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize("extra", EXTRAS)
def test_requirements_parse_and_have_a_bound(extra):
    parsed = requirements(extra)
    assert parsed and all(one.specifier for one in parsed if one.name != "setuptools")


def test_extras_are_compatible_with_the_required_packages():
    """Some packages need another NumPy in all releases; upper bounds must allow a solution."""
    base = {r.name: r for r in map(Requirement, METADATA["options"]["install_requires"].split())}
    assert not base["numpy"].specifier.contains("1.26.4")
    for extra in EXTRAS:
        names = {one.name.lower() for one in requirements(extra)}
        assert not names & {"unbabel-comet", "bert-score"}, extra  # mnmt metrics setup


def run_script(tmp_path, broken, *arguments):
    stub, log = tmp_path / "python", tmp_path / "log"
    text = STUB.replace("REAL", sys.executable).replace("LOG", str(log))
    stub.write_text(text.replace("BROKEN", broken), encoding="utf-8")
    stub.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(stub), "TMPDIR": str(tmp_path)}
    command = ["bash", str(ROOT / "scripts" / "test_extras.sh"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    calls = log.read_text(encoding="utf-8").splitlines()
    resolved = [re.search(r"--dry-run .*\.\[(.*)\]$", call) for call in calls]
    return done, [match[1] for match in resolved if match]


def test_the_script_resolves_every_extra_of_setup_cfg(tmp_path):
    done, resolved = run_script(tmp_path, "none")
    assert done.returncode == 0, done.stderr
    assert resolved == list(EXTRAS)


def test_the_script_names_unresolvable_extras_and_continues(tmp_path):
    done, resolved = run_script(tmp_path, "parquet", "parquet", "po")
    assert done.returncode == 1 and resolved == ["parquet", "po"]
    assert "no numpy" in done.stderr
    assert "error: mnmt-jax[parquet] cannot be installed" in done.stderr


def test_messages_name_extras_that_exist():
    package = ROOT / "mnmt_jax"
    code = "\n".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    named = set(re.findall(r"""install_remedy\(["']([\w-]+)["']\)""", code))
    assert len(named) > 10
    assert named <= {*EXTRAS}
    written = re.findall(r"pip install ['\"]?(?:mnmt-jax|\.)", code)
    assert written == ["pip install '."]  # in `install_remedy`


def test_pages_install_extras_from_a_clone():
    """The package is on no index."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert not [page for page in pages if "mnmt-jax[" in page.read_text(encoding="utf-8")]
