"""Words and marks of a sentence and of its translation, as spans of characters.

A word that is in both texts has its place in the source, and is divided where an element of the
source starts or ends inside of it:

    source       H<sub>2</sub>O or water    words H, 2, O, or, water
    translation  H2O oder Wasser            words H, 2, O, oder, Wasser
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Mapping, Sequence

import regex

from mnmt_jax.vocabulary.piece_offsets import Span

# A word, a letter of a script without spaces, or a mark.
_SPACELESS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
_UNIT = regex.compile(rf"[{_SPACELESS}]\p{{M}}*|[\w--[{_SPACELESS}]]+|[^\w\s]", regex.VERSION1)
_LETTER = rf"[[\p{{L}}\p{{M}}]--[{_SPACELESS}]]"
_JOINED = regex.compile(rf"{_LETTER}{_LETTER}", regex.VERSION1)
_WORD_START = regex.compile(r"(?<!\w)(?=\w)")
_WORD_END = regex.compile(r"(?<=\w)(?!\w)")


def split_units(text: str, fixed: Collection[Span] = ()) -> list[Span]:
    """Return the words and marks of a text.

    Args:
        text: any text.
        fixed: spans of it that are a unit each, whatever is in them.
    """
    units, position = list(fixed), 0
    for start, end in [*sorted(fixed), (len(text), len(text))]:
        units += [match.span() for match in _UNIT.finditer(text, position, start)]
        position = end
    return sorted(units)


def is_mark(text: str) -> bool:
    """Return whether a text has neither letters nor digits."""
    return not any(character.isalnum() for character in text)


def joins_words(before: str, after: str) -> bool:
    """Return whether a text beside the next one makes one word of the last and the first of both.

    Letters of scripts without spaces are words by themselves.
    """
    return bool(_JOINED.fullmatch(before[-1:] + after[:1]))


def find_copies(source: str, translation: str, spans: Sequence[Span]) -> list[Span] | None:
    """Return where parts of a sentence are in its translation, literally.

    A part is found as whole words, unless it is a part of a word in the sentence. The second of
    three equal ones is the second of three in the translation.

    Args:
        source: the sentence.
        translation: its translation.
        spans: the parts, apart from each other.

    Returns:
        Their spans in the translation; None if a part is not in it as often as in the sentence.
    """
    copies: list[Span] = []
    for span in spans:
        pattern = _pattern(source, span)
        places, candidates = (
            [match.span() for match in pattern.finditer(text, overlapped=True)]
            for text in (source, translation)
        )
        if len(candidates) != len(places):
            return None
        copies.append(candidates[places.index(span)])
    is_apart = all(end <= start for (_, end), (start, _) in itertools.pairwise(sorted(copies)))
    return copies if is_apart else None


def _pattern(text: str, span: Span) -> regex.Pattern[str]:
    """Return a pattern of a part of a text, which has the ends of words where this part has."""
    start, end = span
    before = r"(?<!\w)" if _WORD_START.match(text, start) else ""
    after = r"(?!\w)" if _WORD_END.match(text, end) else ""
    return regex.compile(f"{before}{regex.escape(text[start:end])}{after}")


def aligned_units(
    source: str, translation: str, fixed: Mapping[Span, Span], cuts: Collection[int]
) -> dict[Span, Span | None]:
    """Return the units of a translation in order, with their places in the source if known.

    These are the places of words that are once in both texts, without case, or as often in both if
    one of them is divided.

    Args:
        source: the sentence.
        translation: its translation.
        fixed: spans of the translation that are a unit each, with their spans in the source.
        cuts: places of the source at which words are divided.
    """
    ordered = sorted(cuts)
    words = _by_name(source, set(fixed.values()))
    origins = dict(fixed)
    for name, spans in _by_name(translation, set(fixed)).items():
        places = words.get(name, [])
        is_divided = any(len(_divided(place, ordered)) > 1 for place in places)
        if len(places) == len(spans) and (len(spans) == 1 or is_divided):
            origins.update(zip(spans, places, strict=True))
    units: dict[Span, Span | None] = {}
    for first, last in split_units(translation, fixed):
        origin = origins.get((first, last))
        if origin is None or last - first != origin[1] - origin[0]:
            units[first, last] = origin
            continue
        for start, end in _divided(origin, ordered):
            units[first - origin[0] + start, first - origin[0] + end] = start, end
    return units


def _by_name(text: str, fixed: Collection[Span]) -> dict[str, list[Span]]:
    """Return the spans of each word of a text, without case; fixed ones and marks are no words."""
    words: dict[str, list[Span]] = {}
    for start, end in split_units(text, fixed):
        if (start, end) not in fixed and not is_mark(text[start:end]):
            words.setdefault(text[start:end].casefold(), []).append((start, end))
    return words


def _divided(span: Span, cuts: Sequence[int]) -> list[Span]:
    """Return the parts of a span between those of ascending places that are inside of it."""
    start, end = span
    inside = cuts[bisect.bisect_right(cuts, start) : bisect.bisect_left(cuts, end)]
    return list(itertools.pairwise([start, *inside, end]))
