"""Renderer of meanings as text, compiled per language from the CLDR data of the language.

A meaning is a nested tuple whose first entry is its kind:

    ("date", "full" | "long", year, month, day)     ("month_day", month, day)
    ("datetime", year, month, day, hour, minute)    ("weekday_month_day", weekday, month, day)
    ("month_year", year, month)                     ("quarter", year, quarter)
    ("week_of_year", year, week)                    ("week_of_month", month, week)
    ("months", year, month, year, month)            ("days", year, month, day, month, day)
    ("relative", unit, steps)                       steps < 0: the past
    ("territory", code) ("language", code) ("currency", code) ("zone", code)
    ("quantity", number, unit) ("money", number, currency)   number: int, or "2.5"
    ("rate", quantity or money, unit)
    ("list", "standard" | "or", meaning, meaning, ...)
    ("colon", head, body) ("dash", head, body) ("paren", body, head) ("note", name, head, body)
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from mnmt_jax.data.cldr.locale_data import LocaleData, Pattern, normalize

Meaning = tuple[Any, ...]
"""A language-independent phrase: nested tuples of strings and integers."""

NAME_PATHS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "territory": (("territories",), ()),
    "language": (("languages",), ()),
    "currency": (("currency_names",), ()),
    "zone": (("meta_zones",), ("long", "standard")),
}
"""Kinds of names: path of the table of a kind, and path from an entry to its name."""

RELATIVE_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")

# Colon, dash, and parentheses. French has a space before the colon; Chinese and Japanese have
# full-width marks. CLDR has no data for these.
_PUNCTUATION = {
    "fr": (" : ", " – ", " (", ")"),
    "zh": ("：", "——", "（", "）"),
    "ja": ("：", "――", "（", "）"),
}
_DEFAULT_PUNCTUATION = (": ", " – ", " (", ")")

_DATE_PATTERNS: dict[str, Callable[[LocaleData], str | None]] = {
    "full": lambda data: data.own("date_formats", "full"),
    "long": lambda data: data.own("date_formats", "long"),
    "month_day": lambda data: data.skeleton("MMMMd", "MMMd"),
    "weekday_month_day": lambda data: data.skeleton("MMMMEd", "MMMEd"),
    "month_year": lambda data: data.skeleton("yMMMM", "yMMM"),
    "quarter": lambda data: data.skeleton("yQQQQ", "yQQQ"),
    "week_of_year": lambda data: data.own("datetime_skeletons", "yw"),
    "week_of_month": lambda data: data.own("datetime_skeletons", "MMMMW"),
    "time": lambda data: data.own("time_formats", "short"),
}

_NON_FINAL_SEPARATORS = ("start", "middle")

_INTERVALS = {
    ("months", False): ("yMMMM", "M"),
    ("months", True): ("yMMMM", "y"),
    ("days", False): ("yMMMd", "d"),
    ("days", True): ("yMMMd", "M"),
}


class Renderer:
    """Renderer of meanings in one language.

    Args:
        language: code of `mnmt_jax.vocabulary.languages`.

    Raises:
        UserError: if CLDR has no data for the language.
    """

    def __init__(self, language: str) -> None:
        self.language = language
        self._locale = LocaleData(language)
        self._dates = {
            kind: self._locale.compile(look_up(self._locale))
            for kind, look_up in _DATE_PATTERNS.items()
        }
        self._intervals = {
            key: self._locale.interval(*arguments) for key, arguments in _INTERVALS.items()
        }
        self._date_time = self._date_time_pattern()
        self._separators = {style: self._list_separators(style) for style in ("standard", "or")}
        self._marks = _PUNCTUATION.get(language, _DEFAULT_PUNCTUATION)
        self.names = {kind: self._own_names(kind) for kind in NAME_PATHS}
        self._amount_patterns = functools.cache(self._amount_patterns_of)
        self._relative_patterns = functools.cache(lambda unit: self.relative_patterns(unit) or ())
        self._kinds: dict[str, Callable[..., str]] = {
            kind: getattr(self, f"_{kind}")
            for kind in (
                "date datetime month_day weekday_month_day month_year quarter week_of_year "
                "week_of_month months days relative territory language currency zone quantity "
                "money rate list colon dash paren note"
            ).split()
        }

    def render(self, meaning: Meaning) -> str:
        """Render a meaning as text.

        Raises:
            KeyError, TypeError: if the language lacks an entry that the meaning needs; inventories
                exclude such meanings.
        """
        return self._kinds[meaning[0]](*meaning[1:])

    # Available entries of the language.

    def missing_phrases(self) -> frozenset[str]:
        """Return the phrase types for which the language has no pattern."""
        missing = {kind for kind, pattern in self._dates.items() if pattern is None}
        missing |= {kind for (kind, _), halves in self._intervals.items() if halves is None}
        lists = {"standard": "list", "or": "or"}
        missing |= {
            lists[style] for style, separators in self._separators.items() if separators is None
        }
        missing |= {"relative" for unit in RELATIVE_UNITS if self.relative_patterns(unit) is None}
        if {"full", "long"} & missing:
            missing.add("date")
        if not self._date_time or {"long", "time"} & missing:
            missing.add("datetime")
        return frozenset(missing)

    def relative_patterns(self, unit: str) -> tuple[dict[str, str], dict[str, str]] | None:
        """Return the patterns of "in 3 days" and "3 days ago" by plural category."""
        future, past = (
            self._locale.own_plurals("date_fields", unit, tense) for tense in ("future", "past")
        )
        return (future, past) if future and past else None

    def unit_patterns(self, unit: str, length: str = "long") -> dict[str, str]:
        """Return a unit's patterns by plural category (and "per").

        Args:
            unit: CLDR's name, e.g. "length-kilometer".
            length: "long" (falls back to the short form, as CLDR does) or "short".
        """
        look_up = self._locale.own
        lengths = ("long", "short") if length == "long" else ("short",)
        tables = [self._locale.own_plurals("unit_patterns", unit, length) for length in lengths]
        patterns = dict(next((table for table in tables if table), {}))
        per = next(
            (
                pattern
                for pattern in (look_up("unit_patterns", unit, name, "per") for name in lengths)
                if pattern
            ),
            None,
        )
        if patterns and per:
            patterns["per"] = normalize(per)
        return patterns

    def units(self) -> tuple[str, ...]:
        """Return the units for which the language has a plural pattern."""
        table = self._locale.own("unit_patterns") or {}
        return tuple(unit for unit in table if self.unit_patterns(unit))

    def currency_patterns(self, code: str) -> dict[str, str]:
        """Return "{0} Swiss francs" by plural category; without plurals, the name as in CLDR."""
        names = self._locale.own_plurals("currency_names_plural", code)
        names = names or {"other": self.names["currency"][code]}
        units = self._locale.own_plurals("currency_unit_patterns") or {"other": "{0} {1}"}
        tags = sorted({*names, *units})
        return {
            tag: units.get(tag, units["other"]).replace("{1}", names.get(tag, names["other"]))
            for tag in tags
        }

    def _own_names(self, kind: str) -> dict[str, str]:
        """Return the names of a kind by code."""
        table_path, name_path = NAME_PATHS[kind]
        names = {}
        for code in self._locale.own(*table_path) or {}:
            name = self._locale.own(*table_path, code, *name_path)
            if isinstance(name, str) and normalize(name).strip() not in ("", code):
                names[code] = normalize(name).strip()
        return names

    def _date_time_pattern(self) -> str:
        """Return the unquoted pattern that joins a date {1} and a time {0}; empty if missing."""
        return normalize(self._locale.own("datetime_formats", "long") or "").replace("'", "")

    def _list_separators(self, style: str) -> dict[str, str] | None:
        """Return the separators of list items by position: "2", "start", "middle", "end"."""
        separators = {}
        for position in ("2", "start", "middle", "end"):
            # A comma between items may be inherited, but "and" must be from the language itself.
            look_up = (
                self._locale.own_or_wordless
                if position in _NON_FINAL_SEPARATORS
                else self._locale.own
            )
            pattern = look_up("list_patterns", style, position)
            if pattern is None or not (pattern.startswith("{0}") and pattern.endswith("{1}")):
                return None
            separators[position] = normalize(pattern[3:-3])
        return separators

    # Points and spans of time.

    def _pattern(self, kind: str) -> Pattern:
        pattern = self._dates[kind]
        if pattern is None:
            raise KeyError(f"{self.language} has no pattern for {kind!r}")
        return pattern

    def _date(self, style: str, year: int, month: int, day: int) -> str:
        weekday = datetime.date(year, month, day).weekday()
        return self._pattern(style)({"y": year, "M": month, "d": day, "E": weekday})

    def _datetime(self, year: int, month: int, day: int, hour: int, minute: int) -> str:
        date = self._date("long", year, month, day)
        time = self._pattern("time")({"H": hour, "m": minute})
        return self._date_time.replace("{1}", date).replace("{0}", time)

    def _month_day(self, month: int, day: int) -> str:
        return self._pattern("month_day")({"M": month, "d": day})

    def _weekday_month_day(self, weekday: int, month: int, day: int) -> str:
        return self._pattern("weekday_month_day")({"E": weekday, "M": month, "d": day})

    def _month_year(self, year: int, month: int) -> str:
        return self._pattern("month_year")({"y": year, "M": month})

    def _quarter(self, year: int, quarter: int) -> str:
        return self._pattern("quarter")({"y": year, "Q": quarter})

    def _week_of_year(self, year: int, week: int) -> str:
        return self._pattern("week_of_year")({"y": year, "w": week})

    def _week_of_month(self, month: int, week: int) -> str:
        return self._pattern("week_of_month")({"M": month, "W": week})

    def _months(self, first_year: int, first_month: int, last_year: int, last_month: int) -> str:
        return self._interval(
            ("months", first_year != last_year),
            {"y": first_year, "M": first_month},
            {"y": last_year, "M": last_month},
        )

    def _days(
        self, year: int, first_month: int, first_day: int, last_month: int, last_day: int
    ) -> str:
        return self._interval(
            ("days", first_month != last_month),
            {"y": year, "M": first_month, "d": first_day},
            {"y": year, "M": last_month, "d": last_day},
        )

    def _interval(self, key: tuple[str, bool], start: dict[str, int], end: dict[str, int]) -> str:
        halves = self._intervals[key]
        if halves is None:
            raise KeyError(f"{self.language} has no interval pattern for {key!r}")
        return halves[0](start) + halves[1](end)

    def _relative(self, unit: str, steps: int) -> str:
        return self._count(self._relative_patterns(unit)[steps < 0], abs(steps))

    # Names, numbers, lists.

    def _territory(self, code: str) -> str:
        return self.names["territory"][code]

    def _language(self, code: str) -> str:
        return self.names["language"][code]

    def _currency(self, code: str) -> str:
        return self.names["currency"][code]

    def _zone(self, code: str) -> str:
        return self.names["zone"][code]

    def _count(self, patterns: dict[str, str], number: int | str) -> str:
        """Insert a number into the pattern of its plural category."""
        tag = self._locale.plural(Decimal(number))
        text = str(number).replace(".", self._locale.decimal_symbol)
        return patterns.get(tag, patterns["other"]).replace("{0}", text)

    def _amount_patterns_of(self, kind: str, code: str) -> dict[str, str]:
        return self.unit_patterns(code) if kind == "unit" else self.currency_patterns(code)

    def _quantity(self, number: int | str, unit: str) -> str:
        return self._count(self._amount_patterns("unit", unit), number)

    def _money(self, number: int | str, currency: str) -> str:
        return self._count(self._amount_patterns("currency", currency), number)

    def _rate(self, amount: Meaning, unit: str) -> str:
        return self._amount_patterns("unit", unit)["per"].replace("{0}", self.render(amount))

    def _list(self, style: str, *items: Meaning) -> str:
        separators = self._separators[style]
        if separators is None:
            raise KeyError(f"{self.language} has no pattern for 'list'")
        texts = [self.render(item) for item in items]
        text = texts[0]
        for number, item in enumerate(texts[1:], start=2):
            position = "2" if len(texts) == 2 else "end" if number == len(texts) else "middle"
            if number == 2 and len(texts) > 2:
                position = "start"
            separator = separators[position]
            if self.language == "es":
                separator = spanish_conjunction(separator, item)
            text += separator + item
        return text

    # Compositions.

    def _colon(self, head: Meaning, body: Meaning) -> str:
        return self.render(head) + self._marks[0] + self.render(body)

    def _dash(self, head: Meaning, body: Meaning) -> str:
        return self.render(head) + self._marks[1] + self.render(body)

    def _paren(self, body: Meaning, head: Meaning) -> str:
        return self.render(body) + self._marks[2] + self.render(head) + self._marks[3]

    def _note(self, name: Meaning, head: Meaning, body: Meaning) -> str:
        return self._dash(name, ("colon", head, body))


def spanish_conjunction(separator: str, following: str) -> str:
    """Replace Spanish "y" by "e" before the sound i, and "o" by "u" before the sound o."""
    word = following.lower()
    if separator == " y ":
        sounds_i = word.startswith(("i", "í")) or (
            word.startswith(("hi", "hí")) and not word.startswith(("hia", "hie", "hía", "híe"))
        )
        return " e " if sounds_i else separator
    if separator == " o ":
        eleven = word.startswith("11") and not word[2:3].isdigit()
        return " u " if eleven or word.startswith(("o", "ó", "ho", "hó", "8")) else separator
    return separator
