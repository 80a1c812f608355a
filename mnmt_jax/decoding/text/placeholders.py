"""Placeholders, addresses and variables in a text, which a translation must keep byte for byte."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

# Characters of scripts without spaces, in which a text may continue directly after an address.
_SPACELESS = (
    r"\u0e00-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u31f0-\u31ff\u3400-\u9fff"
    r"\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
# Characters that end a URL: spaces, quotation marks, and punctuation of these scripts.
_URL_ENDS = (
    r"\s<>\"\u201c\u201d\u3001-\u3004\u3008-\u303f\uff01-\uff0f\uff1a-\uff20\uff61-\uff65"
    r"\u104a\u104b\u17d4\u17d5"
)
_URL = (
    rf"(?:https?://|www\.)(?:[^/?\#{_URL_ENDS}{_SPACELESS}]+(?:[/?\#][^{_URL_ENDS}]*)?"
    rf"|(?=[{_SPACELESS}])[^{_URL_ENDS}]+)"
    r"(?<!['.,;:!?)\]}\u060c\u061b\u061f\u0964\u0965])"  # without final punctuation
)
_NAME, _HOST = rf"(?:[^\W{_SPACELESS}]|[.+-])", rf"(?:[^\W{_SPACELESS}]|-)"  # of e-mail addresses
# Possessive quantifiers (`*+`) keep the time linear in the text.
_PATTERN = (
    r"""
    URL
    | NAME+@HOST+(?:\.HOST+)+
    | \{\s*+\w++\s*+,\s*+(?:plural|select|selectordinal)\s*+,   # ICU: {n, plural, other {#}}
        (?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\}
    | \{\s*+\w++\s*+,\s*+(?:number|date|time|spellout|ordinal|duration)\b[^{}]*+\}  # {n, number}
    | [$%\#]?\{\{?\s*+[\w.$-]*+                     # {name}, {0}, {{ name }}, ${VAR}, %{name}
        (?:\[\w*+\][\w.]*+)*+(?:![rsa])?            # {name[0].key!r}
        (?::(?:[^\s{}|]|\{\w*+\})*+)?               # {name:>{width}}
        (?:\s*+\|\s*+\w++[^\s{}|]*+)*+\s*+\}?\}     # {{ name | upper }}
    | %%?[A-Z_][A-Z0-9_]*%%?                        # %VAR%
    | %%                                            # a percent sign of formats: 100%%
    | %(?:\d+\$)?(?:@|\#@\w+@)                      # %@, %1$@, %#@files@
    | %\([\w.]+\)[-+ #0]*+\d*+(?:\.\d+)?[a-zA-Z]    # %(x)s
    | %(?:\d+\$)?[-+#0]*+\d*+(?:\.\d+)?(?:hh|h|ll|l|z)?[sdifuxXeEgGcpo](?![a-zA-Z])  # %s, %1$s
    | \$[A-Z_][A-Z0-9_]+\b                          # $VAR
    | __\w+?__                                      # __VAR__
    | <(?:\d+|/\d+|\d+\s*/)>                        # <0>, </0>, <1/>
    """.replace("URL", _URL)
    .replace("NAME", _NAME)
    .replace("HOST", _HOST)
)
_PLACEHOLDER = re.compile(_PATTERN, re.VERBOSE)
_NAMES = re.compile(f"{_NAME}*")
# It looks for an address at the beginning of a name alone, because the rest of a name that begins
# no address begins none either.
_NEXT_PLACEHOLDER = re.compile(_PATTERN.replace(_NAME, f"(?<!{_NAME}){_NAME}"), re.VERBOSE)


def find_placeholders(text: str) -> list[str]:
    """Return the placeholders of a text, in order."""
    return [match.group() for match in _matches(text)]


def placeholder_spans(text: str) -> list[tuple[int, int]]:
    """Return where the placeholders of a text are, in order."""
    return [match.span() for match in _matches(text)]


def inside_placeholders(text: str) -> set[int]:
    """Return the places of a text that divide a placeholder."""
    return {place for start, end in placeholder_spans(text) for place in range(start + 1, end)}


def split_at_placeholders(text: str) -> list[tuple[str, str]]:
    """Return the text before each placeholder with the placeholder, and the rest with ''."""
    pieces, start = [], 0
    for match in _matches(text):
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


def _matches(text: str) -> Iterator[re.Match[str]]:
    """Yield what `_PLACEHOLDER.finditer` does, in linear time."""
    end = name_end = 0
    while True:
        match = None
        if end >= name_end:  # after a placeholder an address may begin in a name: %s.a@example.org
            match = _PLACEHOLDER.match(text, end)
            if names := _NAMES.match(text, end):
                name_end = names.end()
        match = match or _NEXT_PLACEHOLDER.search(text, end)
        if match is None:
            return
        yield match
        end = match.end()
