"""Method registry: lookup of the files in `mnmt_jax/methods` and of user-defined classes.

A file in that folder defines the method of the same name; a leading underscore marks a helper. The
gin section is named after the class: `back_translation.py` contains
`class BackTranslation(Method, name="back_translation")`. There is no list of methods. Class
statements are parsed, not executed: a file is imported only when a configuration names its method
or section.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from mnmt_jax.errors import UserError, join_names, suggest

if TYPE_CHECKING:
    from mnmt_jax.design.method import Method

FOLDER = Path(__file__).resolve().parent.parent / "methods"
RESERVED_TITLES = ("Data", "Model", "Optimizer", "Train", "Decode", "Mesh")
"""Sections of every configuration (`mnmt_jax.config.sections`); no method may have such a name."""

_PACKAGE = "mnmt_jax.methods"


def get_method(name: str, field: str = "Model.methods") -> type[Method]:
    """Return the class of a method, importing its file if necessary.

    Args:
        name: name in `Model.methods` or `Train.methods`.
        field: the field that names it, for error messages.

    Raises:
        UserError: if there is no method of that name, or its class is not a frozen dataclass.
    """
    registered = _registered()
    if name in library_methods():
        importlib.import_module(f"{_PACKAGE}.{name}")
    if name not in registered:
        raise UserError(
            f"{field}: no method '{name}'; {suggest(name, all_methods())}there are "
            f"{join_names(all_methods())}; {_remedy(name)}"
        )
    method = registered[name]
    if not dataclasses.is_dataclass(method) or method.__hash__ is None:
        raise UserError(
            f"{field}: '{name}' ({method.__module__}.{method.__name__}) must be a frozen dataclass"
        )
    return method


def get_section(title: str) -> type[Method] | None:
    """Return the method with a given gin section; None if there is none."""
    for name in library_methods():
        if _title_in_file(name) == title:
            return get_method(name)
    return next((method for method in _registered().values() if method.__name__ == title), None)


def section_titles() -> list[str]:
    """Return the titles of the gin sections of all methods, sorted."""
    titles = {title for name in library_methods() if (title := _title_in_file(name))}
    return sorted(titles | {method.__name__ for method in _registered().values()})


def all_methods() -> list[str]:
    """Return the names of all methods, imported or not, sorted."""
    return sorted({*library_methods(), *_registered()})


def library_methods() -> list[str]:
    """Return the names of the methods in the folder, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))


def check_names(name: str, method: type[Method]) -> None:
    """Check that a user-defined method does not reuse a name of the library.

    Args:
        name: name of the method.
        method: its class, named like its section.

    Raises:
        UserError: if the library has a method or a section of that name.
    """
    if method.__module__.startswith(f"{_PACKAGE}."):
        return
    if name in library_methods():
        raise UserError(f"{method.__module__}: method '{name}' is {_PACKAGE}.{name}; rename yours")
    title = method.__name__
    if title in RESERVED_TITLES or any(_title_in_file(stem) == title for stem in library_methods()):
        raise UserError(f"{method.__module__}: '{title}' is a section of the library; rename yours")


def _remedy(name: str) -> str:
    """Return how a method of one's own becomes known: by a class keyword, or by an import."""
    from mnmt_jax.design.method import Method

    unnamed = [method for method in _without_subclasses(Method) if not hasattr(method, "name")]
    if not unnamed:
        return "your own needs --module_import"
    (*_, last) = unnamed
    bases = ", ".join(base.__name__ for base in last.__bases__)
    return f"write class {last.__name__}({bases}, name='{name}') in {last.__module__}"


def _without_subclasses(base: type[Method]) -> list[type[Method]]:
    """Return the classes below a base, without those that are bases of others."""
    classes = []
    for method in base.__subclasses__():
        classes += _without_subclasses(method) if method.__subclasses__() else [method]
    return classes


def _registered() -> dict[str, type[Method]]:
    from mnmt_jax.design.method import Method

    return Method.registered


def _title_in_file(name: str) -> str:
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
