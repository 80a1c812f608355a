r"""SubRip subtitles (.srt): times, numbers and marks are kept, and cues have as many lines.

A cue whose translation cannot be divided has fewer: a blank line would end it.
The lines of a cue are translated together, except the lines of a dialogue, which start with a
dash. Tags in braces, such as {b} and {\i1}, are attributes of HTML tags while a cue is translated.
The pattern of the package srt takes quadratic time, so cues are read line by line here.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from mnmt_jax.decoding.text.line_breaks import (
    SPACES,
    TAG,
    join_wrapped,
    line_break_spans,
    nearest_space,
)
from mnmt_jax.documents.segments import Document, DocumentOptions, Segment
from mnmt_jax.documents.text_encoding import TextEncoding, decode_text
from mnmt_jax.errors import UserError

_TIME = r"[-+]?\d{1,4}:\d{1,2}:\d{1,2}(?:[,.]\d{1,9})?"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s.*)?")
_MAX_TIMES = 400  # characters of a line of times
_NEARLY_TIMES = re.compile(
    r"\s*[-+−]?(?:\d[\d.,;\s]*:[\d:.,;\s]*+-->|\d+\s*:\s*\d+\s*:[\d:.,;\s]*+(?:[-–—=]+>|→))"
)
_SPACES = re.compile(f"[{SPACES}]+")
_SHOWN = 40  # characters of a line in an error
_NUMBER = re.compile(r"\s*\d{1,9}\s*")
_DASHES = ("-", "–", "—", "‐")
_BEFORE_TEXT = re.compile(rf"(?:{TAG}|[{re.escape(''.join(_DASHES))} ])*")
_MARKS = re.compile(r"((?:\{\\(?![bius][01]\})[^{}]*\})*)(.*)", re.DOTALL)  # such as {\an8}
_BRACES = re.compile(  # {b} and {/b}, {\i1} and {\i0}, and other marks inside of a text
    r"\{(?:(/?)([bius])|\\([bius])([01])|\\[^{}<>=]*)\}", re.IGNORECASE
)
_BRACES_IN_TAG = re.compile(r"</?[a-z] (\{[^{}<>]*\})/?>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z]")
_NO_TAG = re.compile(r"&|<(?!/?[a-zA-Z])")  # these characters have no meaning in SubRip


def read_srt(data: bytes, name: str, options: DocumentOptions) -> Document:
    """Read subtitles.

    Raises:
        UserError: if a line of times is malformed, a line is in no cue, or the encoding is not
            known.
    """
    text, encoding = decode_text(data, name, options.source)
    return _Subtitles(text, encoding, name, options.target)


class _Subtitles:
    """The lines of a file; those of a group are translated together."""

    source = ""

    def __init__(self, text: str, encoding: TextEncoding, name: str, target: str) -> None:
        self._encoding, self._target = encoding, target
        self._lines = text.split("\n")
        self._groups: list[range] = []
        self.segments: list[Segment] = []
        for cue in _cues(self._lines, name):
            for group in _groups(self._lines, cue):
                segment = self._segment(group)
                if segment.is_translatable:
                    self._groups.append(group)
                    self.segments.append(segment)

    def _segment(self, group: range) -> Segment:
        lines = [self._lines[number].strip(SPACES) for number in group]
        text = _split_marks(join_wrapped(lines))[1]
        if not _TAG.search(text) and not _BRACES.search(text):
            return Segment(text, is_wrapped=True)
        escaped = _NO_TAG.sub(lambda match: html.escape(match[0]), text)
        return Segment(_BRACES.sub(_tag_of_braces, escaped), "html", is_wrapped=True)

    def write(self, texts: Sequence[str]) -> bytes:
        """Return the file with translated cues."""
        lines: list[str | None] = [*self._lines]
        for group, segment, text in zip(self._groups, self.segments, texts, strict=True):
            if segment.markup:
                text = html.unescape(text)
            marks, _ = _split_marks(self._lines[group.start].strip(SPACES))
            wrapped = _wrapped(text, len(group), self._target)
            first, *others = (_BRACES_IN_TAG.sub(r"\1", line) for line in wrapped)
            written = [line for line in (marks + first, *others) if line]
            absent = [None] * (len(group) - len(written))  # they are the first: the last has an end
            for number, line in zip(group, [*absent, *written], strict=True):
                end = "\r" if self._lines[number].endswith("\r") else ""
                lines[number] = None if line is None else line + end
        return self._encoding.encode("\n".join(line for line in lines if line is not None))


def _cues(lines: Sequence[str], name: str) -> list[range]:
    """Return the numbers of the lines of text of each cue."""
    times = []
    for number, line in enumerate(lines):
        if "-->" in line and len(line) < _MAX_TIMES and _TIMES.fullmatch(line):
            times.append(number)
        elif _NEARLY_TIMES.match(line):
            shown = line.strip()[:_SHOWN]
            raise UserError(
                f"{name}:{number + 1}: {shown!r} is not a line of times; write "
                "00:00:01,000 --> 00:00:02,000"
            )
    if not times:
        raise UserError(f"{name}: has no line of times, such as 00:00:01,000 --> 00:00:02,000")
    first = times[0]
    for number, line in enumerate(lines[:first]):
        if line.strip() and not (number == first - 1 and _NUMBER.fullmatch(line)):
            raise UserError(f"{name}:{number + 1}: is before the first line of times; repair it")
    ends = [_end_of_cue(lines, start) for start in times[1:]]
    cues = zip(times, [*ends, len(lines)], strict=True)
    return [range(start + 1, end) for start, end in cues]


def _end_of_cue(lines: Sequence[str], times: int) -> int:
    """Return the line after the text before a line of times: its number, or itself."""
    return times - 1 if _NUMBER.fullmatch(lines[times - 1]) else times


def _groups(lines: Sequence[str], cue: range) -> list[range]:
    """Divide the text of a cue at dashes and blank lines, but not inside of an element."""
    groups: list[range] = []
    open_tags = 0
    for number in cue:
        line = lines[number].strip()
        if not line:
            continue
        if groups and groups[-1].stop == number and (open_tags or not line.startswith(_DASHES)):
            groups[-1] = range(groups[-1].start, number + 1)
        else:
            groups.append(range(number, number + 1))
            open_tags = 0
        for tag in _TAG.findall(line):
            open_tags = max(0, open_tags + (-1 if tag.startswith("</") else 1))
    return groups


def _split_marks(text: str) -> tuple[str, str]:
    """Return the marks of position at the start of a text, and the text."""
    match = _MARKS.match(text)
    return (match[1], match[2]) if match else ("", text)


def _tag_of_braces(match: re.Match[str]) -> str:
    """Return an HTML tag that has a tag in braces as its attribute."""
    slash, name, override, is_on = match.groups()
    if slash or is_on == "0":
        return f"</{name or override} {match[0]}>"
    return f"<{name or override} {match[0]}>" if name or override else f"<x {match[0]}/>"


def _wrapped(text: str, count: int, language: str) -> list[str]:
    """Divide a text into at most so many lines, of about equal length, none of a dash alone.

    Args:
        text: the text.
        count: number of lines.
        language: code of its language.
    """
    text = _SPACES.sub(" ", text).strip(" ")
    match = _BEFORE_TEXT.match(text)
    before = match.end() if match else 0
    places = [span for span in line_break_spans(text, language) if span[0] > before]
    ends = [end for end, _ in places]
    lines, start, first = [], 0, 0  # the first place after the start
    for remaining in range(count, 1, -1):
        number = nearest_space(ends, start + (len(text) - start) / remaining, first)
        if number is None:
            break
        end, following = places[number]
        lines.append(text[start:end])
        start, first = following, number + 1
    return [*lines, text[start:]]
