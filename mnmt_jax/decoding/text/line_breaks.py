"""Line breaks in a text: how wrapped lines are joined, and where a translation is wrapped."""

from __future__ import annotations

import bisect
import re
import unicodedata
from collections.abc import Iterable, Sequence

from mnmt_jax.decoding.text.placeholders import placeholder_spans
from mnmt_jax.vocabulary.language_codes import is_spaceless

SPACES = " \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029"
"""Characters of which several are one space; no-break, wide and thin spaces are kept."""

TAG = r"</?[a-zA-Z][^<>]*>"
_TAG_OR_SPACES = re.compile(rf"{TAG}| +")
_WHOLE = re.compile(
    rf"{TAG}|</?\d+/?>"
    r"|[!-;=?-~\u00c0-\u052f]+"  # ASCII and other letters of alphabets with spaces
    r"|[\U0001f1e6-\U0001f1ff]{2}"  # a flag
)
_JOINERS = frozenset("\u200d\u2060")
_MODIFIERS = frozenset(map(chr, range(0x1F3FB, 0x1F400)))  # of the colour of an emoji


def line_break_spans(text: str, language: str) -> list[tuple[int, int]]:
    """Return the spans of a line in whose place a line break may be.

    They are its spaces outside of tags and placeholders; without any, in a language without spaces,
    the places between characters. Tags, numbers, placeholders, words of other scripts and emoji are
    not divided, and an element does not start at the end of a line or end at the start of one.
    """
    spaced = (span for span in placeholder_spans(text) if " " in text[slice(*span)])
    inside = {place for start, end in spaced for place in range(start + 1, end)}
    spans = (match.span() for match in _TAG_OR_SPACES.finditer(text))
    spaces = [span for span in spans if text[span[0]] == " " and span[0] not in inside]
    if spaces or not is_spaceless(language):
        return spaces
    inside |= {index for match in _WHOLE.finditer(text) for index in _indivisible(match)}
    places = (index for index in range(1, len(text)) if index not in inside)
    return [(index, index) for index in places if not _is_joined(*text[index - 1 : index + 1])]


def join_wrapped(lines: Iterable[str]) -> str:
    """Return wrapped lines as one line; tags are not looked at.

    A line break is a space, but nothing between two wide characters, such as those of Chinese and
    Japanese. Hangul, which has spaces, counts as narrow.

    Source: CSS Text Module Level 3, section 4.1.3.
    """
    joined, before = [], ""
    for number, line in enumerate(lines):
        text = re.sub(TAG, "", line)
        joined += [line_joint(before, text), line] if number else [line]
        before = text
    return "".join(joined)


def line_joint(before: str, after: str) -> str:
    """Return what a line break between two lines is in one line, as `join_wrapped` joins them."""
    is_one_word = before and after and all(map(_is_wide, (before[-1], after[0])))
    return "" if is_one_word else " "


def _is_wide(character: str) -> bool:
    if unicodedata.east_asian_width(character) not in "WFH":
        return False
    return not unicodedata.name(character, "").startswith(("HANGUL", "HALFWIDTH HANGUL"))


def _indivisible(match: re.Match[str]) -> range:
    """Return the places inside of a word or tag, after a start tag, and before an end tag."""
    is_end_tag, is_tag = match[0].startswith("</"), match[0].startswith("<")
    return range(match.start() + (not is_end_tag), match.end() + (is_tag and not is_end_tag))


def _is_joined(first: str, second: str) -> bool:
    """Return whether two characters are of one, as a letter and its accent."""
    is_mark = unicodedata.category(second)[0] == "M" or second in _MODIFIERS
    return is_mark or not _JOINERS.isdisjoint((first, second))


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
