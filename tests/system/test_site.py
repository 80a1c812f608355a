"""The documentation site: a strict build, which a broken link or an unlisted page fails."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from mnmt_jax.commands.mnmt import COMMANDS
from mnmt_jax.config.sections import SECTIONS
from tests.run_commands import ROOT

pytest.importorskip("mkdocs", reason="mkdocs is not installed (the extra docs)")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


def test_the_reference_holds_every_command_and_section(site):
    commands = (site / "reference/commands.html").read_text("utf-8")
    assert all(f"mnmt {name}" in commands for name in COMMANDS)
    keys = (site / "reference/gin.html").read_text("utf-8")
    assert all(section.__name__ in keys for section in SECTIONS.values())
    assert "<svg" in (site / "reference/masks.html").read_text("utf-8")


def test_nothing_is_loaded_from_elsewhere(site):
    page = (site / "index.html").read_text("utf-8")
    assert "fonts.googleapis" not in page and 'src="http' not in page


def test_an_undocumented_name_is_found(tmp_path):
    spec = importlib.util.spec_from_file_location("site_hook", ROOT / "scripts/site/hook.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text('"""A."""\nclass B:\n    """B."""\n    def c(self): ...\n')
    assert hook.undocumented_names(package) == ["package/a.py: B.c"]
    links = hook.linked_files("methods.md", "[a](../README.md) [b](../setup.cfg#L3) [c](data.md)")
    assert links == {"setup.cfg"}


def test_the_notebook_runs(monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    notebook = nbformat.read(ROOT / "docs" / "tour.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in code[1:]), "commit it executed"
    runner = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
    runner.execute(cwd=str(ROOT))
    assert "'" in code[-1].outputs[-1]["data"]["text/plain"]
