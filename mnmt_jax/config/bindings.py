"""Bindings of gin files and command lines: plain values by section and field, and macros.

Only names of sections are looked up, and nothing is called. As in gin, later bindings replace
earlier ones.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mnmt_jax.config.legacy_configs import legacy_field_error
from mnmt_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Macro:
    """A macro reference inside a value."""

    name: str

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclasses.dataclass(frozen=True)
class Reference:
    """A configurable reference inside a value, which gin would call."""

    text: str


@dataclasses.dataclass(frozen=True)
class _Bound:
    """A value, with `FILE:LINE: ` as its location if it came from a file."""

    value: Any
    location: str


class Bindings:
    """Bindings of the sections' fields, and macros."""

    def __init__(
        self,
        sections: Iterable[type],
        find_section: Callable[[str], type | None],
        titles: Callable[[], Sequence[str]],
    ) -> None:
        """Create empty bindings.

        Args:
            sections: the dataclasses that all configurations have.
            find_section: returns the dataclass of another section by its name; None if there is
                none.
            titles: returns the names of the sections that `find_section` accepts.
        """
        self._known = {section.__name__: _field_names(section) for section in sections}
        self._core = tuple(self._known)  # sections that all configurations have
        self._find_section, self._titles = find_section, titles
        self._fields: dict[str, dict[str, _Bound]] = {}
        self._macros: dict[str, _Bound] = {}
        self._used: set[str] = set()  # macros referenced by some value
        self._named: set[Any] = set()  # methods in lists, including lists replaced later

    def bind(self, statement: Any, prefix: str, location: str) -> None:
        """Add a binding, or the head of a block, whose bindings follow as separate statements.

        Args:
            statement: statement of gin's parser: `scope`, `selector`, and in bindings `arg_name`
                and `value`.
            prefix: prefix of error messages that do not name the statement.
            location: prefix of error messages that name it, and of later errors.

        Raises:
            UserError: if the field does not exist, or the value would be called.
        """
        scope, title = statement.scope, statement.selector
        field = getattr(statement, "arg_name", None)
        if field == "":
            name = f"{scope}/{title}" if scope else title
            self._macros[name] = self._checked_value(statement.value, prefix, location)
            return
        if scope:
            full_name = ".".join(filter(None, (f"{scope}/{title}", field)))
            raise UserError(f"{location}gin binding '{full_name}' is never read; check its name")
        field_names = self._field_names(title)
        if field_names is None:
            raise UserError(f"{location}{_no_such_name(title, [*self._known, *self._titles()])}")
        if field is None:
            return
        if field not in field_names:
            raise UserError(f"{location}{self.unknown_field_error(title, field)}")
        if field == "methods":
            self._named |= {entry for entry in _leaves(statement.value) if isinstance(entry, str)}
        section_fields = self._fields.setdefault(title, {})
        section_fields[field] = self._checked_value(statement.value, prefix, location)
        if title == "Train" and field in ("steps", "epochs"):
            self._replace_length(field)

    def _replace_length(self, field: str) -> None:
        """Remove the earlier of `Train.steps` and `Train.epochs`: the later binding wins.

        Whether a macro replaces the steps is known once all are read, in `section`.

        Raises:
            UserError: if one file sets both, or the command line does.
        """
        fields = self._fields["Train"]
        if {"steps", "epochs"} - fields.keys() or fields["epochs"].value == 0:
            return
        is_open = isinstance(fields["epochs"].value, Macro)
        if is_open and (field == "epochs" or _file(fields["steps"]) == _file(fields["epochs"])):
            return
        _check_one_length(fields)
        del fields["steps" if field == "epochs" else "epochs"]

    def forget(self, title: str) -> None:
        """Remove the bindings of a section."""
        self._fields.pop(title, None)

    def value(self, title: str, field: str, default: Any) -> Any:
        """Return a value with macros resolved, unchecked; the default if nothing is bound."""
        bound = self._fields.get(title, {}).get(field)
        return default if bound is None else self._value(bound)

    def location(self, title: str, field: str = "") -> str:
        """Return `FILE:LINE: ` of a binding from a file, or of a section's first binding."""
        bound = self._fields.get(title, {})
        return next((item.location for name, item in bound.items() if field in ("", name)), "")

    def section(self, section: type, overrides: Mapping[str, Any] | None = None) -> Any:
        """Build a section.

        Args:
            section: the dataclass.
            overrides: field values that override the bindings.

        Raises:
            UserError: if a value is invalid, or a macro has no value.
        """
        bound = self._fields.get(section.__name__, {})
        values = {name: self._value(item) for name, item in bound.items()}
        if section.__name__ == "Train" and values.get("epochs") and "steps" in values:
            _check_one_length(bound)
            del values["steps"]
        try:
            return section(**values | dict(overrides or {}))
        except UserError as error:
            names = re.findall(rf"{section.__name__}\.(\w+)=", str(error))
            locations = [bound[name].location for name in names if name in bound]
            # A value of the command line has none, and is more likely the wrong one of several.
            is_of_file = bool(locations) and all(locations)
            raise UserError(f"{locations[0] if is_of_file else ''}{error}") from error

    def check_read(self, sections: Iterable[str]) -> None:
        """Check that all bindings are used, or belong to a method that a later binding removed.

        Args:
            sections: names of the sections that were built.

        Raises:
            UserError: if a macro is not used, or a section was not built.
        """
        for name in self._macros.keys() - self._used:
            fields = self._fields_named(name)
            hint = f"did you mean {' or '.join(fields)}?" if fields else f"remove it or use %{name}"
            raise UserError(
                f"{self._macros[name].location}gin macro '{name}' is never used; {hint}"
            )
        for title in self._fields.keys() - set(sections):
            method: Any = self._find_section(title)
            if method.name not in self._named:
                where = "Model.methods" if method.edits() else "Train.methods"
                raise UserError(
                    f"{self.location(title)}{title}.{next(iter(self._fields[title]))}: nothing "
                    f"reads it; name '{method.name}' in {where}"
                )

    def _field_names(self, title: str) -> list[str] | None:
        if title not in self._known:
            section = self._find_section(title)
            if section is None:
                return None
            self._known[title] = _field_names(section)
        return self._known[title]

    def unknown_field_error(self, title: str, field: str) -> str:
        """Return the message about an unknown field; empty if the section is unknown too."""
        field_names = self._field_names(title)
        if field_names is None:
            return ""
        if legacy := legacy_field_error(f"{title}.{field}"):
            return legacy
        if fields := self._fields_named(field):
            if fields[0].partition(".")[0] not in self._core:  # a method may be meant, or a typo
                similar = difflib.get_close_matches(field, field_names, n=1, cutoff=0.55)
                fields = [*(f"{title}.{name}" for name in similar), *fields]
            return f"{title}.{field}: no such name; did you mean {' or '.join(fields)}?"
        return _no_such_name(field, field_names, f"{title}.")

    def _fields_named(self, name: str) -> list[str]:
        """Return the fields with a name as `Section.field`; methods' fields if no others."""
        for titles in (self._core, self._titles()):
            fields = [f"{t}.{name}" for t in titles if name in (self._field_names(t) or ())]
            if fields:
                return fields[:3]
        return []

    def _checked_value(self, value: Any, prefix: str, location: str) -> _Bound:
        for entry in _leaves(value):
            if isinstance(entry, Reference):
                raise UserError(f"{prefix}{entry.text} would be called; write the value itself")
            if isinstance(entry, Macro):
                self._used.add(entry.name)
        return _Bound(value, location)

    def _value(self, bound: _Bound) -> Any:
        """Return a value with macros resolved; a written-out list may contain such lists."""
        value, names = self._resolved(bound.value, bound.location, ())
        if not isinstance(value, list | tuple):
            return value
        return self._resolved_list(value, bound.location, names, inner=2)

    def _resolved_list(
        self, value: Any, location: str, names: tuple[str, ...], *, inner: int
    ) -> Any:
        """Return a list with macros resolved, nested up to a depth."""
        if inner and isinstance(value, list | tuple):
            return type(value)(
                self._resolved_list(entry, location, names, inner=inner - 1) for entry in value
            )
        resolved = self._resolved(value, location, names)[0]
        # A macro in a list must not be a list: lists that contain a macro twice would grow
        # exponentially.
        if isinstance(resolved, list | tuple | dict):
            raise UserError(
                f"{location}a list inside a list, which no field accepts; write it flat"
            )
        return resolved

    def _resolved(
        self, value: Any, location: str, names: tuple[str, ...]
    ) -> tuple[Any, tuple[str, ...]]:
        """Return the value of a macro, resolved through other macros, and the macros passed."""
        while isinstance(value, Macro):
            if value.name in names:
                cycle = " ".join(f"%{name}" for name in names)
                raise UserError(
                    f"{location}macros refer to each other in a cycle ({cycle}); give one of them "
                    "a value"
                )
            if value.name not in self._macros:
                raise UserError(
                    f"{location}{value} has no value; bind it, e.g. --gin.{value.name}=1"
                )
            names = (*names, value.name)
            value = self._macros[value.name].value
        return value, names


def _check_one_length(fields: Mapping[str, _Bound]) -> None:
    """Check that one file, or the command line, does not set both lengths of a training.

    Raises:
        UserError: if it does.
    """
    steps, epochs = fields["steps"], fields["epochs"]
    if _file(steps) == _file(epochs):
        raise UserError(
            f"{epochs.location}Train.epochs={epochs.value!r} and Train.steps={steps.value!r} "
            "are both set; remove one of them"
        )


def _file(bound: _Bound) -> str:
    """Return the file of a binding; empty for the command line."""
    return bound.location.rpartition(":")[0].rpartition(":")[0]


def _field_names(section: type) -> list[str]:
    return [field.name for field in dataclasses.fields(section)]


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the leaves of nested containers."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for entry in value:
            yield from _leaves(entry)
    else:
        yield value


def _no_such_name(name: str, candidates: Sequence[str], prefix: str = "") -> str:
    """Return the message about an unknown name, with suggestions."""
    matches = [prefix + match for match in difflib.get_close_matches(name, candidates, n=2)]
    hint = (
        f"did you mean {' or '.join(matches)}?" if matches else f"there are {', '.join(candidates)}"
    )
    if not matches and prefix:
        hint += f"; 'mnmt keys {prefix[:-1]}' describes them"
    elif not prefix and name[:1].isupper():
        hint += "; your own method needs --module_import"
    return f"{prefix}{name}: no such name; {hint}"
