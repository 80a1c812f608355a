"""What gin files and command lines bind: plain values by section and field, and macros.

Nothing here is looked up by name outside the sections, and nothing is called. Later words replace
earlier ones, as in gin.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mnmt_jax.config.legacy_configs import was_legacy
from mnmt_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Macro:
    """Stands in a value for what its name is bound to."""

    name: str

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclasses.dataclass(frozen=True)
class Reference:
    """Stands in a value for what gin would call."""

    text: str


@dataclasses.dataclass(frozen=True)
class _Bound:
    """A value, and `FILE:LINE: ` if it came from a file."""

    value: Any
    place: str


class Bindings:
    """Bindings of the sections' fields, and macros."""

    def __init__(
        self,
        sections: Iterable[type],
        further: Callable[[str], type | None],
        titles: Callable[[], Sequence[str]],
    ) -> None:
        """Starts without any.

        Args:
            sections: the dataclasses that every configuration has.
            further: returns the dataclass of another section by its name; None if there is none.
            titles: returns the names of the sections that `further` knows.
        """
        self._known = {section.__name__: _field_names(section) for section in sections}
        self._further, self._titles = further, titles
        self._fields: dict[str, dict[str, _Bound]] = {}
        self._macros: dict[str, _Bound] = {}
        self._used: set[str] = set()  # macros that some value mentions
        self._named: set[Any] = set()  # methods of lists, those that later ones replaced too

    def bind(self, statement: Any, told: str, place: str) -> None:
        """Takes a binding, or a block's head, whose bindings follow as statements of their own.

        Args:
            statement: of gin's parser: `scope`, `selector`, and of bindings `arg_name`, `value`.
            told: what stands before an error in the statement that does not name it.
            place: what stands before one that names it, and before errors that show later.

        Raises:
            UserError: if there is no such field, or the value would be called.
        """
        scope, title = statement.scope, statement.selector
        field = getattr(statement, "arg_name", None)
        if field == "":
            name = f"{scope}/{title}" if scope else title
            self._macros[name] = self._taken(statement.value, told, place)
            return
        if scope:
            full = ".".join(filter(None, (f"{scope}/{title}", field)))
            raise UserError(f"{place}gin binding '{full}' is never read; check its name")
        known = self._field_names(title)
        if known is None:
            raise UserError(f"{place}{_no_such_name(title, [*self._known, *self._titles()])}")
        if field is None:
            return
        if field not in known:
            raise UserError(f"{place}{self.no_such_field(title, field)}")
        if field == "methods":
            self._named |= {part for part in _parts(statement.value) if isinstance(part, str)}
        of_section = self._fields.setdefault(title, {})
        of_section[field] = self._taken(statement.value, told, place)

    def forget(self, title: str) -> None:
        """Leaves out what was bound of a section."""
        self._fields.pop(title, None)

    def value(self, title: str, field: str, default: Any) -> Any:
        """Returns a value without macros, unchecked; the default if nothing is bound."""
        bound = self._fields.get(title, {}).get(field)
        return default if bound is None else self._value(bound)

    def place(self, title: str, field: str = "") -> str:
        """Returns `FILE:LINE: ` of a binding, or of a section's first, if it came from a file."""
        bound = self._fields.get(title, {})
        return next((each.place for name, each in bound.items() if field in ("", name)), "")

    def section(self, section: type, further: Mapping[str, Any] | None = None) -> Any:
        """Makes a section.

        Args:
            section: the dataclass.
            further: fields whose values are not those of the bindings.

        Raises:
            UserError: if a value is not what it must be, or a macro has no value.
        """
        bound = self._fields.get(section.__name__, {})
        values = {name: self._value(item) for name, item in bound.items()}
        try:
            return section(**values | dict(further or {}))
        except UserError as error:
            named = re.findall(rf"{section.__name__}\.(\w+)=", str(error))
            place = next((self.place(section.__name__, name) for name in named), "")
            raise UserError(f"{place}{error}") from error

    def check_read(self, sections: Iterable[str]) -> None:
        """Checks that everything bound is of use, or was until a later word left its method out.

        Args:
            sections: names of those that were made.

        Raises:
            UserError: if a macro is not used, or a section was not made.
        """
        for name in self._macros.keys() - self._used:
            raise UserError(
                f"{self._macros[name].place}gin macro '{name}' is never used; remove it or use "
                f"%{name}"
            )
        for title in self._fields.keys() - set(sections):
            method: Any = self._further(title)
            if method.name not in self._named:
                where = "Model.methods" if method.edits() else "Train.methods"
                raise UserError(
                    f"{self.place(title)}{title}.{next(iter(self._fields[title]))}: nothing reads "
                    f"it; name '{method.name}' in {where}"
                )

    def _field_names(self, title: str) -> list[str] | None:
        if title not in self._known:
            section = self._further(title)
            if section is None:
                return None
            self._known[title] = _field_names(section)
        return self._known[title]

    def no_such_field(self, title: str, field: str) -> str:
        """Says which field of a section was perhaps meant; nothing if there is no such section."""
        known = self._field_names(title)
        if known is None:
            return ""
        earlier = was_legacy(f"{title}.{field}")
        return earlier or _no_such_name(field, known, f"{title}.")

    def _taken(self, value: Any, told: str, place: str) -> _Bound:
        for part in _parts(value):
            if isinstance(part, Reference):
                raise UserError(f"{told}{part.text} would be called; write the value itself")
            if isinstance(part, Macro):
                self._used.add(part.name)
        return _Bound(value, place)

    def _value(self, bound: _Bound) -> Any:
        """Returns a value without macros; a list that is written out may hold such lists."""
        value, names = self._followed(bound.value, bound.place, ())
        if not isinstance(value, list | tuple):
            return value
        return self._filled(value, bound.place, names, inner=2)

    def _filled(self, value: Any, place: str, names: tuple[str, ...], *, inner: int) -> Any:
        """Returns a list without macros, which holds lists to a depth."""
        if inner and isinstance(value, list | tuple):
            return type(value)(self._filled(part, place, names, inner=inner - 1) for part in value)
        found = self._followed(value, place, names)[0]
        # No macro in a list is a list: those that hold macros twice each would grow without end.
        if isinstance(found, list | tuple | dict):
            raise UserError(
                f"{place}a list inside a list, which no field holds so; flatten it or write it out"
            )
        return found

    def _followed(
        self, value: Any, place: str, names: tuple[str, ...]
    ) -> tuple[Any, tuple[str, ...]]:
        """Returns what a macro stands for, through other macros, and the macros on the way."""
        while isinstance(value, Macro):
            if value.name in names:
                circle = " ".join(f"%{name}" for name in names)
                raise UserError(
                    f"{place}macros stand for each other in a circle ({circle}); give one of them "
                    "a value"
                )
            if value.name not in self._macros:
                raise UserError(f"{place}{value} has no value; bind it, e.g. --gin.{value.name}=1")
            names = (*names, value.name)
            value = self._macros[value.name].value
        return value, names


def _field_names(section: type) -> list[str]:
    return [field.name for field in dataclasses.fields(section)]


def _parts(value: Any) -> Iterator[Any]:
    """Yields what containers hold, at any depth."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for part in value:
            yield from _parts(part)
    else:
        yield value


def _no_such_name(name: str, known: Sequence[str], place: str = "") -> str:
    """Says of an unknown name which one was perhaps meant."""
    near = [place + other for other in difflib.get_close_matches(name, known, n=2)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    if not near and not place and name[:1].isupper():
        hint += "; a method of your own needs --module_import"
    return f"{place}{name}: no such name; {hint}"
