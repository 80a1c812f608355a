"""Words and marks of a sentence and of its translation, as spans of characters.

A word that is in both texts has its place in the source, and is divided where an element of the
source starts or ends inside of it:

    source       H<sub>2</sub>O or water    words H, 2, O, or, water
    translation  H2O oder Wasser            words H, 2, O, oder, Wasser

A placeholder, such as {n} or a URL, and a number with separators, such as 10:30, is one word.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

import regex

from mnmt_jax.decoding.text.placeholders import inside_placeholders, placeholder_spans
from mnmt_jax.vocabulary.piece_offsets import Span

# A letter of a script without spaces, a word, or a mark.
_SPACELESS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
_LETTERS = rf"[\w--[{_SPACELESS}]]+"
_WORD = rf"{_LETTERS}(?:(?<=\d)[.,:٫٬](?=\d){_LETTERS})*"  # 10:30, 1,000, v3.5
_UNIT = regex.compile(rf"[{_SPACELESS}]\p{{M}}*|{_WORD}|[^\w\s]", regex.VERSION1)
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
    whole = sorted([*fixed, *_placeholders(text, fixed)])
    return sorted([*whole, *_other_units(text, whole)])


def _placeholders(text: str, fixed: Collection[Span]) -> list[Span]:
    """Return the placeholders of a text, and the parts outside of fixed spans if these overlap."""
    ends = sorted(itertools.chain(*fixed))
    parts = (part for span in placeholder_spans(text) for part in _divided(span, ends))
    return [part for part in parts if bisect.bisect_right(ends, part[0]) % 2 == 0]


def _other_units(text: str, whole: Sequence[Span]) -> Iterator[Span]:
    """Yield the words and marks of a text outside of ascending spans, in order."""
    position = 0
    for start, end in [*whole, (len(text), len(text))]:
        yield from (match.span() for match in _UNIT.finditer(text, position, start))
        position = end


def marks_of(text: str) -> list[bool]:
    """Return which characters are neither letters nor digits, nor part of a placeholder."""
    marks = [not character.isalnum() for character in text]
    for start, end in placeholder_spans(text):
        marks[start:end] = [False] * (end - start)
    return marks


def joins_words(before: str, after: str) -> bool:
    """Return whether a text beside the next one makes one word of the last and the first of both.

    Letters of scripts without spaces are words by themselves.
    """
    return bool(_JOINED.fullmatch(before[-1:] + after[:1]))


def find_copies(source: str, translation: str, spans: Sequence[Span]) -> list[Span] | None:
    """Return where parts of a sentence are in its translation, literally.

    A part is found as whole words, unless it is a part of a word in the sentence, and likewise
    outside of placeholders. The second of three equal ones is the second of three in the
    translation.

    Args:
        source: the sentence.
        translation: its translation.
        spans: the parts, apart from each other.

    Returns:
        Their spans in the translation; None if a part is not in it as often as in the sentence.
    """
    if not spans:
        return []
    copies: list[Span] = []
    texts = [(text, inside_placeholders(text)) for text in (source, translation)]
    for span in spans:
        pattern, may_divide = _pattern(source, span), not texts[0][1].isdisjoint(span)
        places, candidates = (
            [
                match.span()
                for match in pattern.finditer(text, overlapped=True)
                if may_divide or inside.isdisjoint(match.span())
            ]
            for text, inside in texts
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
    """Return the spans of each word of a text, in order; fixed ones and marks are no words.

    Words are without case, placeholders are as they are.
    """
    words: dict[str, list[Span]] = {}
    placeholders = _placeholders(text, fixed)
    for start, end in placeholders:
        words.setdefault(text[start:end], []).append((start, end))
    for start, end in _other_units(text, sorted([*fixed, *placeholders])):
        name = text[start:end].casefold()
        if any(map(str.isalnum, name)):
            words.setdefault(name, []).append((start, end))
    return words


def _divided(span: Span, cuts: Sequence[int]) -> list[Span]:
    """Return the parts of a span between those of ascending places that are inside of it."""
    start, end = span
    inside = cuts[bisect.bisect_right(cuts, start) : bisect.bisect_left(cuts, end)]
    return list(itertools.pairwise([start, *inside, end]))
