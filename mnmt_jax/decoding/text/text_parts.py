"""Parts of a text: sentences to translate, and what stays as it is between them.

The parts of a text joined are the text. Line breaks end a sentence, unless a line is wrapped: then
it ends without a sentence-final mark and is long, or is not short and continues in lower case.
List marks, indentation and blank lines are between sentences.

Sentence ends are found by sentencex (Wikimedia), which has rules or a fallback for all languages.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from mnmt_jax.decoding.text.line_breaks import line_break_spans, line_joint, nearest_space
from mnmt_jax.decoding.text.placeholders import placeholder_spans
from mnmt_jax.vocabulary.language_codes import parse_code
from mnmt_jax.vocabulary.normalization import has_letters

_LINE_ENDS = "\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"
_LINE_BREAK_CHARACTER = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
LINE_BREAK = re.compile(_LINE_ENDS)
"""A line break, of one or two characters."""
_LINE = re.compile(f"(.*?)({_LINE_ENDS}|$)", re.DOTALL)
_BULLET = r"[-*+•‣◦▪·–—>#|]+"
_NUMBER = r"\(?\d{1,3}[.)]|\(?[a-z][.)]"
_BULLETS = re.compile(rf"\s*(?:(?:{_BULLET})\s+)*")
_NUMBERED = re.compile(rf"\s*(?:(?:{_BULLET})\s+)*(?:{_NUMBER})\s+")
_SENTENCE_END = re.compile(r"[.!?:;…。！？：；．।॥؟۔][\"'”’»)\]}」』）]*$")
# Characters of a line that may be wrapped: before lower case, and before anything else.
_WRAPPED_LOWER, _WRAPPED = 30, 40
# The lookbehinds let a run of spaces be read once, instead of again from each of its spaces.
_BREAK = re.compile(rf"(?<![^\S\r\n])[^\S\r\n]*(?:{_LINE_ENDS})\s*(?:(?:>+)\s+)*")
_BEST_CUTS = tuple(
    map(re.compile, (r"[;:。；：．]\s*", r"[,、，،]\s*|(?<!\s)\s+[–—-]\s+", r"\s+", ""))
)
_NO_WORD = re.compile(r"\W")
_START = 512  # characters of a sentence whose length is tried first

SentenceEnds = Literal["all", "lines", "punctuation", "none"]
"""Where sentences end: at punctuation and line breaks except in wrapped lines, at punctuation and
all line breaks, at punctuation alone, or at the end of the text.
"""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a text.

    Attributes:
        text: its characters.
        is_sentence: whether it is translated.
    """

    text: str
    is_sentence: bool = False


def split_text(text: str, language: str, ends: SentenceEnds = "all") -> list[Part]:
    """Split a text into sentences and what is between them.

    Args:
        text: any text.
        language: code of its language.
        ends: where sentences end.

    Returns:
        The parts, whose texts joined are the text. Sentences have letters, and no space at either
        end; line breaks in them are those of wrapped lines.
    """
    parts: list[Part] = []
    blocks: Iterable[tuple[str, str, str]] = [("", text, "")]
    if ends in ("all", "lines"):
        blocks = _blocks(text, _continues if ends == "all" else lambda *line: False)
    for prefix, block, suffix in blocks:
        parts.append(Part(prefix))
        for sentence in _split_block(block, language, ends):
            before, stripped, after = split_spaces(sentence)
            parts += [Part(before), Part(stripped, has_letters(stripped)), Part(after)]
        parts.append(Part(suffix))
    return [part for part in parts if part.text]


def split_spaces(text: str) -> tuple[str, str, str]:
    """Return the spaces before a text, the text without them, and the spaces after it."""
    stripped = text.strip()
    start = text.index(stripped) if stripped else len(text)
    return text[:start], stripped, text[start + len(stripped) :]


def split_sentences(text: str, language: str) -> list[str]:
    """Split a text at the ends of sentences; the spaces after a sentence belong to it.

    None ends inside of a placeholder, such as a URL.

    Args:
        text: text without marks of lists.
        language: code of its language.
    """
    import sentencex

    masked = list(text)
    for start, end in placeholder_spans(text):
        masked[start + 1 : end - 1] = _NO_WORD.sub("x", text[start + 1 : end - 1])
    sentences: list[str] = sentencex.segment(parse_code(language).language, "".join(masked))
    stops = itertools.accumulate(map(len, sentences), initial=0)
    return [text[start:stop] for start, stop in itertools.pairwise(stops)]


def _split_block(block: str, language: str, ends: SentenceEnds) -> list[str]:
    """Return the sentences of lines that belong together, with the spaces after each."""
    if ends == "none":
        return [block]
    if ends in ("all", "lines"):
        return split_sentences(block, language)
    sentences = split_sentences(_LINE_BREAK_CHARACTER.sub(" ", block), language)
    stops = itertools.accumulate(map(len, sentences), initial=0)
    return [block[start:stop] for start, stop in itertools.pairwise(stops)]


def split_long(sentence: str, fits: Callable[[str], bool]) -> list[str]:
    """Split a sentence that is too long for the model into pieces that fit.

    It is split after a semicolon or colon, else after a comma or at a dash, else at a space, else
    anywhere: at the last such place up to which it fits.

    Args:
        sentence: the sentence.
        fits: whether the model takes a text whole; of any text that it takes, also each start.

    Returns:
        The pieces, which joined are the sentence; spaces at the ends of pieces are kept.
    """
    pieces = []
    rest = sentence
    while rest and (start := _start_too_long(rest, fits)) is not None:
        end = max(1, _last_fitting_cut(start, fits))
        pieces.append(rest[:end])
        rest = rest[end:]
    return [*pieces, rest] if rest else pieces


def join_lines(sentence: str) -> tuple[str, list[tuple[float, str]]]:
    """Return a sentence of wrapped lines as one line, and where its line breaks were.

    Returns:
        The sentence with a space for each line break, or nothing between wide characters
        (`line_joint`), and the relative position and the text of each.
    """
    rows, texts = _BREAK.split(sentence), _BREAK.findall(sentence)
    joints = [line_joint(*pair) for pair in itertools.pairwise(rows)]
    parts = [rows[0], *itertools.chain(*zip(joints, rows[1:], strict=True))]
    line, ends_of_rows = "".join(parts), [*itertools.accumulate(map(len, parts))][::2]
    return line, [(end / len(line), text) for end, text in zip(ends_of_rows, texts, strict=False)]


def restore_line_breaks(text: str, breaks: Sequence[tuple[float, str]], language: str) -> str:
    """Return a translation with the line breaks of its source at the nearest spaces.

    A space may get several; in a language without spaces, they may stand between characters,
    and otherwise at the end of a single word.

    Args:
        text: the translation in one line.
        breaks: relative positions and texts, ascending, as `join_lines` returns them.
        language: code of the language of the translation.
    """
    spaces = line_break_spans(text, language) or [(len(text), len(text))]
    starts = [start for start, _ in spaces]
    by_space: dict[int, list[str]] = {}
    for position, line_break in breaks:
        nearest = nearest_space(starts, position * len(text), 0)
        assert nearest is not None
        by_space.setdefault(nearest, []).append(line_break)
    restored, previous = "", 0
    for space, line_breaks in sorted(by_space.items()):
        start, end = spaces[space]
        restored += text[previous:start] + "".join(line_breaks)
        previous = end
    return restored + text[previous:]


def _blocks(
    text: str, continues: Callable[[str, str, int], bool]
) -> Iterator[tuple[str, str, str]]:
    """Yield (what is before, lines that belong together, what is after) for each block."""
    lines = [(match[1], match[2]) for match in _LINE.finditer(text) if match.group()]
    marks = [_mark(lines, number) for number in range(len(lines))]
    prefix, block = "", ""
    for number, (line, end) in enumerate(lines):
        mark = marks[number]
        if not block:
            prefix, block = line[:mark], line[mark:]
        else:
            block += line
        if number + 1 < len(lines) and continues(
            line[mark:], lines[number + 1][0], marks[number + 1]
        ):
            block += end
            continue
        stripped = block.rstrip()
        yield prefix, stripped, block[len(stripped) :] + end
        block = ""


def _mark(lines: Sequence[tuple[str, str]], number: int) -> int:
    """Return the number of characters of a line's indentation and list marks.

    A number is a mark if the line before or after, without blank ones, starts with one at the same
    indentation: "3. Mai" alone is a date.
    """
    line = lines[number][0]
    numbered = _NUMBERED.match(line)
    indentation = len(line) - len(line.lstrip())
    if numbered and any(
        _NUMBERED.match(other) and len(other) - len(other.lstrip()) == indentation
        for other in _neighbours(lines, number)
    ):
        return numbered.end()
    match = _BULLETS.match(line)
    return match.end() if match else 0


def _neighbours(lines: Sequence[tuple[str, str]], number: int) -> Iterator[str]:
    for step in (-1, 1):
        other = number + step
        while 0 <= other < len(lines) and not lines[other][0].strip():
            other += step
        if 0 <= other < len(lines):
            yield lines[other][0]


def _continues(line: str, following: str, mark: int) -> bool:
    """Return whether a line is wrapped and the following one continues it."""
    body, rest = line.rstrip(), following[mark:]
    has_mark = bool(following[:mark].strip(" \t>"))
    if not has_letters(body) or not has_letters(rest) or has_mark or _SENTENCE_END.search(body):
        return False
    return len(body) >= (_WRAPPED_LOWER if rest[0].islower() else _WRAPPED)


def _start_too_long(text: str, fits: Callable[[str], bool]) -> str | None:
    """Return a start of a text that does not fit; None if the whole text fits.

    Its length is at most about twice that of the longest start that fits, or a small constant, so
    that a text of many pieces is not read to its end for each of them.
    """
    length = _START
    while length < len(text) and fits(text[:length].rstrip()):
        length *= 2
    if length >= len(text) and fits(text):
        return None
    return text[:length]


def _last_fitting_cut(text: str, fits: Callable[[str], bool]) -> int:
    """Return the end of the longest start of a text that fits and ends at the best place."""
    for pattern in _BEST_CUTS:
        ends = [match.end() for match in pattern.finditer(text) if match.end() < len(text)]
        count = bisect.bisect_left(ends, True, key=lambda end: not fits(text[:end].rstrip()))
        if count and ends[count - 1]:
            return ends[count - 1]
    return 0
