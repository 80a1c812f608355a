"""Markdown: paragraphs, headings and table cells; everything else is kept.

Code, links' addresses, images, HTML tags and untranslated elements, front matter and reference
definitions stay as they are. A wrapped paragraph has as many lines as before.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mnmt_jax.decoding.text.line_breaks import nearest_space
from mnmt_jax.decoding.text.placeholders import inside_placeholders
from mnmt_jax.documents.markdown_inline import (
    Event,
    ends_sentence,
    find_events,
    make_parser,
    shown_text,
)
from mnmt_jax.documents.passages import (
    Atom,
    Block,
    Item,
    Paragraph,
    ParagraphDocument,
    Span,
    join_text,
)
from mnmt_jax.documents.segments import Document, DocumentOptions, Segment
from mnmt_jax.documents.text_encoding import decode_text
from mnmt_jax.errors import UserError

MAX_BYTES = 2 << 20
"""Maximum bytes of a file; it is parsed in Python."""

_FRONT_MATTER = re.compile(  # "---" before a blank line is a thematic break, as in Pandoc
    r"(---(?=[ \t]*\n[ \t]*\S)|\+\+\+)[ \t]*\n(?:.*\n)*?(?:\1|\.\.\.)[ \t]*(?:\n|\Z)"
)
_NO_TEXT = re.compile(r"(\[\^[^\]\s]{1,80}\]:?)|(?<!.)(\[[ xX]\] )", re.DOTALL)
_BLOCK_START = re.compile(r"[+*]|-+|=+|\*{3,}|_{3,}|#{1,6}|\d{1,9}[.)]|[>|].*|(?:```|~~~).*")
_SPECIAL = re.compile(r"[\\`*_\[\]<>~&]")
_EMPHASIS = ("em", "strong", "s")
_SOFT_BREAK, _SPACE = "\1", "\0"  # in texts that are being rendered
_WORD = re.compile(f"[^{_SPACE} ]*")
_LINE_START = re.compile(r"\n[ \t]*")
_HARD_BREAK = re.compile(r"(?<=  )\n|(?<=\\)\n")
_PAD_BEFORE, _PAD_AFTER = "\2", "\3"  # where emphasis may need a space beside it
_PADS = re.compile(f"(?<=([^{_SPACE} ]))[{_PAD_BEFORE}{_PAD_AFTER}]+(?=([^{_SPACE} ]))|[\2\3]")
_FIRST_MARKS = re.compile(rf"[,.;:!?…，。、；：！？{_SPACE}]+")
_LAST_MARKS = re.compile(rf"[,.:!?…，。、；：！？{_SPACE}]+\Z")  # a ";" may end an entity


@dataclasses.dataclass(frozen=True)
class _Style:
    """How text is written so that all emphasis remains emphasis.

    Attributes:
        escapes: whether special characters are escaped.
        first_marks: whether marks at the start of emphasis are written before it.
        last_marks: whether marks at its end are written after it.
        pads: whether emphasis has spaces around it.
    """

    escapes: bool = False
    first_marks: bool = False
    last_marks: bool = False
    pads: bool = False


_PLAIN = _Style()
_STYLES = (  # in order of preference
    _PLAIN,
    _Style(escapes=True),
    *(
        _Style(escapes, first, last)
        for escapes in (False, True)
        for first, last in ((True, False), (False, True), (True, True))
    ),
    _Style(escapes=True, first_marks=True, last_marks=True, pads=True),
    _Style(escapes=True, pads=True),
)


def read_markdown(data: bytes, name: str, options: DocumentOptions) -> Document:
    """Read Markdown.

    Raises:
        UserError: if it is too long or too deeply nested, markdown-it-py is not installed, or its
            encoding is not known.
    """
    if len(data) > MAX_BYTES:
        raise UserError(f"{name}: has more than {MAX_BYTES >> 20} MiB of Markdown; divide it")
    parser = make_parser(name)
    original, encoding = decode_text(data, name, options.source)
    line_end = "\r\n" if "\r\n" in original else "\n"
    source = re.sub("\r\n?", "\n", original).replace("\0", "\ufffd")  # as CommonMark demands
    pieces = _Pieces(source)
    blocks = list(_blocks(parser, source, pieces))
    return ParagraphDocument(
        blocks, lambda: encoding.encode(pieces.joined().replace("\n", line_end))
    )


class _Pieces:
    """A text of which parts are replaced."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._replaced: dict[tuple[int, int], str] = {}

    def replace(self, start: int, end: int, text: str) -> None:
        """Replace a part."""
        self._replaced[start, end] = text

    def joined(self) -> str:
        """Return the text with all replacements."""
        result, position = [], 0
        for (start, end), text in sorted(self._replaced.items()):
            result += [self.source[position:start], text]
            position = end
        return "".join([*result, self.source[position:]])


def _blocks(parser: Any, source: str, pieces: _Pieces) -> Iterator[Block]:
    """Yield the blocks with text."""
    matter = _FRONT_MATTER.match(source)
    blank = "\n" * matter[0].count("\n") if matter else ""
    env: dict[str, Any] = {}
    tokens = parser.parse(blank + source[matter.end() if matter else 0 :], env)
    starts = [0, *(match.end() for match in re.finditer("\n", source))]
    position = 0
    for number, token in enumerate(tokens):
        if token.type == "inline" and token.content:
            line, kind = token.map[0], tokens[number - 1]
            places = _places(source, token.content, starts, line, position)
            if places is None:
                continue
            position = places[-1]
            content = token.content, kind.type, kind.markup
            yield _MarkdownParagraph(parser, env, content, places, pieces)
        elif token.type == "html_block":
            block = _HtmlBlock(_html_lines(source, token.content, starts, token.map[0]), pieces)
            if block.segments[0].is_translatable:
                yield block


def _places(
    source: str, content: str, starts: Sequence[int], line: int, position: int
) -> list[int] | None:
    """Return the place in the source of each character of a content, and of its end.

    Args:
        source: the file.
        content: lines without the marks of the blocks around them; a pipe in a cell of a table has
            no backslash.
        starts: places of the lines.
        line: number of the first line.
        position: place after the content before, which may be in the same line.
    """
    places: list[int] = []
    for number, text in enumerate(content.split("\n"), start=line):
        start = max(position, starts[number])
        end = starts[number + 1] - 1 if number + 1 < len(starts) else len(source)
        stripped = text.lstrip(" \t")  # a tab of which the block takes a part becomes spaces
        spellings = (text, text.replace("|", "\\|"), stripped)
        candidates = ((source.find(one, start, end), one) for one in spellings)
        place, spelling = next((one for one in candidates if one[0] >= 0), (-1, ""))
        if place < 0:
            return None
        if spelling == stripped:
            places += [place] * (len(text) - len(stripped))
            text = stripped
        for character in text:
            place += character == "|" and source[place] == "\\"
            places.append(place)
            place += 1
        places.append(place)  # of the line break, or the end
        position = place
    return places


def _line_marks(source: str, content: str, places: Sequence[int]) -> list[str]:
    """Return the marks of blocks and the indentation before each line but the first."""
    return [
        source[places[match.start()] + 1 : places[match.end()]]
        for match in _LINE_START.finditer(content)
    ]


def _html_lines(
    source: str, content: str, starts: Sequence[int], first: int
) -> list[tuple[int, int, int]]:
    """Return where each line of a block of HTML starts in the source, its text, and its end.

    Args:
        source: the file.
        content: lines without the marks of the blocks around them.
        starts: places of the lines.
        first: number of the first line.
    """
    lines = []
    for number, text in enumerate(content.removesuffix("\n").split("\n"), start=first):
        end = starts[number + 1] - 1 if number + 1 < len(starts) else len(source)
        if not source.endswith(text, starts[number], end):
            text = text.lstrip(" \t")  # a tab of which the block takes a part becomes spaces
        lines.append((starts[number], end - len(text), end))
    return lines


class _HtmlBlock:
    """A block of HTML, whose lines may begin with marks of a list or quote.

    Args:
        lines: places of the start, the text and the end of each line.
        pieces: the source.
    """

    def __init__(self, lines: Sequence[tuple[int, int, int]], pieces: _Pieces) -> None:
        source = pieces.source
        self._place, self._pieces = (lines[0][1], lines[-1][2]), pieces
        self._marks = ["", *(source[start:text] for start, text, _ in lines[1:])]
        self.segments = [Segment("\n".join(source[text:end] for _, text, end in lines), "html")]

    def replace(self, texts: Iterator[str]) -> None:
        """Replace the block by its translation."""
        lines = next(texts).split("\n")
        marks = itertools.chain(self._marks, itertools.repeat(self._marks[-1]))
        text = "\n".join(mark + line for mark, line in zip(marks, lines, strict=False))
        self._pieces.replace(*self._place, text)


class _MarkdownParagraph(Paragraph):
    """The content of a paragraph, heading or cell.

    Args:
        parser: of `make_parser`.
        env: environment of the parsed document.
        content: the content, and the type and the marks of the token before it.
        places: of its characters in the source.
        pieces: the source.
    """

    def __init__(
        self,
        parser: Any,
        env: Any,
        content: tuple[str, str, str],
        places: list[int],
        pieces: _Pieces,
    ) -> None:
        self._content, kind, marks = content
        self._parser, self._places, self._pieces = parser, places, pieces
        self._events_of: Callable[[str], list[Event]] = lambda text: find_events(parser, text, env)
        self._spellings = {"|": "\\|"} if kind in ("th_open", "td_open") else {}
        self._guards_starts = kind == "paragraph_open" or marks in ("=", "-")  # of setext headings
        self._line_marks = _line_marks(pieces.source, self._content, places)
        self._breaks: list[str] = []
        self._dropped: list[tuple[str, str]] = []  # events of emphasis without text
        events = self._events_of(self._content)
        self._structure = _structure(events)
        self._original = self._items(events)
        super().__init__(_without_breaks(self._original))

    @property
    def segments(self) -> list[Segment]:
        """The texts of the passages, which get the line breaks of the paragraph."""
        segments = super().segments
        return [dataclasses.replace(one, is_wrapped=bool(self._breaks)) for one in segments]

    def replace(self, texts: Iterator[str]) -> None:
        """Replace the content by its translation; texts are those of the passages."""
        if not self.passages:
            return
        items, structure = self._visible(self.translated(texts)), Counter(self._structure)
        structure.subtract(self._dropped)
        for style in _STYLES:
            text = _PADS.sub(_pad, self._render(items, style)).strip(f"{_SPACE} ")
            plain = text.replace(_SPACE, " ")
            if _structure(self._events_of(plain)) == +structure:
                break
        if self._guards_starts and not self._is_paragraph(text):
            text = self._guarded(text)
        start, end = self._places[0], self._places[-1]
        marks = iter(self._line_marks)
        text = re.sub("\n", lambda _: "\n" + next(marks, ""), self._with_line_breaks(text))
        self._pieces.replace(start, end, text)

    def _is_paragraph(self, text: str) -> bool:
        """Return whether a text is a paragraph by itself, not a list, a rule or a definition."""
        try:
            kinds = [token.type for token in self._parser.parse(text.replace(_SPACE, " "))]
        except UserError:  # it is nested too deeply
            return False
        return kinds == ["paragraph_open", "inline", "paragraph_close"]

    def _guarded(self, text: str) -> str:
        """Return a text with a backslash where it, or a line after a hard break, starts a block."""
        starts = [0, *(match.end() for match in _HARD_BREAK.finditer(text))]
        lines = []
        for start, end in itertools.pairwise([*starts, len(text)]):
            line = text[start:end]
            is_start = bool(start) and _BLOCK_START.fullmatch(line, 0, _first_word_end(line))
            if line and (is_start or not self._is_paragraph(line)):
                line = re.sub(r"^(\d*)", r"\1\\", line)
            lines.append(line)
        return "".join(lines)

    def _items(self, events: Sequence[Event]) -> list[Item]:
        levels: list[list[Item]] = [[]]
        opened: list[Event] = []
        position = 0
        for event in [*events, None]:
            end = len(self._content) if event is None else event.start
            levels[-1] += _plain(self._content[position:end])
            if event is None:
                break
            position = event.end
            if event.kind == "open":
                opened.append(event)
                levels.append([])
            elif event.kind == "close":
                inner, outer = join_text(levels.pop()), opened.pop()
                marks = self._literal(outer), self._closing(outer, event)
                is_link, is_apart = event.name == "link", ends_sentence(outer, marks[0])
                levels[-1].append(Span((*marks, event.name), inner, is_apart, is_link))
            else:
                levels[-1].append(self._leaf(event))
        return join_text(levels[0])

    def _leaf(self, event: Event) -> Item:
        """Return an event without content as text, or an atom of what is written there."""
        literal = self._literal(event)
        if event.kind == "text":
            self._spellings[event.text] = literal
            return event.text
        if event.kind == "soft_break":
            self._breaks.append(literal)
            return _SOFT_BREAK
        is_break = event.kind == "hard_break" or ends_sentence(event, literal)
        shown = shown_text(event, literal)
        return Atom(literal, is_break, is_word=bool(shown), text=shown)

    def _literal(self, event: Event) -> str:
        """Return what is written for an event, without the marks of blocks in its lines."""
        text = self._content[event.start : event.end]
        if "\n" in text:
            return _LINE_START.sub("\n", text)
        return self._pieces.source[self._places[event.start] : self._places[event.end]]

    def _closing(self, opening: Event, closing: Event) -> str | tuple[str, str]:
        """Return what closes a span; for a link by its text also the text that is its label."""
        literal = self._literal(closing)
        if opening.name != "link" or literal not in ("]", "][]"):
            return literal
        return literal, self._content[opening.end : closing.start]

    def _visible(self, items: Sequence[Item]) -> list[Item]:
        """Return items without emphasis of nothing, whose marks would be text."""
        visible: list[Item] = []
        for item in items:
            if not isinstance(item, Span):
                visible.append(item)
                continue
            inner, name = self._visible(item.items), item.payload[2]
            if name in _EMPHASIS and _is_empty(inner):
                self._dropped += [("open", name), ("close", name)]
                visible += inner
            else:
                visible.append(Span(item.payload, inner))
        return join_text(visible)

    def _render(self, items: Sequence[Item], style: _Style = _PLAIN) -> str:
        return "".join(self._rendered(item, style) for item in items)

    def _rendered(self, item: Item, style: _Style) -> str:
        if isinstance(item, Atom):
            return str(item.payload)
        if isinstance(item, str):
            return self._spelled(item, style.escapes).replace(" ", _SPACE)
        opening, closing, _ = item.payload
        inner = self._render(item.items, style)
        is_emphasis = opening.strip("*_~") == ""
        before, stripped, after = _divided(inner, style if is_emphasis else _PLAIN)
        if isinstance(closing, tuple):
            closing, label = closing
            is_changed = (
                stripped.replace(_SPACE, " ").casefold() != " ".join(label.split()).casefold()
            )
            closing = f"][{label}]" if is_changed else closing
        if style.pads and is_emphasis:
            before, after = before + _PAD_BEFORE, _PAD_AFTER + after
        return f"{before}{opening}{stripped}{closing}{after}"

    def _spelled(self, text: str, escapes: bool) -> str:
        """Return a text with characters written as in the source, and special ones escaped."""
        result = []
        for character in re.sub(r"[\r\n]", " ", text):
            if character in self._spellings:
                result.append(self._spellings[character])
            elif escapes and _SPECIAL.match(character):
                result.append(f"\\{character}")
            else:
                result.append(character)
        return "".join(result)

    def _with_line_breaks(self, text: str) -> str:
        """Return a rendered text with the line breaks of the source at the nearest spaces."""
        original = self._render(self._original)
        spaces = list(_breakable_spaces(text))
        starts = [start for start, _ in spaces]
        pieces, first = _Pieces(text), 0
        places = [match.start() for match in re.finditer(_SOFT_BREAK, original)]
        for place, literal in zip(places, self._breaks, strict=False):
            number = nearest_space(starts, place / len(original) * len(text), first)
            if number is None:
                break
            pieces.replace(*spaces[number], literal)
            first = number + 1
        return pieces.joined().replace(_SPACE, " ")


def _breakable_spaces(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of spaces where a line may end without a change of the blocks.

    None of them is inside of a placeholder.
    """
    placeholders = inside_placeholders(text.replace(_SPACE, " "))
    for match in re.finditer(f"{_SPACE}+", text):
        start, end = match.span()
        following = text[end : _first_word_end(text, end)]
        is_inside = 0 < start and end < len(text) and "\n" not in (text[start - 1], text[end])
        if is_inside and start not in placeholders and not _BLOCK_START.fullmatch(following):
            yield start, end


def _first_word_end(text: str, start: int = 0) -> int:
    """Return the end of a word that starts at a place."""
    match = _WORD.match(text, start)
    return match.end() if match else start


def _divided(text: str, style: _Style) -> tuple[str, str, str]:
    """Return what is written before, inside and after an element with a text."""
    inner = text.strip(f"{_SPACE}{_PAD_BEFORE}{_PAD_AFTER}")
    before, _, after = text.partition(inner) if inner else ("", "", text)
    first = _FIRST_MARKS.match(inner) if style.first_marks else None
    last = _LAST_MARKS.search(inner) if style.last_marks else None
    start, end = first.end() if first else 0, last.start() if last else len(inner)
    if start >= end:  # there are marks alone
        return before, inner, after
    return before + inner[:start], inner[start:end], inner[end:] + after


def _pad(match: re.Match[str]) -> str:
    """Return the space where emphasis is between a word or emphasis and its own text."""
    before, after = match[1], match[2]
    is_beside = (_PAD_BEFORE in match[0], before), (_PAD_AFTER in match[0], after)
    needs = (side and (side.isalnum() or side in "*_~") for is_side, side in is_beside if is_side)
    return _SPACE if any(needs) else ""


def _is_empty(items: Sequence[Item]) -> bool:
    return all(isinstance(item, str) and not item.strip() for item in items)


def _plain(text: str) -> list[Item]:
    """Return text with references of footnotes and marks of tasks as atoms."""
    items: list[Item] = []
    position = 0
    for match in _NO_TEXT.finditer(text):
        items += [text[position : match.start()], Atom(match[0])]
        position = match.end()
    return [*items, text[position:]]


def _without_breaks(items: Sequence[Item]) -> list[Item]:
    """Return items with spaces in place of soft line breaks."""
    return [
        item.replace(_SOFT_BREAK, " ")
        if isinstance(item, str)
        else dataclasses.replace(item, items=_without_breaks(item.items))
        if isinstance(item, Span)
        else item
        for item in items
    ]


def _structure(events: Sequence[Event]) -> Counter[tuple[str, str]]:
    kept = ("open", "close", "atom", "hard_break")
    return Counter((event.kind, event.name) for event in events if event.kind in kept)
