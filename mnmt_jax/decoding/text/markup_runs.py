"""Runs of text in documents: the text between two block tags, with its inline elements."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from mnmt_jax.decoding.text.element_ends import end_of_element
from mnmt_jax.decoding.text.line_breaks import SPACES
from mnmt_jax.decoding.text.markup_tokens import MarkupReader, Token
from mnmt_jax.decoding.text.tag_placement import Node, all_nodes
from mnmt_jax.decoding.text.text_parts import LINE_BREAK
from mnmt_jax.decoding.text.word_units import joins_words

_MAX_DEPTH = 32  # of elements that are placed; deeper tags keep their order among the words
_NO_SPACE_BEFORE, _NO_SPACE_AFTER = ",.;:!?)]}…、。，！？：；）」』", "([{¿¡（「『"
_LONGEST_KEPT = 40  # characters of an untranslated element that are translated along


@dataclasses.dataclass(eq=False)
class Run:
    """Text with inline elements.

    Attributes:
        raw: its characters in the document.
        text: its text, with entities as characters and single spaces; white space with a line break
            is a line feed if line breaks are kept, with several of them two.
        spans: where each character of the text is in `raw`.
        nodes: its elements.
        tags: where each node starts and ends in `raw`.
        stops: places in the text where sentences end between links, ascending.
    """

    raw: str = ""
    text: str = ""
    spans: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    nodes: list[Node] = dataclasses.field(default_factory=list)
    tags: dict[Node, tuple[int, int]] = dataclasses.field(default_factory=dict)
    stops: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _Item:
    """A token of a run; an untranslated element is one item, and has its text."""

    token: Token
    text: str = ""


def split_runs(
    reader: MarkupReader, document: str, *, keep_lines: bool = False
) -> Iterator[str | Run]:
    """Split a document into runs of text and what is between them; joined, it is the document.

    Args:
        reader: what its tags mean.
        document: HTML or XML, or a part of it.
        keep_lines: whether line breaks are different from spaces.
    """
    tokens, items = list(reader.tokens(document)), list[_Item]()
    position = 0
    while position < len(tokens):
        token = tokens[position]
        end = position + 1
        is_tag = token.kind in ("start", "empty", "end")
        if token.kind in ("start", "empty") and reader.is_untranslated(token):
            end = end_of_element(reader, tokens, position)
        raw = "".join(other.raw for other in tokens[position:end])
        is_block = is_tag and reader.is_block(token.name)
        if is_block or (end == len(tokens) and _is_unclosed(tokens[position:])):
            yield from _finished(reader, items, keep_lines)
            items = []
            yield raw
        elif end > position + 1:
            text = " ".join(reader.visible_text(tokens[position:end]).split())
            items.append(_Item(Token("other", raw), text))
        else:
            items.append(_Item(token))
        position = end
    yield from _finished(reader, items, keep_lines)


def text_of(reader: MarkupReader, document: str) -> str:
    """Return the text of a document, a line per run."""
    return "\n".join(run.text for run in split_runs(reader, document) if isinstance(run, Run))


def _is_unclosed(tokens: Sequence[Token]) -> bool:
    """Return whether the last comment or untranslated element of a document has no end."""
    first, last = tokens[0], tokens[-1]
    if len(tokens) > 1:
        return (last.kind, last.name) != ("end", first.name)
    return first.kind == "other" and not first.raw.endswith(">")


def _finished(
    reader: MarkupReader, items: Sequence[_Item], keep_lines: bool
) -> Iterator[str | Run]:
    """Yield the run of items; as it is, if it has no text."""
    if any(item.token.kind == "text" and item.token.raw.strip() for item in items):
        yield _Builder(reader, keep_lines).build(items)
    else:
        yield "".join(item.token.raw for item in items)


class _Builder:
    """Builds a run from its items, in linear time."""

    def __init__(self, reader: MarkupReader, keep_lines: bool) -> None:
        self._reader = reader
        self._keeps_lines = keep_lines
        self._run = Run()
        self._raw: list[str] = []
        self._raw_length = 0
        self._text: list[str] = []  # characters
        self._open: list[Node | None] = []  # None is one that is nested too deeply
        self._first_token: dict[Node, int] = {}
        self._last: Node | None = None  # without text, at the end of the run so far
        self._link_end: tuple[int, Node | None] | None = None  # place and parent of the last one
        self._between_links: list[int] = []
        self._inner_spaces: set[int] = set()  # places of spaces that elements have inside, too

    def build(self, items: Sequence[_Item]) -> Run:
        """Return the run; a tag that has no partner in it is like an empty element."""
        partners = _partners(items)
        for index, item in enumerate(items):
            self._add(item, index in partners)
        self._remove_inner_spaces()
        self._run.raw, self._run.text = "".join(self._raw), "".join(self._text)
        self._run.stops = [
            place
            for place in self._between_links
            if joins_words(self._run.text[place - 1 : place], self._run.text[place : place + 1])
        ]
        return self._run

    def _add(self, item: _Item, has_partner: bool) -> None:
        kind, start = item.token.kind, self._raw_length
        self._raw.append(item.token.raw)
        self._raw_length += len(item.token.raw)
        if kind == "text":
            self._add_text(item.token.raw, start)
        elif kind == "start" and has_partner and len(self._open) < _MAX_DEPTH:
            if self._link_end == self._here() and self._reader.is_link(item.token.name):
                self._between_links.append(len(self._text))
            self._open.append(self._node(item.token.raw, start))
        elif kind == "end" and has_partner and (node := self._open.pop()):
            self._close(node, item.token.raw)
            if self._reader.is_link(item.token.name):
                self._link_end = self._here()
        else:
            if kind == "start" and has_partner:
                self._open.append(None)
            self._add_atom(item, start)

    def _here(self) -> tuple[int, Node | None]:
        """Return the number of characters so far, and the element that is open."""
        return len(self._text), self._open[-1] if self._open else None

    def _close(self, node: Node, closing: str) -> None:
        node.closing = closing
        self._trim(node)
        first = self._run.tags[node][0]
        self._run.tags[node] = first, self._raw_length
        if node.is_empty:  # all of it is one unit
            raw = "".join(self._raw[self._first_token[node] :])
            node.opening, node.closing, node.children = raw, "", []
            self._last = node

    def _add_text(self, raw: str, start: int) -> None:
        spaces: list[tuple[str, tuple[int, int]]] = []
        for character, source in self._reader.decoded(raw):
            span = start, start + len(source)
            start = span[1]
            if character and character in SPACES:
                spaces.append((character, span))
                continue
            self._add_spaces(spaces)
            spaces = []
            if character:
                self._append(character, span)
            else:  # an entity that only the document knows
                self._add_atom(_Item(Token("other", source), source), span[0])
        self._add_spaces(spaces)

    def _add_spaces(self, spaces: Sequence[tuple[str, tuple[int, int]]]) -> None:
        """Add white space as a space, or as its line breaks, if these are kept."""
        if not spaces:
            return
        breaks = self._line_breaks(spaces)
        if breaks and self._text[-1:] == [" "]:  # of the token before
            self._text[-1], self._run.spans[-1] = "\n", breaks.pop(0)
        elif not breaks and self._text and not self._is_after_space():
            self._append(" ", spaces[0][1])
            return
        self._inner_spaces.discard(len(self._text) - 1)
        if self._last is not None and (not breaks or not self._text):
            self._last.has_space = True
        for span in breaks:
            if self._text and self._text[-2:] != ["\n", "\n"]:
                self._append("\n", span)

    def _is_after_space(self) -> bool:
        """Return whether the last character is a space, before an atom also a no-break space."""
        last = self._text[-1]
        return last in SPACES or (self._last is not None and last.isspace())

    def _line_breaks(self, spaces: Sequence[tuple[str, tuple[int, int]]]) -> list[tuple[int, int]]:
        """Return the spans of line breaks in white space, with the spaces around; two at most."""
        if not self._keeps_lines:
            return []
        text = "".join(character for character, _ in spaces)
        ends = [spaces[match.end() - 1][1][1] for match in LINE_BREAK.finditer(text)]
        if not ends:
            return []
        start, end = spaces[0][1][0], spaces[-1][1][1]
        return list(itertools.pairwise([start, *ends[:-1][:1], end]))

    def _append(self, characters: str, span: tuple[int, int]) -> None:
        self._text += characters
        self._run.spans += [span] * len(characters)
        self._last = None

    def _node(self, opening: str, start: int) -> Node:
        length = len(self._text)
        node = Node(length, length, opening)
        parent = self._open[:_MAX_DEPTH][-1] if self._open else None  # deeper ones are None
        (parent.children if parent else self._run.nodes).append(node)
        self._run.tags[node] = start, start + len(opening)
        self._first_token[node] = len(self._raw) - 1
        return node

    def _add_atom(self, item: _Item, start: int) -> None:
        """Add what is not changed: a comment, an empty element, or an untranslated one."""
        node = self._node(item.token.raw, start)
        if item.text and len(item.text) <= _LONGEST_KEPT:
            node.is_fixed = True
            self._append(item.text, self._run.tags[node])
            node.end = len(self._text)
        else:
            self._last = node

    def _trim(self, node: Node) -> None:
        """Let an element end with the run so far, without the spaces at its ends."""
        text = self._text[node.start :]
        if not any(character.strip() for character in text):
            return
        node.end = len(self._text)
        while self._text[node.end - 1].isspace():
            node.end -= 1
        while self._text[node.start].isspace():
            node.start += 1
        for child in node.children:
            if child.start < node.start:
                child.has_space = True
                self._inner_spaces.add(node.start - 1)
            if child.start > node.end:
                if node.end not in self._inner_spaces:
                    child.opening = f" {child.opening}"
                self._inner_spaces.add(node.end)
            if child.is_empty:
                child.start = child.end = min(max(child.start, node.start), node.end)

    def _remove_inner_spaces(self) -> None:
        """Remove spaces that are inside of elements, where the text around has none."""
        kept = [True] * len(self._text)
        for place in self._inner_spaces:
            before, after = self._text[place - 1], "".join(self._text[place + 1 : place + 2])
            is_apart = after not in _NO_SPACE_BEFORE and before not in _NO_SPACE_AFTER
            kept[place] = is_apart or self._text[place] != " " or before in SPACES
        if all(kept):
            return
        places = list(itertools.accumulate(kept, initial=0))
        self._text = list(itertools.compress(self._text, kept))
        self._run.spans = list(itertools.compress(self._run.spans, kept))
        self._between_links = [places[place] for place in self._between_links]
        for node in all_nodes(self._run.nodes):
            node.start, node.end = places[node.start], places[node.end]


def _partners(items: Sequence[_Item]) -> set[int]:
    """Return the indices of start and end tags that are well nested with each other."""
    stack: list[int] = []
    open_names: Counter[str] = Counter()
    partners: set[int] = set()
    for index, item in enumerate(items):
        name = item.token.name
        if item.token.kind == "start":
            stack.append(index)
            open_names[name] += 1
        elif item.token.kind == "end" and open_names[name]:
            closed = ""
            while closed != name:
                partner = stack.pop()
                closed = items[partner].token.name
                open_names[closed] -= 1
            partners |= {partner, index}
    return partners
