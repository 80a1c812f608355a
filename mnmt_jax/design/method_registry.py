"""Method registry: lookup of the files in `mnmt_jax/methods` and of user-defined classes.

There is no list of methods. A file is imported only when a configuration names its method or
section.
"""

from __future__ import annotations

import dataclasses
import importlib
import typing
from typing import Any

from mnmt_jax.design.fields import field_types
from mnmt_jax.design.method import Method
from mnmt_jax.design.method_files import PACKAGE, library_methods, title_in_file
from mnmt_jax.errors import UserError, join_names, suggest


def get_method(name: str, field: str = "Model.methods") -> type[Method]:
    """Return the class of a method, importing its file if necessary.

    Args:
        name: name in `Model.methods` or `Train.methods`.
        field: the field that names it, for error messages.

    Raises:
        UserError: if there is no method of that name, or its class is not a frozen dataclass, or
            a field that it names for language codes is not a tuple of strings.
    """
    if name in library_methods():
        importlib.import_module(f"{PACKAGE}.{name}")
    if name not in Method.registered:
        raise UserError(
            f"{field}: no method '{name}'; {suggest(name, all_methods())}there are "
            f"{join_names(all_methods())}; {_remedy(name)}"
        )
    method = Method.registered[name]
    if not dataclasses.is_dataclass(method) or method.__hash__ is None:
        raise UserError(
            f"{field}: '{name}' ({method.__module__}.{method.__name__}) must be a frozen dataclass"
        )
    _check_code_fields(method)
    return method


def get_section(title: str) -> type[Method] | None:
    """Return the method with a given gin section; None if there is none."""
    for name in library_methods():
        if title_in_file(name) == title:
            return get_method(name)
    return next((method for method in Method.registered.values() if method.__name__ == title), None)


def section_titles() -> list[str]:
    """Return the titles of the gin sections of all methods, sorted."""
    titles = {title for name in library_methods() if (title := title_in_file(name))}
    return sorted(titles | {method.__name__ for method in Method.registered.values()})


def all_methods() -> list[str]:
    """Return the names of all methods, imported or not, sorted."""
    return sorted({*library_methods(), *Method.registered})


def _check_code_fields(method: type[Method]) -> None:
    """Check that the fields in `languages_field` and `code_fields` are tuples of strings."""
    section: Any = method  # mypy calls no class of dataclasses hashable
    types = field_types(section)
    named = {"languages_field": (method.languages_field,), "code_fields": method.code_fields}
    if isinstance(method.code_fields, str):
        raise UserError(
            f"{method.__name__}.code_fields={method.code_fields!r} must be a tuple, such as "
            f"({method.code_fields!r},)"
        )
    for attribute, fields in named.items():
        for field in filter(None, fields):
            if typing.get_origin(types.get(field)) is not tuple:
                raise UserError(
                    f"{method.__name__}.{attribute} names '{field}': declare it as a tuple of "
                    f"codes, {field}: tuple[str, ...] = ()"
                )


def _remedy(name: str) -> str:
    """Return how a method of one's own becomes known: by a class keyword, or by an import."""
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
