"""The index of public names, and the first lines that it prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mnmt_jax.errors import UserError
from scripts.list_api import api_entries, format_index

ROOT = Path(__file__).parent.parent.parent
# A first line that starts like this is a riddle: it makes sense only after reading the file.
RIDDLES = ("What", "Who", "Which", "Whether", "That", "Those", "Whose", "How")


def places(entries):
    return [f"{entry.path.relative_to(ROOT)}:{entry.line} {entry.name}" for entry in entries]


def make_package(folder, name="toy"):
    package = folder / name
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text('"""A toy package."""\n')
    (package / "__main__.py").write_text('"""Not part of the index."""\n')
    (package / "data" / "__init__.py").write_text('"""Corpora."""\n')
    (package / "data" / "cache.py").write_text(
        '"""Token cache.\n\nMore.\n"""\n\n\n'
        'class Cache:\n    """Open cache."""\n\n'
        "    def read(self):\n"
        '        """Return the rows."""\n\n'
        "    @property\n    def size(self):\n"
        '        """Return the size."""\n\n'
        "    @size.setter\n    def size(self, value):\n        pass\n\n"
        "    def _seek(self):\n        pass\n\n\n"
        "def write_cache():\n    pass\n\n\n"
        'def _hidden():\n    """Private."""\n'
    )
    (package / "errors.py").write_text('"""Errors."""\n')
    return package


def test_every_public_name_has_a_first_line():
    silent = [entry for entry in api_entries() if not entry.summary]
    assert not silent, "\n".join(places(silent))


def test_first_lines_of_modules_are_noun_phrases():
    modules = [entry for entry in api_entries() if entry.kind == "module"]
    riddles = [entry for entry in modules if re.match(rf"({'|'.join(RIDDLES)})\b", entry.summary)]
    assert len(modules) > 200
    assert not riddles, "\n".join(places(riddles))


def test_entries_are_public_and_have_the_first_line_of_their_docstring(tmp_path):
    entries = api_entries(make_package(tmp_path))
    assert [(entry.kind, entry.name, entry.summary) for entry in entries] == [
        ("module", "toy", "A toy package."),
        ("module", "toy.data", "Corpora."),
        ("module", "toy.data.cache", "Token cache."),
        ("class", "Cache", "Open cache."),
        ("method", "read", "Return the rows."),
        ("method", "size", "Return the size."),
        ("function", "write_cache", ""),
        ("module", "toy.errors", "Errors."),
    ]


def test_the_index_can_be_limited_to_a_package(tmp_path):
    package = make_package(tmp_path)
    names = [entry.name for entry in api_entries(package, "data")]
    assert names == ["toy.data", "toy.data.cache", "Cache", "read", "size", "write_cache"]
    assert [entry.name for entry in api_entries(package, "errors")] == ["toy.errors"]
    with pytest.raises(UserError, match="--room=date: no such room; did you mean 'data'"):
        api_entries(package, "date")


def test_summaries_are_aligned(tmp_path):
    assert format_index(api_entries(make_package(tmp_path), "data")).splitlines() == [
        "toy.data",
        "  Corpora.",
        "",
        "toy.data.cache",
        "  Token cache.",
        "  Cache        Open cache.",
        "    read       Return the rows.",
        "    size       Return the size.",
        "  write_cache",
    ]


def test_the_command_lists_methods_only_when_asked():
    command = [sys.executable, ROOT / "scripts" / "list_api.py", "--room=errors"]
    short, long = (
        subprocess.run([*command, *more], capture_output=True, text=True, cwd=ROOT, check=True)
        for more in ([], ["--methods"])
    )
    assert "UserError" in short.stdout
    shown = len(api_entries(room="errors"))
    assert len(long.stdout.splitlines()) == shown + 1  # the module's summary has its own line
