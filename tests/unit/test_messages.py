"""Format of warnings, and names of pages and extras in messages."""

from __future__ import annotations

import ast
import logging
import re
import warnings
from pathlib import Path

import pytest

import mnmt_jax
from mnmt_jax.errors import MnmtWarning, docs_page
from mnmt_jax.runtime.run_command import run_command
from tests.unit.made_translator import made_translator

PACKAGE = Path(mnmt_jax.__file__).parent


def run_in_process(main) -> int:
    with pytest.raises(SystemExit) as ended:
        run_command(main)
    return ended.value.code


def test_warnings_of_a_command_have_one_format(capsys):
    """Logged or raised, with and without another library's logging setup."""

    def main():
        logging.getLogger("mnmt_jax.data.corpus").warning("%s: dropped %d", "mine", 3)
        warnings.warn("both are 'de'", MnmtWarning, stacklevel=1)

    before = warnings.showwarning
    other = logging.StreamHandler()
    other.setFormatter(logging.Formatter("%(levelname)s:%(name)s:%(message)s"))
    for handlers in ([], [other]):
        for handler in handlers:
            logging.getLogger().addHandler(handler)
        try:
            assert run_in_process(main) == 0
        finally:
            for handler in handlers:
                logging.getLogger().removeHandler(handler)
        lines = capsys.readouterr().err.splitlines()
        assert lines == ["warning: mine: dropped 3", "warning: both are 'de'"]
    assert warnings.showwarning is before and logging.getLogger("mnmt_jax").propagate


def test_translating_into_the_same_language_warns():
    translator = made_translator(max_length=2)
    code, other = translator.languages[:2]
    with pytest.warns(MnmtWarning, match=f"source and target are both '{code}'"):
        translator.translate(["a"], source=code, target=code.upper())
    with pytest.warns(MnmtWarning, match=r"1 line whose source and target are one language \(2\)"):
        translator.translate(["a", "b"], source=code, target=[other, code])
    calls = (
        lambda: translator.translate(["a"], source=code, target=code),
        lambda: translator.translate_text("a", source=code, target=code),
        lambda: translator.score(["a"], ["b"], source=code, target=code),
    )
    for call in calls:
        with pytest.warns(MnmtWarning, match="both") as caught:
            call()
        ours = [one for one in caught if issubclass(one.category, MnmtWarning)]  # gc warns, too
        assert [warning.filename for warning in ours] == [__file__]  # the caller
    with warnings.catch_warnings():
        warnings.simplefilter("error", MnmtWarning)
        translator.translate(["a"], source=code, target=other)


def test_docs_page_gives_an_existing_path(tmp_path, monkeypatch):
    monkeypatch.chdir(PACKAGE.parent)
    assert docs_page("graft.md") == "docs/graft.md"
    monkeypatch.chdir(tmp_path)
    assert Path(docs_page("graft.md")).is_absolute() and Path(docs_page("graft.md")).is_file()
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    assert Path(docs_page("graft.md")).is_absolute()


def strings_of_messages() -> dict[str, str]:
    """Return the strings of the package other than docstrings, by location."""
    texts = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if id(node) not in docstrings:
                    texts[f"{path.relative_to(PACKAGE)}:{node.lineno}"] = node.value
    return texts


def test_messages_name_pages_by_docs_page_and_the_package_by_name():
    texts = strings_of_messages()
    assert len(texts) > 1000
    pages = {
        location for location, text in texts.items() if re.search(r"\b(docs/\w+|README)\.md", text)
    }
    assert {location.partition(":")[0] for location in pages} == {
        "cost/configurations.py"
    }  # a page
    assert not {location for location, text in texts.items() if "mnmt_jax[" in text}
    named = re.findall(r"docs_page\('(.*?)'\)", "".join(map(ast.unparse, calls_of_docs_page())))
    assert set(named) >= {"graft.md", "t5x.md", "data.md"}
    assert all((PACKAGE.parent / "docs" / name).is_file() for name in named)


def calls_of_docs_page() -> list[ast.Call]:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py"))
    return [
        node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "docs_page"
    ]
