"""What a locale's own CLDR file says, without what it inherits from root or from English.

Babel's `Locale` answers every question, if need be with root's entry ("y MMMM d", "+3 h", a bare
code), and such text is no translation. So the data files are read here one by one: an entry counts
only if the locale (or a parent other than root) holds it.
"""

from __future__ import annotations

import functools
import os
import pickle
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from babel.core import Locale, get_global
from babel.dates import tokenize_pattern
from babel.localedata import resolve_locale_filename

from mnmt_jax.errors import UserError

Fields = Mapping[str, int]
"""Calendar fields by letter: y year, M month, d day, E weekday (0 Monday), Q, w, W, H, m."""

Pattern = Callable[[Fields], str]
"""A compiled date pattern: takes fields, gives text."""

_BABEL_NAMES = {"tl": "fil", "nb": "no"}
_SPACES = re.compile(r"\s+")
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200e\u200f\u061c\ufeff"))
_WIDER = {"MMM": "MMMM", "LLL": "LLLL", "EEE": "EEEE", "E": "EEEE", "ccc": "cccc", "QQQ": "QQQQ"}


def normalize(text: str) -> str:
    """Brings text to NFC with plain single spaces and without direction marks; keeps end spaces."""
    return _SPACES.sub(" ", unicodedata.normalize("NFC", text).translate(_INVISIBLE))


def babel_name(language: str) -> str:
    """Returns Babel's name of a language's locale ("fil" for "tl").

    Raises:
        UserError: if Babel has no data for the language.
    """
    name = _BABEL_NAMES.get(language, language)
    if not os.path.exists(resolve_locale_filename(name)):
        raise UserError(f"language {language!r}: CLDR has no data for it, leave it out of 'cldr'")
    return name


@functools.cache
def _file(name: str) -> dict[str, Any]:
    """Reads one locale's data file; `babel.localedata.load` would merge and cache globally."""
    with open(resolve_locale_filename(name), "rb") as file:
        return pickle.load(file)


def _files(name: str) -> list[dict[str, Any]]:
    """Returns the data of a locale and its parents, nearest first, without root."""
    found = []
    while name and name != "root":
        found.append(_file(name))
        name = get_global("parent_exceptions").get(name) or name.rpartition("_")[0]
    return found


def _walk(data: Any, path: Sequence[Any]) -> Any:
    """Follows a path of keys; None where it leads nowhere or to an alias."""
    for key in path:
        if not isinstance(data, dict) or key not in data:
            return None
        data = data[key]
    return data if isinstance(data, (str, list, dict)) or hasattr(data, "pattern") else None


class LocaleData:
    """Gives one language's own CLDR entries and compiles its patterns.

    Args:
        language: code of `mnmt_jax.vocabulary.languages`.

    Raises:
        UserError: if Babel has no data for the language.
    """

    def __init__(self, language: str) -> None:
        self.language = language
        self._name = babel_name(language)
        self._data = _files(self._name)
        locale = Locale.parse(self._name)
        self.plural = functools.cache(locale.plural_form)
        self.decimal_symbol: str = locale.number_symbols["latn"]["decimal"]

    def own(self, *path: Any) -> Any:
        """Returns the entry at a path of keys if the locale itself holds it, else None."""
        for data in self._data:
            if (entry := _walk(data, path)) is not None:
                return getattr(entry, "pattern", entry)
        return None

    def own_or_wordless(self, *path: Any) -> str | None:
        """Returns the own entry, or root's if it has punctuation only and so suits everyone."""
        entry = self.own(*path)
        if entry is None:
            entry = _walk(_file("root"), path)
            if not isinstance(entry, str) or re.search(r"[^\W\d_]", entry):
                return None
        return entry

    def own_plurals(self, *path: Any) -> dict[str, str]:
        """Returns the strings by plural category at a path; empty if there is no "other"."""
        entry = self.own(*path)
        if not isinstance(entry, dict) or not isinstance(entry.get("other"), str):
            return {}
        return {tag: normalize(text) for tag, text in entry.items() if isinstance(text, str)}

    def skeleton(self, wide: str, narrow: str) -> str | None:
        """Returns the date pattern of a skeleton in words.

        Args:
            wide: skeleton with full names, e.g. "MMMMd".
            narrow: the same with abbreviations, e.g. "MMMd"; widened where `wide` is missing.

        Returns:
            An own pattern; or root's, if the locale's own longer patterns contain it (CLDR leaves
            out what equals root, so this is confirmed, not inherited); else None.
        """
        if pattern := self.own("datetime_skeletons", wide):
            return self.widen(pattern)
        if (pattern := self.own("datetime_skeletons", narrow)) and self._widens_well():
            return self.widen(pattern)
        root = _walk(_file("root"), ("datetime_skeletons", wide))
        pattern = getattr(root, "pattern", root)
        longer = self.own("datetime_skeletons", wide.replace("d", "Ed"))
        return self.widen(pattern) if pattern and longer and pattern in longer else None

    def _widens_well(self) -> bool:
        """Tells if full names may stand where CLDR has abbreviations ("d MMM", "d 'de' MMMM")."""
        narrow, wide = (self.own("datetime_skeletons", name) for name in ("MMMd", "MMMMd"))
        return not (narrow and wide) or self.widen(narrow) == wide

    @staticmethod
    def widen(pattern: str) -> str:
        """Replaces abbreviated month, weekday and quarter fields of a pattern by full ones."""
        return re.sub(
            r"'[^']*'|([A-Za-z])\1*",
            lambda match: _WIDER.get(match.group(), match.group()),
            pattern,
        )

    def interval(self, skeleton: str, greatest: str) -> tuple[Pattern, Pattern] | None:
        """Compiles an interval pattern into its first and second half.

        Args:
            skeleton: e.g. "yMMMd".
            greatest: letter of the greatest field that differs.
        """
        parts = self.own("interval_formats", skeleton, greatest)
        if not isinstance(parts, list) or len(parts) != 2:
            return None
        if self._widens_well():
            parts = [self.widen(part) for part in parts]
        first, second = (self.compile(part) for part in parts)
        return (first, second) if first and second else None

    def compile(self, pattern: str | None) -> Pattern | None:
        """Compiles a date pattern.

        Returns:
            None if there is no pattern or the locale lacks a name the pattern asks for.
        """
        if pattern is None:
            return None
        pieces: list[str | Pattern] = []
        for _, value in tokenize_pattern(pattern):
            piece = normalize(value) if isinstance(value, str) else self._field(*value)
            if piece is None:
                return None
            pieces.append(piece)
        return lambda fields: "".join(
            piece if isinstance(piece, str) else piece(fields) for piece in pieces
        )

    def _field(self, letter: str, width: int) -> Pattern | None:
        """Compiles one field of a date pattern."""
        key = {"Y": "y", "L": "M", "c": "E", "q": "Q"}.get(letter, letter)
        if letter in "yYMLdQqwWHm" and width <= 2:
            digits = 0 if letter in "yY" else width
            return lambda fields: str(fields[key]).zfill(digits)
        if letter == "h":
            return lambda fields: str((fields["H"] - 1) % 12 + 1).zfill(width)
        if letter == "K":
            return lambda fields: str(fields["H"] % 12).zfill(width)
        if letter == "a":
            periods = self._day_periods()
            return lambda fields: periods[fields["H"] >= 12]
        names = self._names(letter, "wide" if width == 4 else "abbreviated")
        return None if names is None else lambda fields: names[fields[key]]

    def _names(self, letter: str, width: str) -> dict[int, str] | None:
        """Returns the own month, weekday or quarter names; stand-alone ones fall back to others."""
        table = {"M": "months", "L": "months", "E": "days", "c": "days", "Q": "quarters"}
        size = {"months": 12, "days": 7, "quarters": 4}
        kind = table.get(letter)
        if kind is None:
            return None
        for context in ("stand-alone", "format") if letter in "Lc" else ("format",):
            names = self.own(kind, context, width)
            if isinstance(names, dict) and len(names) == size[kind]:
                return {number: normalize(name) for number, name in names.items()}
        return None

    def _day_periods(self) -> tuple[str, str]:
        """Returns the AM and PM marks; a locale whose own clock has them may take root's."""
        for width in ("abbreviated", "wide"):
            marks = [self.own("day_periods", "format", width, mark) for mark in ("am", "pm")]
            if all(isinstance(mark, str) for mark in marks):
                return normalize(marks[0]), normalize(marks[1])
        return "AM", "PM"
