"""Which methods there are: those of `mnmt_jax.methods`, and those that were imported.

A file of a method is imported when a configuration names its method or its section.
"""

from __future__ import annotations

import dataclasses
import importlib

from mnmt_jax.design.method import Method
from mnmt_jax.errors import UserError, listed, nearest

_LIBRARY = "mnmt_jax.methods"  # imported by name, like a module of the user's: it imports this room


def get_method(name: str, field: str = "Model.methods") -> type[Method]:
    """Returns a method by the name that chooses it.

    Args:
        name: in `Model.methods` or `Train.methods`.
        field: which of them, for an error.

    Raises:
        UserError: if nobody knows it.
    """
    if name in _sections():
        importlib.import_module(f"{_LIBRARY}.{name}")
    if name not in Method.known:
        raise UserError(
            f"{field}: no method '{name}'; {nearest(name, all_methods())}there are "
            f"{listed(all_methods())}; your own needs --module_import"
        )
    method = Method.known[name]
    if not dataclasses.is_dataclass(method) or method.__hash__ is None:
        raise UserError(
            f"{field}: '{name}' ({method.__module__}.{method.__name__}) must be a frozen dataclass"
        )
    return method


def get_section(title: str) -> type[Method] | None:
    """Returns a method by the name of its gin section; None if there is none."""
    for name, section in _sections().items():
        if section == title:
            return get_method(name)
    return next((each for each in Method.known.values() if each.__name__ == title), None)


def section_titles() -> list[str]:
    """Returns the names of all gin sections of methods."""
    return sorted({*_sections().values(), *(each.__name__ for each in Method.known.values())})


def all_methods() -> list[str]:
    """Returns the names of all methods, those that are not imported yet too."""
    return sorted({*_sections(), *Method.known})


def check_names(name: str, method: type[Method]) -> None:
    """Checks that a method takes no name of the library's, unless it is one of its own.

    Args:
        name: that chooses it.
        method: its class, whose name is that of its section.

    Raises:
        UserError: otherwise.
    """
    if method.__module__.startswith(f"{_LIBRARY}."):
        return
    from mnmt_jax.config.sections import SECTIONS

    if name in _sections():
        raise UserError(f"{method.__module__}: method '{name}' is {_LIBRARY}.{name}; rename yours")
    taken = {*_sections().values(), *(section.__name__ for section in SECTIONS.values())}
    if method.__name__ in taken:
        raise UserError(
            f"{method.__module__}: '{method.__name__}' is a section of the library; rename yours"
        )


def _sections() -> dict[str, str]:
    """Returns the gin sections of the library's methods by their names."""
    return importlib.import_module(_LIBRARY).SECTIONS
