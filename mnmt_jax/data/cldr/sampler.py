"""Random sampler of meanings, and their assignment to splits.

Every meaning has a unique form: meanings that would be rendered alike in some language are the same
tuple. For example, a weekday with month and day has no year, a list has at least two different
items, and the ends of an interval differ.
"""

from __future__ import annotations

import calendar
import hashlib
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from mnmt_jax.data.cldr.inventory import Inventory
from mnmt_jax.data.cldr.renderer import NAME_PATHS, RELATIVE_UNITS, Meaning

Item = TypeVar("Item")
Weights = Sequence[tuple[float, Item]]

SPLITS: tuple[str, ...] = ("train", "validation", "test")
_HELD_OUT_PERCENT = {"validation": 5, "test": 5}

_COMPOSITIONS: dict[str, Weights[str]] = {
    "small": ((0.35, "head"), (0.45, "body"), (0.20, "colon")),
    "large": (
        (0.15, "head"),
        (0.30, "body"),
        (0.25, "colon"),
        (0.12, "dash"),
        (0.08, "paren"),
        (0.10, "note"),
    ),
}
_HEADS: dict[str, Weights[str]] = {
    "small": ((0.40, "date"), (0.15, "datetime"), (0.30, "relative"), (0.15, "months")),
    "large": (
        (0.20, "date"),
        (0.10, "datetime"),
        (0.20, "relative"),
        (0.08, "months"),
        (0.08, "days"),
        (0.07, "month_day"),
        (0.07, "weekday_month_day"),
        (0.05, "month_year"),
        (0.05, "quarter"),
        (0.05, "week_of_year"),
        (0.05, "week_of_month"),
    ),
}
_BODIES: dict[str, Weights[str]] = {
    "small": ((0.45, "list"), (0.20, "quantity"), (0.15, "money"), (0.20, "name")),
    "large": (
        (0.40, "list"),
        (0.17, "quantity"),
        (0.15, "money"),
        (0.08, "rate"),
        (0.20, "name"),
    ),
}
_LIST_ITEMS: dict[str, Weights[str]] = {
    "small": ((0.60, "territory"), (0.25, "language"), (0.15, "amount")),
    "large": (
        (0.35, "territory"),
        (0.25, "language"),
        (0.08, "currency"),
        (0.07, "zone"),
        (0.25, "amount"),
    ),
}
_LIST_SIZES: Weights[int] = ((0.5, 2), (0.35, 3), (0.15, 4))
_MIN_ATOMS = 4


def split_of(meaning: Meaning) -> str:
    """Return the split of a meaning: the same for all languages, directions and seeds."""
    digest = hashlib.blake2b(repr(meaning).encode(), digest_size=8).digest()
    percentile = int.from_bytes(digest, "big") % 100
    for split, percent in _HELD_OUT_PERCENT.items():
        if percentile < percent:
            return split
        percentile -= percent
    return "train"


def _undrawable_phrases(inventory: Inventory) -> set[str]:
    """Return the phrase types that cannot be drawn: no pattern, or too few atoms for a list."""
    undrawable = set(inventory.missing)
    undrawable |= {kind for kind in NAME_PATHS if len(inventory.names.get(kind, ())) < _MIN_ATOMS}
    if len(inventory.units) < _MIN_ATOMS:
        undrawable.add("quantity")
    if "currency" in undrawable:
        undrawable.add("money")
    if {"quantity", "money"} & undrawable:
        undrawable.add("amount")
    if "amount" in undrawable or not inventory.per_units:
        undrawable.add("rate")
    if "territory" in undrawable:
        undrawable |= {"colon", "note"} if inventory.name == "small" else {"note"}
    return undrawable


def missing_phrase_groups(inventory: Inventory) -> list[str]:
    """Return the phrase groups without any drawable type; empty if the inventory is usable."""
    undrawable = _undrawable_phrases(inventory)
    groups = {
        "points in time": [kind for _, kind in _HEADS[inventory.name]],
        "names or amounts": [kind for _, kind in _BODIES[inventory.name] if kind != "list"],
        "names for lists": [kind for _, kind in _LIST_ITEMS[inventory.name]],
        "names": list(inventory.names),
        "short heads": ["long", "relative"],
    }
    return [group for group, kinds in groups.items() if undrawable.issuperset(kinds)]


class Sampler:
    """Random sampler of meanings from an inventory.

    Only `random.Random.random` is used; Python guarantees that its numbers never change.

    Args:
        inventory: the atoms. Phrase types that it lacks are not drawn; `missing_phrase_groups` must
            be empty.
        seed: any string; the same string gives the same meanings.
    """

    def __init__(self, inventory: Inventory, seed: str) -> None:
        digest = hashlib.sha256(seed.encode()).digest()
        self._random = random.Random(int.from_bytes(digest, "big")).random
        self._inventory = inventory
        self._undrawable_phrases = _undrawable_phrases(inventory)
        self._compositions = self._drawable(_COMPOSITIONS[inventory.name])
        self._heads = self._drawable(_HEADS[inventory.name])
        self._bodies = self._drawable(_BODIES[inventory.name])
        self._list_items = self._drawable(_LIST_ITEMS[inventory.name])
        self._names = tuple(
            kind for kind in inventory.names if kind not in self._undrawable_phrases
        )
        self._draw: dict[str, Callable[[], Meaning]] = {
            "date": self._date,
            "datetime": lambda: (
                "datetime",
                *self._day(),
                self._randint_below(24),
                self._randint_below(60),
            ),
            "relative": self._relative,
            "months": self._months,
            "days": self._days,
            "month_day": lambda: ("month_day", *self._day_of_leap_year()),
            "weekday_month_day": lambda: (
                "weekday_month_day",
                self._randint_below(7),
                *self._day_of_leap_year(),
            ),
            "month_year": lambda: ("month_year", self._year(), 1 + self._randint_below(12)),
            "quarter": lambda: ("quarter", self._year(), 1 + self._randint_below(4)),
            "week_of_year": lambda: ("week_of_year", self._year(), 1 + self._randint_below(52)),
            "week_of_month": lambda: (
                "week_of_month",
                1 + self._randint_below(12),
                1 + self._randint_below(4),
            ),
            "list": self._list,
            "quantity": self._quantity,
            "money": self._money,
            "rate": self._rate,
            "name": lambda: self._name(self._choose(self._names)),
        }

    def draw(self) -> Meaning:
        """Draw one meaning."""
        composition = self._choose_weighted(self._compositions)
        if composition == "head":
            return self._head()
        if composition == "body":
            return self._body()
        if self._inventory.name == "small":
            return (composition, self._short_head(), self._name("territory"))
        if composition == "paren":
            return (composition, self._body(), self._head())
        if composition == "note":
            return (composition, self._name("territory"), self._head(), self._body())
        return (composition, self._head(), self._body())

    def _drawable(self, weights: Weights[str]) -> Weights[str]:
        return [(weight, kind) for weight, kind in weights if kind not in self._undrawable_phrases]

    # Numbers.

    def _randint_below(self, limit: int) -> int:
        return int(self._random() * limit)

    def _choose(self, items: Sequence[Item]) -> Item:
        return items[self._randint_below(len(items))]

    def _choose_weighted(self, weights: Weights[Item]) -> Item:
        point = self._random() * sum(weight for weight, _ in weights)
        for weight, item in weights:
            point -= weight
            if point < 0:
                return item
        return weights[-1][1]

    def _number(self) -> int:
        """Draw a number from 1 to the largest of the inventory; half of the time from 1 to 24."""
        return 1 + self._randint_below(self._inventory.numbers if self._random() < 0.5 else 24)

    # Heads: points and spans of time.

    def _head(self) -> Meaning:
        return self._draw[self._choose_weighted(self._heads)]()

    def _short_head(self) -> Meaning:
        date: Meaning = ("date", "long", *self._day())
        prefers_date = self._random() < 0.5
        if "relative" in self._undrawable_phrases or (
            prefers_date and "long" not in self._undrawable_phrases
        ):
            return date
        return self._relative()

    def _year(self) -> int:
        first_year, last_year = self._inventory.years
        return first_year + self._randint_below(last_year - first_year + 1)

    def _day(self) -> tuple[int, int, int]:
        year, month = self._year(), 1 + self._randint_below(12)
        return year, month, 1 + self._randint_below(calendar.monthrange(year, month)[1])

    def _day_of_leap_year(self) -> tuple[int, int]:
        month = 1 + self._randint_below(12)
        return month, 1 + self._randint_below(calendar.monthrange(2000, month)[1])

    def _date(self) -> Meaning:
        return ("date", self._choose(("full", "long")), *self._day())

    def _relative(self) -> Meaning:
        steps = 1 + self._randint_below(min(self._inventory.numbers, 99))
        return ("relative", self._choose(RELATIVE_UNITS), self._choose((1, -1)) * steps)

    def _months(self) -> Meaning:
        year, first_month = self._year(), 1 + self._randint_below(12)
        if first_month == 12 or self._random() < 0.5:
            last_year = year + 1 + self._randint_below(9)
            return ("months", year, first_month, last_year, 1 + self._randint_below(12))
        return (
            "months",
            year,
            first_month,
            year,
            first_month + 1 + self._randint_below(12 - first_month),
        )

    def _days(self) -> Meaning:
        year, month, day = self._day()
        month_length = calendar.monthrange(year, month)[1]
        if month < 12 and (day == month_length or self._random() < 0.5):
            last_month = month + 1 + self._randint_below(12 - month)
            last_day = 1 + self._randint_below(calendar.monthrange(year, last_month)[1])
            return ("days", year, month, day, last_month, last_day)
        day = min(day, month_length - 1)
        return ("days", year, month, day, month, day + 1 + self._randint_below(month_length - day))

    # Bodies: names, amounts, lists.

    def _body(self) -> Meaning:
        return self._draw[self._choose_weighted(self._bodies)]()

    def _name(self, kind: str) -> Meaning:
        return (kind, self._choose(self._inventory.names[kind]))

    def _quantity(self) -> Meaning:
        number: int | str = self._number()
        if self._inventory.decimals and self._random() < 0.2:
            number = f"{self._randint_below(100)}.{1 + self._randint_below(9)}"
        return ("quantity", number, self._choose(self._inventory.units))

    def _money(self) -> Meaning:
        return ("money", self._number(), self._choose(self._inventory.names["currency"]))

    def _rate(self) -> Meaning:
        unit = self._choose(self._inventory.per_units)
        amount = self._money() if self._random() < 0.5 else self._quantity()
        while amount[2] == unit:
            amount = self._quantity()
        return ("rate", amount, unit)

    def _list(self) -> Meaning:
        use_or = self._random() >= 0.7 and "or" not in self._undrawable_phrases
        kind = self._choose_weighted(self._list_items)
        size = self._choose_weighted(_LIST_SIZES)
        items: dict[str, Meaning] = {}
        while len(items) < size:
            item = self._amount() if kind == "amount" else self._name(kind)
            items.setdefault(item[-1], item)
        return ("list", "or" if use_or else "standard", *items.values())

    def _amount(self) -> Meaning:
        return self._quantity() if self._random() < 0.6 else self._money()
