"""Copying of unknown characters: taken out of a source, and put back into its translation.

A model reads and writes no character that its vocabulary lacks (`<unk>`), and learns nothing of one
that its training text lacks. With `Decode.copy_unknown` such characters are not read at all: they
return at the place in the translation that corresponds to theirs in the source. What stood first or
last stays first or last; anything else goes to the nearest word boundary.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import regex

from mnmt_jax.vocabulary.unknown_characters import UnknownRun

_CLUSTER = regex.compile(r"\X")


@dataclasses.dataclass(frozen=True)
class CopiedText:
    """Characters to copy.

    Attributes:
        text: whole grapheme clusters, so that an emoji of several characters stays one.
        position: share of the other characters of the source that precede it, 0 to 1.
        space_before: a space preceded it.
        space_after: a space followed it.
    """

    text: str
    position: float
    space_before: bool
    space_after: bool


def extract_unknown(text: str, runs: Sequence[UnknownRun]) -> tuple[str, tuple[CopiedText, ...]]:
    """Separate the unknown characters of a text from the others.

    Args:
        text: normalised.
        runs: its unknown characters; those without a place stay.

    Returns:
        The text without them, and what to copy, in order.
    """
    unknown = {place for run in runs if run.start >= 0 for place in _places(run)}
    clusters = [match.span() for match in _CLUSTER.finditer(text)]
    groups = []
    for is_unknown, run in itertools.groupby(
        clusters, lambda span: not unknown.isdisjoint(range(*span))
    ):
        spans = list(run)
        groups.append((is_unknown, spans[0][0], spans[-1][1]))
    kept = [text[start:end] for is_unknown, start, end in groups if not is_unknown]
    total, before = sum(map(_letters, kept)), 0
    copies = []
    for is_unknown, start, end in groups:
        if not is_unknown:
            before += _letters(text[start:end])
            continue
        position = before / total if total else 0.0
        spaces = text[start - 1 : start] == " ", text[end : end + 1] == " "
        copies.append(CopiedText(text[start:end], position, *spaces))
    return "".join(kept), tuple(copies)


def reinsert_unknown(translation: str, copies: Sequence[CopiedText]) -> str:
    """Insert what was taken out of a source into its translation.

    Args:
        translation: of the rest; empty if nothing was left.
        copies: what `extract_unknown` returned.
    """
    result, last = "", 0
    for copied in copies:
        place = _place(translation, copied)
        result += translation[last:place]
        last = place
        gap = " " if copied.space_before and result and not result.endswith(" ") else ""
        following = translation[place : place + 1]
        after = " " if copied.space_after and following not in ("", " ") else ""
        result += gap + copied.text + after
    return result + translation[last:]


def _place(translation: str, copied: CopiedText) -> int:
    """Return the index in a translation that a copied text is inserted at."""
    if copied.position in (0.0, 1.0):
        return round(copied.position) * len(translation)
    wanted = copied.position * len(translation)
    attached_to_next = copied.space_before and not copied.space_after
    places = [i + attached_to_next for i, letter in enumerate(translation) if letter == " "]
    places = places or [match.end() for match in _CLUSTER.finditer(translation)]
    return min(places, key=lambda place: abs(place - wanted), default=0)


def _places(run: UnknownRun) -> range:
    return range(run.start, run.start + len(run.text))


def _letters(text: str) -> int:
    """Count the characters that are no spaces."""
    return len(text) - text.count(" ")
