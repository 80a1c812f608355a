"""Typed access to the fields of configurations of other toolkits."""

from __future__ import annotations

import contextlib
import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.errors import UserError

LARGEST = 2**31 - 1
_LARGEST_FLOAT = 1e9
_MOST_BITS = 64
_REQUIRED: Any = object()


class TypedFields:
    """Fields of a JSON object or a saved command line, by name and type.

    A field that is null counts as absent. Every accessor raises `UserError` naming file, field
    and value if the type or the range is wrong, or a field without a default is absent.

    Example:
        fields = TypedFields(path, parse_json(text))
        width = fields.integer("d_model", low=2)
    """

    def __init__(self, file_name: Path | str, values: Any) -> None:
        """Wrap the values.

        Args:
            file_name: file name for messages.
            values: mapping of names to values.

        Raises:
            UserError: if it is not a mapping.
        """
        if not isinstance(values, Mapping):
            raise UserError(f"{file_name}: {short_repr(values)} is not an object of named fields")
        self.file_name, self.values = file_name, values

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value of any type, null too, but no integer of thousands of digits."""
        value = self.values.get(name, default)
        # Only fields that are read: transformers writes int(1e30) into one that is not.
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise self._wrong(name, value, f"a number of at most {_MOST_BITS} bits")
        return value

    def integer(
        self, name: str, default: Any = _REQUIRED, *, low: int = 0, high: int = LARGEST
    ) -> int:
        """Return an integer; integral floats and digits in quotes are accepted."""
        value = self._value(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, str) and len(value) < 12:
            text = value.strip()
            value = int(text) if text.removeprefix("-").isdecimal() else value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, value, f"an integer from {low} to {high}")
        return value

    def number(self, name: str, default: Any = _REQUIRED, *, low: float = 0.0) -> float:
        """Return a finite number."""
        value = self._value(name, default)
        if isinstance(value, str) and len(value) < 32:
            with contextlib.suppress(ValueError):
                value = float(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not low <= value <= _LARGEST_FLOAT or math.isnan(value):
            raise self._wrong(name, value, f"a number from {low:g} to {_LARGEST_FLOAT:g}")
        return float(value)

    def flag(self, name: str, default: Any = _REQUIRED) -> bool:
        """Return a boolean; 0, 1 and booleans in quotes are accepted."""
        value = self._value(name, default)
        booleans = {
            "True": True,
            "False": False,
            "true": True,
            "false": False,
            "1": True,
            "0": False,
        }
        if isinstance(value, str | int) and str(value) in booleans:
            return booleans[str(value)]
        raise self._wrong(name, value, "true or false")

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        """Return a string."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a text")
        return value

    def texts(self, name: str, default: Any = _REQUIRED) -> tuple[str, ...]:
        """Return a list of strings."""
        value = self._value(name, default)
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, value, "a list of texts")
        return tuple(value)

    def integers(self, name: str) -> tuple[int, ...]:
        """Return a list of integers, 0 or more."""
        value = self._value(name, _REQUIRED)
        if not isinstance(value, list | tuple) or not all(
            type(item) is int and 0 <= item < 2**63 for item in value
        ):
            raise self._wrong(name, value, "a list of integers from 0")
        return tuple(value)

    def objects(self, name: str, default: Any = _REQUIRED) -> Sequence[TypedFields]:
        """Return a list of objects."""
        value = self._value(name, default)
        if not isinstance(value, list | tuple):
            raise self._wrong(name, value, "a list of objects")
        return [TypedFields(f"{self.file_name}: {name}", item) for item in value]

    def object(self, name: str, default: Any = _REQUIRED) -> TypedFields:
        """Return an object."""
        value = self._value(name, default)
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "an object of named fields")
        return TypedFields(f"{self.file_name}: {name}", value)

    def _value(self, name: str, default: Any) -> Any:
        value = self.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise UserError(f"{self.file_name}: lacks {name}")
        return default

    def _wrong(self, name: str, value: Any, expected: str) -> UserError:
        return UserError(
            f"{self.file_name}: {short_repr(name)[1:-1]}={short_repr(value)} must be {expected}"
        )


def short_repr(value: Any) -> str:
    """Return a short representation of any value."""
    try:
        return reprlib.repr(value)
    except Exception:  # e.g. integers of thousands of digits, objects with a faulty representation
        return f"<{type(value).__name__}>"


@contextlib.contextmanager
def prefix_errors(file_name: Path | str) -> Iterator[None]:
    """Prefix errors with the file's name, unless they start with it."""
    try:
        yield
    except UserError as error:
        if str(error).startswith(str(file_name)):
            raise
        raise UserError(f"{file_name}: {error}") from error
