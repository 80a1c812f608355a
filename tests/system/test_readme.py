"""The commands of the README and the quickstart, as written, on models too small to learn."""

from __future__ import annotations

import json

import pytest

from mnmt_jax.evaluation.result import read_result
from tests import made_pages
from tests.documents import make_root, run_page, shell


@pytest.fixture(scope="module")
def readme(tmp_path_factory):
    """Return the folder in which the page's commands ran, and the output of each."""
    root = make_root(tmp_path_factory.mktemp("readme"))
    made_pages.own_text(root)
    return root, run_page("README.md", root)


def printed_by(printed: dict[str, str], words: str) -> str:
    """Return the output of the only command that contains these words."""
    [text] = (text for command, text in printed.items() if words in command)
    return text


def test_the_quickstart_compares_two_models(readme):
    root, printed = readme
    output = printed_by(printed, "scripts/quickstart.sh")
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in output.splitlines()[:6]]
    assert rows[0][:5] == ["model", "steps", "training seconds", "decoding", "directions"]
    assert {row[3] for row in rows[2:]} == {"greedy"}
    actual = [(row[0], row[1], row[4]) for row in rows[2:]]
    names = ("prefix", "register")
    assert actual == [(n, "2", "supervised (3)") for n in names] + [
        (n, "2", "zero-shot (9)") for n in names
    ]
    assert "Translations, in directions never trained on" in output
    assert output.count("register") > 3 and "reference" in output
    assert f"Report: {'runs/quickstart'}/report/report.html" in output
    page = (root / "runs/quickstart/report/report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and "prefix" in page and "register" in page
    for name in names:
        result = read_result(root / "runs/quickstart" / name / "report")
        assert (result.name, result.layout, len(result.directions)) == (name, name, 12)
        assert {item.sentences for item in result.directions} == {1}


def test_the_quickstart_continues(readme):
    root, printed = readme
    table = printed_by(printed, "scripts/quickstart.sh").split("\n\n")[0]
    again = shell(root, "bash scripts/quickstart.sh")
    assert again.stdout.split("\n\n")[0] == table
    assert again.stderr.count("12 of 12 directions had been translated before") == 2


def test_the_readme_describes_a_model(readme):
    _, printed = readme
    described = printed_by(printed, "mnmt describe")
    assert json.loads(described)["parameters"]["total"] == 985_856


def test_the_readme_translates_with_the_quickstart(readme):
    _, printed = readme
    assert printed_by(printed, "mnmt translate").count("\n") == 1
    actual = printed_by(printed, "import mnmt_jax")
    assert actual.startswith("[") and actual.count("\n") == 1


def test_the_readme_trains_on_user_files(readme):
    root, printed = readme
    table = printed_by(printed, "--task=mine").splitlines()
    assert "supervised (4)" in table[-2] and "zero-shot (2)" in table[-1]
    result = read_result(root / "runs/mine/register/report")
    assert (result.task, result.layout, result.step) == ("mine", "register", 2)
    assert {item.sentences for item in result.directions} == {3}
    infer = "mnmt translate --run=runs/mine/register --source=de --target=fr"
    assert shell(root, f"printf 'drei Haus\\n\\neins\\n' | {infer}").stdout.count("\n") == 3
