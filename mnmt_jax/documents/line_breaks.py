"""Places of line breaks in a translated text."""

from __future__ import annotations

import bisect
import re
import unicodedata
from collections.abc import Sequence

from mnmt_jax.vocabulary.language_codes import is_spaceless


def line_break_spans(text: str, language: str) -> list[tuple[int, int]]:
    """Return the spans of a line in whose place a line break may be.

    They are its spaces; without any, in a language without spaces, the places between characters.
    """
    spaces = [match.span() for match in re.finditer(" +", text)]
    if spaces or not is_spaceless(language):
        return spaces
    letters = (
        index for index in range(1, len(text)) if unicodedata.category(text[index])[0] != "M"
    )
    return [(index, index) for index in letters]


def nearest_space(spaces: Sequence[int], place: float, first: int) -> int | None:
    """Return the index of the space nearest to a place, in logarithmic time.

    Args:
        spaces: places of all spaces, ascending.
        place: the place; of two spaces at one distance the first is taken.
        first: index of the first space that may be taken.

    Returns:
        The index, or None if no space is left.
    """
    after = bisect.bisect(spaces, place, lo=first)
    candidates = range(max(first, after - 1), min(after + 1, len(spaces)))
    return min(candidates, key=lambda number: abs(spaces[number] - place), default=None)
