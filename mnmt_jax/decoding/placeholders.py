"""Placeholders, addresses and variables in a text, which a translation must keep byte for byte."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

_PLACEHOLDER = re.compile(
    r"""
    https?://[^\s<>"]*[^\s<>"'.,;:!?)\]}]           # URLs, without final punctuation
    | www\.[^\s<>"]*[^\s<>"'.,;:!?)\]}]
    | [\w.+-]+@[\w-]+(?:\.[\w-]+)+                  # e-mail addresses
    | \$?\{\{?\s*[\w.:$-]*\s*\}?\}                  # {name}, {0}, {{ name }}, ${VAR}
    | %\([\w.]+\)[-+ #0]*\d*(?:\.\d+)?[a-zA-Z]      # %(x)s
    | %(?:\d+\$)?[-+#0]*\d*(?:\.\d+)?(?:hh|h|ll|l|z)?[sdifuxXeEgGcpo](?![a-zA-Z])  # %s, %1$s, %.2f
    | \$[A-Z_][A-Z0-9_]+\b                          # $VAR
    | __\w+?__                                      # __VAR__
    | %[A-Z_][A-Z0-9_]*%                            # %VAR%
    | <(?:\d+|/\d+|\d+\s*/)>                        # <0>, </0>, <1/>
    """,
    re.VERBOSE,
)


def find_placeholders(text: str) -> list[str]:
    """Return the placeholders of a text, in order."""
    return [match.group() for match in _PLACEHOLDER.finditer(text)]


def split_at_placeholders(text: str) -> list[tuple[str, str]]:
    """Return the text before each placeholder with the placeholder, and the rest with ''."""
    pieces, start = [], 0
    for match in _PLACEHOLDER.finditer(text):
        pieces.append((text[start : match.start()], match.group()))
        start = match.end()
    return [*pieces, (text[start:], "")]


def change_around_placeholders(text: str, change: Callable[[str], str]) -> str:
    """Return a text with what is not a placeholder changed."""
    pieces = split_at_placeholders(text)
    return "".join(change(before) + placeholder for before, placeholder in pieces)


def keeps_placeholders(text: str, translation: str) -> bool:
    """Return whether a translation has each placeholder of a text as often as the text."""
    wanted = Counter(find_placeholders(text))
    return all(translation.count(name) == text.count(name) for name in wanted) and (
        Counter(find_placeholders(translation)) == wanted
    )
