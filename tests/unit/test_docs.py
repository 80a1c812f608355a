"""Links in the documentation."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(?:#L(\d+)|#[^)\s]+)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_local_links_exist(page):
    for _, target, _ in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target} does not exist"


def test_the_walk_names_the_definitions_on_its_lines():
    defining_lines = runpy.run_path(str(ROOT / "scripts" / "update_walk.py"))["defining_lines"]
    page = ROOT / "docs" / "walk.md"
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if link[2]]
    assert len(links) > 15
    files = {target for _, target, _ in links} | {"../mnmt_jax/__init__.py"}
    assert f"the {len(files)} files" in page.read_text(encoding="utf-8")
    for label, target, number in links:
        name = label.strip("`")
        text = (page.parent / target).resolve().read_text(encoding="utf-8")
        places = defining_lines(name, text)
        assert int(number) in places, (
            f"`{name}` stands on line {places} of {target}, not {number}: "
            "run scripts/update_walk.py"
        )
