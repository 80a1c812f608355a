"""Reference of the gin keys: values, default and meaning, by section."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Mapping
from typing import Any

from mnmt_jax.config.sections import SECTIONS
from mnmt_jax.data.instruction import INSTRUCTIONS
from mnmt_jax.design.fields import field_types
from mnmt_jax.design.layouts import LANGUAGE_MODELS, LAYOUTS
from mnmt_jax.design.method import Method
from mnmt_jax.design.method_registry import all_methods, get_method
from mnmt_jax.errors import UserError, join_names, suggest


@dataclasses.dataclass(frozen=True)
class GinKey:
    """A key of a section.

    Attributes:
        name: `SECTION.KEY`.
        values: type and range, e.g. `int, at least 1 and at most 65536`, or the choices.
        default: the default, as in a gin file.
        meaning: what it sets.
    """

    name: str
    values: str
    default: str
    meaning: str


def all_sections() -> Mapping[str, type]:
    """Return the dataclasses of all sections by name: those of every configuration, then methods.

    Methods of imported modules are included.
    """
    methods = (get_method(name) for name in all_methods())
    return {section.__name__: section for section in (*SECTIONS.values(), *methods)}


def find_keys(name: str) -> tuple[GinKey, ...]:
    """Return the keys of a section, or one key.

    Args:
        name: `SECTION` or `SECTION.KEY`.

    Raises:
        UserError: if there is no such section or key.
    """
    title, _, key = name.partition(".")
    sections = all_sections()
    if title not in sections:
        names = [key.name for section in sections.values() for key in section_keys(section)]
        if same := [full for full in names if full.partition(".")[2] == name]:
            raise UserError(f"{name}: no such section; the key is {join_names(same)}")
        hint = suggest(title, tuple(sections))
        raise UserError(f"{title}: no such section; {hint}there are {join_names(list(sections))}")
    keys = section_keys(sections[title])
    if not key:
        return keys
    chosen = tuple(item for item in keys if item.name == name)
    if not chosen:
        names = [item.name.partition(".")[2] for item in keys]
        raise UserError(
            f"{name}: no such key; {suggest(key, names)}{title} has {join_names(names)}"
        )
    return chosen


def section_keys(section: type) -> tuple[GinKey, ...]:
    """Return the keys of a section in the order of its fields."""
    meanings = _attributes(section.__doc__ or "")
    types = field_types(section)
    return tuple(
        GinKey(
            f"{section.__name__}.{field.name}",
            _choices(f"{section.__name__}.{field.name}") or _values(types[field.name]),
            repr(field.default),
            meanings.get(field.name, ""),
        )
        for field in dataclasses.fields(section)
    )


def section_summary(section: type) -> str:
    """Return the first line of a section's docstring, and how a method is selected."""
    summary = (section.__doc__ or "").partition("\n")[0]
    if not issubclass(section, Method):
        return summary
    owner = "Model" if section.edits() else "Train"
    return f"{summary} Selected by {owner}.methods=('{section.name}',)."


def _attributes(docstring: str) -> dict[str, str]:
    block = inspect.cleandoc(docstring).partition("Attributes:\n")[2]
    pairs = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", block, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in pairs}


def _choices(name: str) -> str:
    """Return the choices of a key whose type does not list them; empty for others."""
    if name == "Data.instruction":
        return ", ".join(map(repr, INSTRUCTIONS))
    if name == "Model.layout":
        return ", ".join(map(repr, {**LAYOUTS, **LANGUAGE_MODELS}))
    if name in ("Model.methods", "Train.methods"):
        methods = (get_method(method) for method in all_methods())
        names = (repr(item.name) for item in methods if item.edits() == name.startswith("Model"))
        return f"tuple of: {', '.join(names)}"
    return ""


def _values(kind: Any) -> str:
    """Return a field's type and range as text."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(map(repr, arguments))
    if hasattr(kind, "__metadata__"):
        limits = str(kind.__metadata__[0])
        base = getattr(kind.__origin__, "__name__", "")
        return limits if base == "tuple" else f"{base}, {limits}"
    if typing.get_origin(kind) is tuple:
        return f"tuple of: {_values(arguments[0])}" if arguments else "tuple"
    return getattr(kind, "__name__", str(kind))
