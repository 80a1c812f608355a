"""Runs the project's commands in this process, as a shell would run those of a page."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def command(name: str, *arguments: object) -> None:
    """Runs a script's `main` in this process."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    before = sys.argv
    sys.argv = [name, *map(str, arguments)]
    try:
        module.main()
    finally:
        sys.argv = before


def blocks(page: str, title: str) -> list[str]:
    """Returns the code blocks of a section of a page."""
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"```(?:python)?\n(.*?)```", section, flags=re.DOTALL)


def run_block(block: str, more: Mapping[str, Sequence[str]]) -> list[str]:
    """Runs every `python scripts/NAME.py ...` of a block, with more flags for some of them.

    Returns:
        The names of the scripts.
    """
    names = []
    for line in block.replace("\\\n", " ").splitlines():
        python, script, *arguments = shlex.split(line)
        name = Path(script).stem
        assert (python, script) == ("python", f"scripts/{name}.py")
        command(name, *arguments, *more.get(name, ()))
        names.append(name)
    return names
