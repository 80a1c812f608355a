"""Spaces between translated sentences, where one of the two languages is written without spaces."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from mnmt_jax.vocabulary.language_codes import is_spaceless

_TAG_OR_SPACE = re.compile(r"(<[^<>]*>)| ")


class SentenceSpacing:
    """What stands between translated sentences, or pieces of a sentence.

    From a language without spaces into one with spaces, those that have nothing between them get a
    space. In the other direction a single space is left out beside a wide character, as those of
    Chinese and Japanese; Thai and its relatives keep it. Otherwise all stays as it is: in two
    languages with spaces, what has nothing between it is part of a name or of marks.

    Args:
        source: code of the source language.
        target: code of the target language.
    """

    def __init__(self, source: str, target: str) -> None:
        has_spaces = not is_spaceless(source), not is_spaceless(target)
        self._adds, self._removes = has_spaces == (False, True), has_spaces == (True, False)

    def join(self, parts: Iterable[tuple[str, bool]]) -> str:
        """Join texts in order, each with whether it is a translation or stays as it is."""
        marked: list[tuple[str, str | None, str | None]] = []
        between: str | None = None
        for part, is_translation in parts:
            if is_translation:
                marked.append((part, part, between))
                between = ""
            else:
                marked.append((part, None, None))
                between = None if between is None else between + part
        return self.join_marked(marked)

    def join_marked(self, parts: Iterable[tuple[str, str | None, str | None]]) -> str:
        """Join translations with tags and what stays as it is.

        Args:
            parts: texts in order. Each with the translation that it is, without its tags, or None
                if it stays as it is; and with the text without tags between this translation and
                the one before, or None if they do not belong to one text.
        """
        text = kept = before = ""
        for part, translation, between in parts:
            if translation is None:
                kept += part
                continue
            if between == "" and self._adds:
                kept += " "
            elif between == " " and self._removes and _is_wide(before[-1:], translation[:1]):
                without = _TAG_OR_SPACE.sub(r"\1", kept)
                kept = without if len(without) == len(kept) - 1 else kept
            text += kept + part
            kept, before = "", translation
        return text + kept


def _is_wide(*characters: str) -> bool:
    """Return whether there is a character on both sides, and one of them is wide."""
    return all(characters) and any(unicodedata.east_asian_width(one) in "WF" for one in characters)
