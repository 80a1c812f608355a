"""Texts of files for translators: HTML tags, numbered placeholders and ICU messages in them.

A text with tags is translated as HTML: `Read <a href="x">this</a>`. Placeholders such as `%1` are
not told from prose (`%1 of the users` in Turkish), so they are protected where a flag names their
format. ICU messages, `{n, plural, one {# file} other {# files}}`, have a sentence for each form.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Collection

from mnmt_jax.documents.segments import Segment
from mnmt_jax.errors import pluralize

_TAG = re.compile(
    r"""
      </[a-z][\w:-]*\s*>
    | <[a-z][\w:-]*(?:\s[^<>]*)?/>
    | <[a-z][\w:-]*\s+[\w:-]+\s*=\s*["'][^<>]*>
    | <(?:br|hr|img|p|wbr)(?:\s[^<>]*)?>
    """,
    re.VERBOSE | re.IGNORECASE,
)
_NUMBERED_FORMATS = frozenset(
    "boost-format kde-format kde-kuit-format qt-format qt-plural-format".split()
)
_NUMBERED = r"%(?:L?[1-9]\d?%?|n\b)"
_NUMBERED_OUTSIDE_TAGS = re.compile(rf"<[^<>]*>|({_NUMBERED})")
_OPENING, _CLOSING = '<x translate="no">', "</x>"
_PROTECTED = re.compile(f"{_OPENING}({_NUMBERED}){_CLOSING}")
_REFERENCES = {"&lt;": "<", "&gt;": ">", "&amp;": "&"}
_MESSAGE = re.compile(r"\{\s*+[\w.]++\s*+,\s*+(?:plural|select|selectordinal)\s*+,")


class TaggedText:
    """A text as a segment to translate.

    Args:
        text: the text.
        flags: flags of its entry in a gettext catalog.

    Attributes:
        segment: the text as HTML if it has tags, else as XML if placeholders are protected.
    """

    def __init__(self, text: str, flags: Collection[str] = ()) -> None:
        self._text, has_tags = text, bool(_TAG.search(text))
        has_numbers = not _NUMBERED_FORMATS.isdisjoint(flags) and bool(re.search(_NUMBERED, text))
        self._is_escaped = has_numbers and not has_tags
        fragment = html.escape(text, quote=False) if self._is_escaped else text
        if has_numbers:
            fragment = _NUMBERED_OUTSIDE_TAGS.sub(_protected, fragment)
        self.segment = Segment(fragment, "html" if has_tags else "xml" if has_numbers else "")

    def restored(self, translation: str) -> str:
        """Return the translated text from the translation of the segment.

        Characters that the text does not write as references are not in the translation either.
        """
        if not self.segment.markup:
            return translation
        translation = _PROTECTED.sub(r"\1", translation)
        for reference, character in _REFERENCES.items():
            if self._is_escaped or reference not in self._text:
                translation = translation.replace(reference, character)
        return translation


class MessageFilter:
    """Counter of ICU messages, which are left untranslated."""

    def __init__(self) -> None:
        self._count = 0

    def leaves_out(self, text: str) -> bool:
        """Return whether a text is such a message, and count it."""
        is_message = bool(_MESSAGE.search(text))
        self._count += is_message
        return is_message

    def report(self, name: str, warn: Callable[[str], None]) -> None:
        """Warn of the messages of a file, if there are any."""
        if self._count:
            messages = pluralize(self._count, "ICU message")
            warn(f"{name}: {messages} (plural, select) not translated; translate them by hand")


def _protected(match: re.Match[str]) -> str:
    return f"{_OPENING}{match[1]}{_CLOSING}" if match[1] else match[0]
