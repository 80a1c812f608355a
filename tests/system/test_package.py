"""The installed package: one command, the gin files, and nothing of the checkout."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from mnmt_jax import __version__
from mnmt_jax.commands.mnmt import COMMANDS
from tests import made_pages
from tests.documents import ROOT, commands, shortening
from tests.run_commands import SCRIPTS

PACKAGED = (
    "mnmt_jax",
    "docs",
    "gin_configs",
    "setup.py",
    "setup.cfg",
    "pyproject.toml",
    "MANIFEST.in",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel beside a source distribution, in a folder with an earlier build."""
    source = tmp_path_factory.mktemp("source")
    for name in (*PACKAGED, "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    stale = source / "build" / "lib" / "mnmt_jax" / "seqio_tasks.py"
    stale.parent.mkdir(parents=True)
    stale.touch()  # of an earlier version
    build = [sys.executable, "-m", "build", "--sdist", "--wheel", "--no-isolation", str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (actual,) = (source / "dist").glob("*.whl")
    return actual


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """Return the `bin` of an environment with the package and this suite's dependencies."""
    place = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    # A path in a .pth file brings no other .pth files: not that of the checkout's installation.
    (packages / "suite.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return python.parent


def run(installed: Path, folder: Path, *command: str, text: str = "") -> str:
    path = f"{installed}{os.pathsep}{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"PATH": path, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [str(installed / command[0]), *command[1:]],
        input=text,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_wheel_contains_only_the_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "mnmt_jax",
        f"mnmt_jax-{__version__}.dist-info",
    }
    kept = {
        str(path.relative_to(ROOT)).replace("gin_configs/", "mnmt_jax/gin_configs/")
        for folder in ("gin_configs", "mnmt_jax")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".gin", ".py", ".toml", ".typed")
        or path.name == "Snakefile"
        or path.parent.name == "page"
    }
    kept |= {f"mnmt_jax/docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert {name for name in names if not name.startswith(f"mnmt_jax-{__version__}")} == kept
    (metadata,) = (name for name in names if name.endswith("/METADATA"))
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    required = [line for line in text.splitlines() if line.startswith("Requires-Dist")]
    assert len(required) > 15 and not any("git+" in line or "://" in line for line in required)


def test_the_installed_package_is_imported(installed, tmp_path):
    printed = run(installed, tmp_path, "python", "-c", "import mnmt_jax; print(mnmt_jax.__file__)")
    assert Path(printed.strip()).is_relative_to(installed.parent)
    assert run(installed, tmp_path, "mnmt", "--version").startswith(f"mnmt-jax {__version__}, jax ")


def test_help_lists_the_commands(installed, tmp_path):
    printed = run(installed, tmp_path, "mnmt", "--help")
    assert all(f"  {name} " in printed for name in COMMANDS)
    assert "usage: mnmt train" in run(installed, tmp_path, "mnmt", "train", "--help")


def test_pages_named_in_messages_are_installed(installed, tmp_path):
    code = "from mnmt_jax.errors import docs_page; print(docs_page('graft.md'))"
    page = Path(run(installed, tmp_path, "python", "-c", code).strip())
    assert page.is_file() and page.is_relative_to(installed.parent)


def test_bash_completion_of_commands_flags_and_files(installed, tmp_path):
    (tmp_path / "some.gin").touch()
    script = run(installed, tmp_path, "mnmt", "--completion", "bash")
    words = {"tr": {"train", "translate"}, "train --work": {"--workdir"}}
    words["train --gin_file so"] = words["evaluate --run so"] = {"some.gin"}
    for typed, expected in words.items():
        line = f"COMP_WORDS=(mnmt {typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shtab_mnmt"
        shown = ["bash", "-c", f"{script}\n{line}; printf '%s\\n' \"${{COMPREPLY[@]}}\""]
        done = subprocess.run(shown, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert {*done.stdout.split()} == expected, typed


def test_readme_commands_in_an_empty_folder(installed, tmp_path):
    """Run the three commands of "Train on your own text" and its Python lines as written."""
    made_pages.own_text(tmp_path)
    page = commands("README.md")
    for name in ("cache", "train", "evaluate"):
        (text,) = (one.text for one in page if one.text.startswith(f"mnmt {name} "))
        words = shlex.split(text.replace("\\\n", " "), comments=True)
        given = [SCRIPTS[name], *words[2:]]
        printed = run(installed, tmp_path, *words, *shortening(given))
    assert "zero-shot (2)" in printed
    (python,) = (one.text for one in page if one.language == "python")
    python = python.replace("runs/quickstart/", "runs/mine/")
    assert run(installed, tmp_path, "python", "-c", python).startswith("[")
