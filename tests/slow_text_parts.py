"""Slow implementations of the division of long sentences and of line breaks in translations."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

from mnmt_jax.vocabulary.language_codes import is_spaceless

_BEST_CUTS = (r"[;:。；：．]\s*", r"[,、，،]\s*|\s+[–—-]\s+", r"\s+", "")


def split_long_slowly(sentence: str, fits: Callable[[str], bool]) -> list[str]:
    """Split a sentence as `split_long`, trying every cut of what remains."""
    pieces = []
    while sentence and not fits(sentence):
        end = max(1, _last_fitting_cut(sentence, fits))
        pieces.append(sentence[:end])
        sentence = sentence[end:]
    return [*pieces, sentence] if sentence else pieces


def _last_fitting_cut(text: str, fits: Callable[[str], bool]) -> int:
    for pattern in _BEST_CUTS:
        ends = [match.end() for match in re.finditer(pattern, text)]
        fitting = [end for end in ends if end < len(text) and fits(text[:end].rstrip())]
        if fitting and fitting[-1]:
            return fitting[-1]
    return 0


def join_lines_slowly(sentence: str) -> tuple[str, list[str]]:
    """Return a sentence in one line and the texts of its line breaks, as `join_lines`."""
    line_end = "\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"
    pattern = re.compile(rf"[^\S\r\n]*(?:{line_end})\s*(?:(?:>+)\s+)*")
    marked = re.sub("(?<=[あ。一-龥])\0(?=[あ。一-龥])", "", "\0".join(pattern.split(sentence)))
    return marked.replace("\0", " "), pattern.findall(sentence)


def restore_line_breaks_slowly(
    text: str, breaks: Sequence[tuple[float, str]], language: str
) -> str:
    """Restore line breaks as `restore_line_breaks`, comparing each with every space."""
    spaces = [match.span() for match in re.finditer(" +", text)]
    if not spaces and is_spaceless(language):
        is_mark = [unicodedata.category(character).startswith("M") for character in text]
        pairs = [text[index - 1 : index + 1] for index in range(1, len(text))]
        is_inside = [False, *(bool(re.fullmatch("[a-z]{2}", pair)) for pair in pairs)]
        places = [n for n in range(1, len(text)) if not is_mark[n] and not is_inside[n]]
        spaces = [(place, place) for place in places]
    spaces = spaces or [(len(text), len(text))]
    by_space: dict[tuple[int, int], str] = {}
    for position, line_break in breaks:
        nearest = min(spaces, key=lambda span: abs(span[0] - position * len(text)))
        by_space[nearest] = by_space.get(nearest, "") + line_break
    for (start, end), line_breaks in sorted(by_space.items(), reverse=True):
        text = text[:start] + line_breaks + text[end:]
    return text
