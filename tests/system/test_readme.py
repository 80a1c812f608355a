"""The commands of the README and the quickstart, as written, on models too small to learn."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mnmt_jax.evaluation.result import read_result
from tests.unit import made_text

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TINY = (
    "--gin.Model.stage_layers=(1,)",
    "--gin.Model.embed=16",
    "--gin.Model.mlp=24",
    "--gin.Model.heads=2",
    "--gin.Train.steps=2",
    "--gin.Optimizer.warmup_steps=1",
    "--gin.Decode.buckets=(48,)",
    "--gin.Decode.batch=8",
    "--gin.Decode.max_length=5",
)


def blocks(title: str) -> list[str]:
    """Returns the code blocks of a section of the README."""
    section = README.split(f"## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"```(?:python)?\n(.*?)```", section, flags=re.DOTALL)


def make_root(folder: Path, more: dict[str, tuple[str, ...]]) -> Path:
    """Makes a folder that looks like the repository and whose `python` adds flags to scripts."""
    (folder / "bin").mkdir()
    for name in ("scripts", "gin_configs"):
        (folder / name).mkdir()
        for path in (ROOT / name).iterdir():
            (folder / name / path.name).symlink_to(path)
    cases = "".join(
        f'scripts/{script}.py) set -- "$@" {shlex.join(flags)};;\n'
        for script, flags in {"train": TINY, **more}.items()
    )
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return folder


def shell(root: Path, commands: str) -> subprocess.CompletedProcess[str]:
    """Runs shell commands in a folder of `make_root`."""
    environment = os.environ | {
        "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        capture_output=True,
        text=True,
        cwd=root,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """The quickstart's folder, and what the script printed."""
    few = ("--directions", "en-de,en-fr,en-cs")
    more = {"cache_tasks": few, "evaluate": ("--limit", "1")}
    root = make_root(tmp_path_factory.mktemp("quickstart"), more)
    environment = root / "scripts" / "environment.sh"
    environment.unlink()  # it would install everything
    environment.write_text(f"prepare_environment() {{ python={root}/bin/python; }}\n")
    script = root / "scripts" / "quickstart.sh"
    script.unlink()  # it goes to the folder it is in
    script.write_text((ROOT / "scripts" / "quickstart.sh").read_text(encoding="utf-8"))
    return root, shell(root, "bash scripts/quickstart.sh").stdout


def test_the_quickstart_compares_two_models(quickstart):
    root, output = quickstart
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in output.splitlines()[:6]]
    assert rows[0][:4] == ["model", "steps", "seconds", "directions"]
    found = [(row[0], row[1], row[3]) for row in rows[2:]]
    names = ("prefix", "register")
    assert found == [(n, "2", "supervised (3)") for n in names] + [
        (n, "2", "zero-shot (9)") for n in names
    ]
    assert "Zero-shot translations, in directions never trained on" in output
    assert output.count("register") > 3 and "reference" in output
    assert f"Report: {'runs/quickstart'}/report/report.html" in output
    page = (root / "runs/quickstart/report/report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and "prefix" in page and "register" in page
    for name in names:
        result = read_result(root / "runs/quickstart" / name / "report")
        assert (result.name, result.layout, len(result.directions)) == (name, name, 12)
        assert {item.sentences for item in result.directions} == {1}


def test_the_quickstart_continues(quickstart):
    root, output = quickstart
    again = shell(root, "bash scripts/quickstart.sh")
    table = output.split("\n\n")[0]
    assert again.stdout.split("\n\n")[0] == table
    assert again.stderr.count("12 of 12 directions had been translated before") == 2


def test_the_readme_translates_with_the_quickstart(quickstart):
    root, _ = quickstart
    python, command, *_ = blocks("Translate")
    done = shell(root, command)
    assert done.stdout.count("\n") == 1
    done = shell(root, f"{root}/bin/python -c {shlex.quote(python)}")
    assert done.stdout.startswith("[") and done.stdout.count("\n") == 1


def test_the_readme_trains_on_files_of_ones_own(tmp_path):
    root = make_root(tmp_path, {"cache_tasks": ("--vocab_size", "60")})
    (root / "data").mkdir()
    for split, start, count in (("train", 1, 60), ("validation", 100, 6), ("test", 200, 3)):
        for code in ("en", "de", "fr"):
            text = "\n".join(made_text.sentences(code, count, start)) + "\n"
            (root / "data" / f"{split}.{code}").write_text(text, encoding="utf-8")
    commands = blocks("Train on your own text")[0]
    scripts = re.findall(r"^python scripts/(\w+)\.py", commands, flags=re.MULTILINE)
    assert scripts == ["cache_tasks", "train", "evaluate"]
    table = shell(root, commands).stdout.splitlines()
    assert "supervised (4)" in table[-2] and "zero-shot (2)" in table[-1]
    result = read_result(root / "runs/mine/register/report")
    assert (result.task, result.layout, result.step) == ("mine", "register", 2)
    assert {item.sentences for item in result.directions} == {3}
    infer = "python scripts/infer.py --run=runs/mine/register --source=de --target=fr"
    assert shell(root, f"printf 'drei Haus\\n\\neins\\n' | {infer}").stdout.count("\n") == 3
