"""The methods: one file each, with its settings, its edit of the plan and its objectives.

A file is imported when a configuration names its method or its section.
"""

from __future__ import annotations

import dataclasses
import importlib

from mnmt_jax.errors import UserError, listed
from mnmt_jax.method import Method

# Files of this folder, and the gin sections in them.
SECTIONS = {
    "adaption": "Adaption",
    "cut_residual": "CutResidual",
    "instructcl": "InstruCL",
}


def get_method(name: str, field: str = "Model.methods") -> type[Method]:
    """Returns a method by the name that chooses it.

    Args:
        name: in `Model.methods` or `Train.methods`.
        field: which of them, for an error.

    Raises:
        UserError: if nobody knows it.
    """
    if name in SECTIONS:
        importlib.import_module(f"{__name__}.{name}")
    if name not in Method.known:
        raise UserError(
            f"{field}: no method '{name}'; there are {listed(all_methods())}; your own needs "
            "--module_import"
        )
    method = Method.known[name]
    if not dataclasses.is_dataclass(method) or method.__hash__ is None:
        raise UserError(
            f"{field}: '{name}' ({method.__module__}.{method.__name__}) must be a frozen dataclass"
        )
    return method


def get_section(title: str) -> type[Method] | None:
    """Returns a method by the name of its gin section; None if there is none."""
    for name, section in SECTIONS.items():
        if section == title:
            return get_method(name)
    return next((each for each in Method.known.values() if each.__name__ == title), None)


def section_titles() -> list[str]:
    """Returns the names of all gin sections of methods."""
    return sorted({*SECTIONS.values(), *(each.__name__ for each in Method.known.values())})


def all_methods() -> list[str]:
    """Returns the names of all methods, those that are not imported yet too."""
    return sorted({*SECTIONS, *Method.known})
