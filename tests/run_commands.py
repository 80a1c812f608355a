"""Runs the project's commands in this process."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mnmt_jax.commands.mnmt import COMMANDS, module_of

ROOT = Path(__file__).resolve().parents[1]
# The script that is a command of `mnmt`.
SCRIPTS = {
    name: f"scripts/{path.name}"
    for path in sorted((ROOT / "scripts").glob("*.py"))
    for name in COMMANDS
    if f"from {module_of(name).__name__} import main" in path.read_text(encoding="utf-8")
}


def command(name: str, *arguments: object) -> None:
    """Run a script's `main`."""
    call(f"scripts/{name}.py", list(map(str, arguments)))


def call(script: str, arguments: Sequence[str]) -> None:
    """Run the `main` of a file of the repository, which must succeed.

    As when Python starts a file, its folder comes first on the path of imports.
    """
    spec = importlib.util.spec_from_file_location(f"script_{Path(script).stem}", ROOT / script)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script, *arguments])
        patch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
        patch.syspath_prepend((ROOT / script).parent)
        spec.loader.exec_module(module)
        assert not module.main(), script
