"""Files in `mnmt_jax/methods`, and the names that they define.

A file in that folder defines the method of the same name; a leading underscore marks a helper. The
gin section is named after the class: `back_translation.py` contains
`class BackTranslation(Method, name="back_translation")`. Class statements are parsed, not executed.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from mnmt_jax.errors import UserError

FOLDER = Path(__file__).resolve().parent.parent / "methods"
RESERVED_TITLES = ("Data", "Model", "Optimizer", "Train", "Decode", "Mesh")
"""Sections of every configuration (`mnmt_jax.config.sections`); no method may have such a name."""
PACKAGE = "mnmt_jax.methods"


def library_methods() -> list[str]:
    """Return the names of the methods in the folder, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))


def check_names(name: str, method: type) -> None:
    """Check that a user-defined method does not reuse a name of the library.

    Args:
        name: name of the method.
        method: its class, named like its section.

    Raises:
        UserError: if the library has a method or a section of that name.
    """
    if method.__module__.startswith(f"{PACKAGE}."):
        return
    if name in library_methods():
        raise UserError(f"{method.__module__}: method '{name}' is {PACKAGE}.{name}; rename yours")
    title = method.__name__
    if title in RESERVED_TITLES or any(title_in_file(stem) == title for stem in library_methods()):
        raise UserError(f"{method.__module__}: '{title}' is a section of the library; rename yours")


def title_in_file(name: str) -> str:
    """Return the class name in the file of a method; empty if it has no such class."""
    return _parsed_title(FOLDER / f"{name}.py", name)


@functools.cache
def _parsed_title(path: Path, name: str) -> str:
    """Return the class name in a method's file without importing it; empty if there is none."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            for keyword in node.keywords:
                value = keyword.value
                if (
                    keyword.arg == "name"
                    and isinstance(value, ast.Constant)
                    and value.value == name
                ):
                    return node.name
    return ""
