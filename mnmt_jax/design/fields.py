"""Field types of the configuration: ranges, choices and validation."""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from mnmt_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Range:
    """The range of numbers allowed in a field, or in each entry of a tuple.

    Attributes:
        low: smallest value.
        high: largest value.
        exclude_low: whether `low` is excluded.
        exclude_high: whether `high` is excluded.
    """

    low: float = -math.inf
    high: float = math.inf
    exclude_low: bool = False
    exclude_high: bool = False

    def __contains__(self, value: float) -> bool:
        too_small = value <= self.low if self.exclude_low else value < self.low
        too_large = value >= self.high if self.exclude_high else value > self.high
        is_number = isinstance(value, int) or math.isfinite(value)
        return is_number and not too_small and not too_large

    def __str__(self) -> str:
        limits = []
        if self.low > -math.inf:
            limits.append(f"{'above' if self.exclude_low else 'at least'} {_plain(self.low)}")
        if self.high < math.inf:
            limits.append(f"{'below' if self.exclude_high else 'at most'} {_plain(self.high)}")
        return " and ".join(limits) or "finite"


def _plain(limit: float) -> str:
    """Return a limit in the shortest form: integers with all digits."""
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


@dataclasses.dataclass(frozen=True, eq=False)
class NamedValues:
    """The (name, value) pairs allowed in a field; `()` is allowed too.

    Attributes:
        kinds: the type of each name's value.
    """

    kinds: Mapping[str, Any]

    def checked(self, field: str, value: Any) -> tuple[Any, ...]:
        """Return a pair with its value converted to the declared type.

        Raises:
            UserError: if it is not an allowed pair.
        """
        pair = value if isinstance(value, tuple | list) else (value,)
        if not pair:
            return ()
        name, *values = pair
        if not isinstance(name, str) or name not in self.kinds or len(values) != 1:
            raise UserError(f"{field}={value!r} must be {self}")
        return name, _checked_entry(field, value, values[0], self.kinds[name])

    def __str__(self) -> str:
        pairs = (f"('{name}', {_KINDS[_base(kind)]})" for name, kind in self.kinds.items())
        return f"{', '.join(pairs)} or ()"


@dataclasses.dataclass(frozen=True, eq=False)
class Records:
    """A tuple of short tuples with typed columns.

    Attributes:
        columns: name and type of each column.
        example: an allowed value, for messages.
        default: value of the last column where it is absent; None if it is required.
    """

    columns: Mapping[str, Any]
    example: str
    default: Any = None

    def checked(self, field: str, value: Any) -> tuple[Any, ...]:
        """Return the records with all columns, converted to their types.

        Raises:
            UserError: if a record has another number of columns, or a value is not allowed.
        """
        records = value if isinstance(value, tuple | list) else (value,)
        width = len(self.columns)
        widths = {width} if self.default is None else {width - 1, width}
        if any(not isinstance(row, tuple | list) or len(row) not in widths for row in records):
            raise UserError(f"{field}={value!r} must be a {self}, such as {self.example}")
        return tuple(
            tuple(
                _checked_entry(field, value, entry, kind)
                for entry, kind in zip(
                    (*row, self.default)[:width], self.columns.values(), strict=True
                )
            )
            for row in records
        )

    def __str__(self) -> str:
        names = list(self.columns)
        last = names[-1] if self.default is None else f"[{names[-1]}]"
        return f"tuple of ({', '.join([*names[:-1], last])})"


# The type of a field defines its allowed values. All numbers of the configuration use these types.
# The limits are those of int32 and, with room for powers and sums, of float32.
_MOST = 2**31 - 1
_LARGE = 1e9
Count = Annotated[int, Range(low=1, high=_MOST)]
Amount = Annotated[int, Range(low=0, high=_MOST)]
Layers = Annotated[int, Range(low=1, high=1024)]
Width = Annotated[int, Range(low=1, high=2**20)]
Length = Annotated[int, Range(low=1, high=2**16)]
Seed = Annotated[int, Range(low=0, high=2**32 - 1)]
Weight = Annotated[float, Range(low=0, high=_LARGE)]
Positive = Annotated[float, Range(low=1e-6, high=_LARGE)]
AboveZero = Annotated[float, Range(low=1e-30, high=_LARGE)]
Rate = Annotated[float, Range(low=0, high=1, exclude_high=True)]  # of dropout or label smoothing
Positions = Annotated[tuple[Any, ...], NamedValues({"sinusoidal": Positive, "learned": Count})]
TaskWeights = Annotated[
    tuple[Any, ...],
    Records(
        {
            "task or direction": str,
            "weight": Weight,
            "first pair": Annotated[int, Range(low=0, high=2**62)],
        },
        "(('*-en', 0.05), ('crawl_*', 0, 20000000))",
        default=0,
    ),
]
Remat = Literal[False, "elementwise", "mlp", True]  # from most to least memory
NoiseKind = Literal["lower", "upper", "title", "typos", "tags"]
NoiseShares = Annotated[
    tuple[Any, ...],
    Records(
        {"kind": NoiseKind, "share": Annotated[float, Range(low=0, high=1)]},
        "(('typos', 0.05), ('upper', 0.02))",
    ),
]

_LARGEST_INTEGER = 2**64
_KINDS: Mapping[type, str] = {int: "an integer", float: "a number", str: "a string in quotes"}


class CheckedFields:
    """Base of configuration dataclasses: checks all fields and converts them to their types."""

    def __post_init__(self) -> None:
        """Check all fields.

        Raises:
            UserError: if a value has the wrong type or is out of its range.
        """
        section: Any = type(self)  # mypy calls no class of dataclasses hashable
        for name, kind in field_types(section).items():
            field = f"{section.__name__}.{name}"
            object.__setattr__(self, name, _checked(field, getattr(self, name), kind))


def check_once(key: str, names: Sequence[str]) -> None:
    """Check that a list has no name twice.

    Args:
        key: key of the list.
        names: its names.

    Raises:
        UserError: if one occurs twice.
    """
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"{key} names '{repeated[0]}' twice; leave one of them out")


@functools.cache
def field_types(section: type) -> Mapping[str, Any]:
    """Return the declared type of each field, with its constraints."""
    types = typing.get_type_hints(section, include_extras=True)
    return {field.name: types[field.name] for field in dataclasses.fields(section)}


def _checked(field: str, value: Any, kind: Any) -> Any:
    """Return a value converted to its declared type: lists to tuples, integers to floats."""
    allowed = _allowed(kind)
    if isinstance(allowed, NamedValues | Records):
        return allowed.checked(field, value)
    if typing.get_origin(kind) is not tuple:
        return _checked_entry(field, value, value, kind)
    inner = typing.get_args(kind)[0]
    if not isinstance(value, tuple | list):
        raise UserError(f"{field}={value!r} must be a tuple, such as ({value!r},)")
    if typing.get_origin(inner) is not tuple:
        return tuple(_checked_entry(field, value, entry, inner) for entry in value)
    if not all(isinstance(entry, tuple | list) for entry in value):
        raise UserError(f"{field}={value!r} must be a tuple of tuples, such as ({value!r},)")
    return tuple(_checked(field, entry, inner) for entry in value)


def _checked_entry(field: str, field_value: Any, value: Any, kind: Any) -> Any:
    """Return a value, or an entry of a tuple, converted to its declared type."""
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if not any(value == choice and type(value) is type(choice) for choice in choices):
            raise UserError(
                f"{field}={field_value!r} must be one of {', '.join(map(str, choices))}"
            )
        return value
    allowed = _allowed(kind)
    typed = _typed(field, value, _base(kind))
    if allowed and typed not in allowed:
        raise UserError(
            f"{field}={typed if field_value is value else field_value!r} must be {allowed}"
        )
    return typed


def _allowed(kind: Any) -> Any:
    """Return the constraint of an annotated type; None if there is none."""
    return next(iter(getattr(kind, "__metadata__", ())), None)


def _base(kind: Any) -> Any:
    return typing.get_args(kind)[0] if _allowed(kind) else kind


def _typed(field: str, value: Any, kind: type) -> Any:
    if kind is bool:
        if not isinstance(value, bool):
            raise UserError(f"{field}={value!r} must be True or False")
        return value
    if kind not in _KINDS:
        if not isinstance(value, kind):
            raise UserError(f"{field}={value!r} must be a {kind.__name__}")
        return value
    accepted = (int, float) if kind is float else kind
    if isinstance(value, bool) or not isinstance(value, accepted):
        raise UserError(f"{field}={value!r} must be {_KINDS[kind]}")
    if isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
        raise UserError(f"{field}: a number of {value.bit_length()} bits is out of every range")
    return kind(value)
