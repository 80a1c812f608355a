"""The documentation site: a strict build, which a broken link or an unlisted page fails."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from collections import Counter

import lxml.html
import pytest

from mnmt_jax.commands.mnmt import COMMANDS
from mnmt_jax.config.sections import SECTIONS
from mnmt_jax.papers.listing import runnable_rows
from mnmt_jax.papers.tables import load_papers
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


@pytest.mark.parametrize("paper", load_papers().values(), ids=lambda paper: paper.name)
def test_the_page_of_a_paper_has_its_tables(site, paper):
    if paper.name == "benchmarks":  # the pages of results have its tables
        assert not (site / "papers/benchmarks.html").exists()
        return
    page = lxml.html.parse(site / f"papers/{paper.name}.html").getroot()
    text = " ".join(page.text_content().split())
    assert paper.title in text and paper.idea in text
    assert "<!--" not in (site / f"papers/{paper.name}.html").read_text("utf-8")
    for table in paper.tables.values():
        (heading,) = page.xpath(f"//h2[@id='{table.name}']")
        assert f"{table.number}: {table.title}" in heading.text_content()
        parts = list(itertools.takewhile(lambda part: part.tag != "h2", heading.itersiblings()))
        numbers = Counter(
            cell.text_content().strip()
            for part in parts
            if part.get("class") == "published"
            for cell in part.xpath(".//td")
        )
        printed = [f"{number:,}" for row in table.rows for number in row.published.values()]
        assert numbers >= Counter(printed), table.name
        command = f"mnmt reproduce {paper.name}/{table.name} --data data"
        described = "".join(part.text_content() for part in parts)
        runs = bool(runnable_rows(paper, table) or table.analyses)
        assert (command in described) == runs
        assert all(row.unavailable in described for row in table.rows), table.name


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
    assert len(code) > 1 and all(cell.outputs for cell in code[1:]), "commit it executed"
    runner = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
    runner.execute(cwd=str(ROOT))
    assert "'" in code[-1].outputs[-1]["data"]["text/plain"]
