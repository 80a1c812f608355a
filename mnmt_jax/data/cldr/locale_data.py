"""CLDR entries of a locale, excluding those inherited from root or English.

Babel's `Locale` falls back to root's entries ("y MMMM d", "+3 h", a bare code), which are not
translations. So the data files are read here one by one: an entry counts only if it is in the
file of the locale or of a parent other than root.
"""

from __future__ import annotations

import functools
import operator
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
"""A compiled date pattern: function from fields to text."""

_BABEL_NAMES = {"tl": "fil", "nb": "no"}
_SPACES = re.compile(r"\s+")
_INVISIBLE_CHARACTERS = dict.fromkeys(map(ord, "\u200b\u200e\u200f\u061c\ufeff"))
_WIDE_FIELDS = {
    "MMM": "MMMM",
    "LLL": "LLLL",
    "EEE": "EEEE",
    "E": "EEEE",
    "ccc": "cccc",
    "QQQ": "QQQQ",
}


def normalize(text: str) -> str:
    """Return text in NFC, with single plain spaces, without direction marks; keeps end spaces."""
    return _SPACES.sub(" ", unicodedata.normalize("NFC", text).translate(_INVISIBLE_CHARACTERS))


def babel_name(language: str) -> str:
    """Return Babel's name of a language's locale ("fil" for "tl").

    Raises:
        UserError: if Babel has no data for the language.
    """
    name = _BABEL_NAMES.get(language, language)
    if not os.path.exists(resolve_locale_filename(name)):
        raise UserError(f"language {language!r}: CLDR has no data for it, leave it out of 'cldr'")
    return name


@functools.cache
def _file(name: str) -> dict[str, Any]:
    """Read the data file of one locale; `babel.localedata.load` would merge and cache globally."""
    with open(resolve_locale_filename(name), "rb") as file:
        return pickle.load(file)


def _inherited_files(name: str) -> list[dict[str, Any]]:
    """Return the data of a locale and its parents, nearest first, without root."""
    files = []
    while name and name != "root":
        files.append(_file(name))
        name = get_global("parent_exceptions").get(name) or name.rpartition("_")[0]
    return files


def _look_up(data: Any, path: Sequence[Any]) -> Any:
    """Return the value at a path of keys; None if there is none or it is an alias."""
    for key in path:
        if not isinstance(data, dict) or key not in data:
            return None
        data = data[key]
    return data if isinstance(data, (str, list, dict)) or hasattr(data, "pattern") else None


class LocaleData:
    """CLDR entries of one language, and compilation of its patterns.

    Args:
        language: code of `mnmt_jax.vocabulary.languages`.

    Raises:
        UserError: if Babel has no data for the language.
    """

    def __init__(self, language: str) -> None:
        self.language = language
        self._name = babel_name(language)
        self._data = _inherited_files(self._name)
        locale = Locale.parse(self._name)
        self.plural = functools.cache(locale.plural_form)
        self.decimal_symbol: str = locale.number_symbols["latn"]["decimal"]

    def own(self, *path: Any) -> Any:
        """Return the entry at a path of keys if the locale itself has it, else None.

        A table has the entries of the locale and of its parents, and the nearest one of a key.
        """
        entries = [entry for data in self._data if (entry := _look_up(data, path)) is not None]
        if not entries:
            return None
        if isinstance(entries[0], dict):
            tables = [entry for entry in reversed(entries) if isinstance(entry, dict)]
            return functools.reduce(operator.or_, tables)
        return getattr(entries[0], "pattern", entries[0])

    def own_or_wordless(self, *path: Any) -> str | None:
        """Return the locale's entry; else root's entry if it is only punctuation; else None."""
        entry = self.own(*path)
        if entry is None:
            entry = _look_up(_file("root"), path)
            if not isinstance(entry, str) or re.search(r"[^\W\d_]", entry):
                return None
        return entry

    def own_plurals(self, *path: Any) -> dict[str, str]:
        """Return the strings by plural category at a path; empty if there is no "other"."""
        entry = self.own(*path)
        if not isinstance(entry, dict) or not isinstance(entry.get("other"), str):
            return {}
        return {tag: normalize(text) for tag, text in entry.items() if isinstance(text, str)}

    def skeleton(self, wide: str, narrow: str) -> str | None:
        """Return the date pattern of a skeleton, with names in full.

        Args:
            wide: skeleton with full names, e.g. "MMMMd".
            narrow: the same with abbreviations, e.g. "MMMd"; it is widened if `wide` is missing.

        Returns:
            The locale's pattern; or root's, if the locale's longer patterns contain it (CLDR omits
            entries that equal root's, so this is confirmed, not inherited); else None.
        """
        if pattern := self.own("datetime_skeletons", wide):
            return self.widen(pattern)
        if (pattern := self.own("datetime_skeletons", narrow)) and self._can_widen():
            return self.widen(pattern)
        root = _look_up(_file("root"), ("datetime_skeletons", wide))
        pattern = getattr(root, "pattern", root)
        longer = self.own("datetime_skeletons", wide.replace("d", "Ed"))
        return self.widen(pattern) if pattern and longer and pattern in longer else None

    def _can_widen(self) -> bool:
        """Return whether full names may replace abbreviations ("d MMM", "d 'de' MMMM")."""
        narrow, wide = (self.own("datetime_skeletons", name) for name in ("MMMd", "MMMMd"))
        return not (narrow and wide) or self.widen(narrow) == wide

    @staticmethod
    def widen(pattern: str) -> str:
        """Replace abbreviated month, weekday and quarter fields of a pattern by full ones."""
        return re.sub(
            r"'[^']*'|([A-Za-z])\1*",
            lambda match: _WIDE_FIELDS.get(match.group(), match.group()),
            pattern,
        )

    def interval(self, skeleton: str, greatest: str) -> tuple[Pattern, Pattern] | None:
        """Compile an interval pattern into its first and second half; None if it is missing.

        Args:
            skeleton: e.g. "yMMMd".
            greatest: letter of the greatest field that differs.
        """
        halves = self.own("interval_formats", skeleton, greatest)
        if not isinstance(halves, list) or len(halves) != 2:
            return None
        if self._can_widen():
            halves = [self.widen(half) for half in halves]
        first_half, second_half = (self.compile(half) for half in halves)
        return (first_half, second_half) if first_half and second_half else None

    def compile(self, pattern: str | None) -> Pattern | None:
        """Compile a date pattern.

        Returns:
            The compiled pattern; None if there is no pattern or the locale lacks a name in it.
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
        """Compile one field of a date pattern."""
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
        """Return month, weekday or quarter names; stand-alone ones fall back to format names."""
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
        """Return the AM and PM marks; falls back to root's "AM" and "PM"."""
        for width in ("abbreviated", "wide"):
            marks = [self.own("day_periods", "format", width, mark) for mark in ("am", "pm")]
            if all(isinstance(mark, str) for mark in marks):
                return normalize(marks[0]), normalize(marks[1])
        return "AM", "PM"
