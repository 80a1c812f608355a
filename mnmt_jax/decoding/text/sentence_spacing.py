"""Spaces between translated sentences, where one of the two languages is written without spaces."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from mnmt_jax.vocabulary.language_codes import is_spaceless, parse_code

_WIDE = frozenset("ja wuu yue zh".split())  # languages of wide characters and no spaces


class SentenceSpacing:
    """Separators of translated sentences, or of translated pieces of a sentence.

    From a language without spaces into one with spaces, those that have nothing between them get a
    space. From one with spaces into Chinese or Japanese, a single space is left out beside a wide
    character. Otherwise all stays as it is: in two languages with spaces, what has nothing between
    it is part of a name or of marks.

    Args:
        source: code of the source language.
        target: code of the target language.
        is_wrapped: whether line breaks are put at spaces afterwards; then none is left out.
    """

    def __init__(self, source: str, target: str, *, is_wrapped: bool = False) -> None:
        is_wide = parse_code(target).language in _WIDE
        self._adds = is_spaceless(source) and not is_spaceless(target)
        self._removes = not is_spaceless(source) and is_wide and not is_wrapped

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
            parts: texts in order; a space between translations is a part by itself. Each with the
                translation that it is, without its tags, or None if it stays as it is; and with
                the text without tags between this translation and the one before, or None if they
                do not belong to one text.
        """
        joined: list[str] = []
        kept: list[str] = []
        before = ""
        for part, translation, between in parts:
            kept.append(part)
            if translation is None:
                continue
            if between == "" and self._adds:
                kept.insert(-1, " ")
            elif between == " " and self._removes and _is_wide(before, translation):
                kept = _without_a_space(kept)
            joined += kept
            kept, before = [], translation
        return "".join(joined + kept)


def _without_a_space(parts: list[str]) -> list[str]:
    """Return parts without the one that is a space; all, if the space is written otherwise."""
    return [part for part in parts if part != " "] if parts.count(" ") == 1 else parts


def _is_wide(before: str, after: str) -> bool:
    """Return whether a character beside the place between two texts is wide, and no emoji.

    Quotes, dashes and dots, which these languages share with others, count as wide.
    """
    return bool(before and after) and any(map(_is_wide_character, (before[-1], after[0])))


def _is_wide_character(character: str) -> bool:
    width, category = unicodedata.east_asian_width(character), unicodedata.category(character)
    return category[0] in "LNP" and (width in "WF" or (width == "A" and category[0] == "P"))
