"""Passages: text with inline elements, as an XML fragment that a translator can take.

A paragraph is a tree of text, spans (with content, such as a link), atoms (without, such as an
image) and breaks (such as a tab), which end a passage. The fragment of a passage has `<g id="1">`
for a span and `<x id="2"/>` for an atom; atoms at its ends stay outside, unless they are words.

    Press <g id="1">Enter</g> twice<x id="2"/>.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import Any, Protocol

from mnmt_jax.decoding.text.word_units import joins_words
from mnmt_jax.documents.segments import Segment
from mnmt_jax.vocabulary.normalization import has_letters

MAX_DEPTH = 32
"""Levels of spans in a paragraph; deeper ones are read as atoms."""

_SPAN, _ATOM = "g", "x"  # element names
_BEFORE_SPACE = re.compile(r"[^\W_\u0e00-\u0eff\u3040-\u30ff\u4e00-\u9fff]|[,.;:!?)\]»”%]")
_SPACE_BEFORE_MARK = re.compile(r"[ ](?=[,.](?:\s|\Z))")
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0


@dataclasses.dataclass(frozen=True, eq=False)
class Atom:
    """An inline element without text to translate.

    Attributes:
        payload: of the format.
        is_break: whether it ends the passage before it.
        is_word: whether it has a place in a sentence, such as a placeholder.
        text: what it shows, such as code; it is read with the sentence and stays as it is.
    """

    payload: Any
    is_break: bool = False
    is_word: bool = False
    text: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Span:
    """An inline element with content.

    Attributes:
        payload: of the format.
        items: its content.
        is_apart: whether it is a passage by itself.
        is_link: whether it is a link; a passage ends between two without a space between them.
    """

    payload: Any
    items: Sequence[Item]
    is_apart: bool = False
    is_link: bool = False


Item = str | Atom | Span


class Passage:
    """Items that are translated together, of which at least one has letters."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = items
        self._elements: list[Atom | Span] = []
        self._spaced: set[tuple[int, bool]] = set()  # numbers of words after and before spaces
        fragment = self._fragment(items)
        is_plain = not self._elements
        self.segment = Segment(
            plain_text(items) if is_plain else fragment, "" if is_plain else "xml"
        )

    def _fragment(self, items: Sequence[Item]) -> str:
        text = ""
        for index, item in enumerate(items):
            if isinstance(item, str):
                text += escape(legal(item), quote=False)
                continue
            self._elements.append(item)
            number = len(self._elements)
            if plain_text(items[max(index - 1, 0) : index])[-1:].isspace():
                self._spaced.add((number, False))
            if plain_text(items[index + 1 : index + 2])[:1].isspace():
                self._spaced.add((number, True))
            if isinstance(item, Span):
                text += f'<{_SPAN} id="{number}">{self._fragment(item.items)}</{_SPAN}>'
            else:
                text += _atom(number, item.text)
        return text

    def translated(self, text: str) -> list[Item]:
        """Return the items with a translation of the segment.

        Raises:
            ValueError: if the translation does not have the elements of the segment.
        """
        if not self._elements:
            return [legal(text)]
        from lxml import etree

        try:
            root = etree.fromstring(
                f"<f>{legal(text)}</f>", etree.XMLParser(resolve_entities=False)
            )
        except etree.XMLSyntaxError as error:
            raise ValueError("the translation of a fragment is not well formed") from error
        ids = sorted(int(element.get("id", 0)) for element in root.iterdescendants())
        if ids != list(range(1, len(self._elements) + 1)):
            raise ValueError("the translation of a fragment lacks elements")
        return self._read(root)

    def _read(self, parent: Any) -> list[Item]:
        items: list[Item] = [parent.text or ""]
        last = plain_text(items)[-1:]  # character of the text so far
        for child in parent:
            number, tail = int(child.get("id")), child.tail or ""
            original = self._elements[number - 1]
            added: list[Item] = [original, tail]
            if isinstance(original, Span):
                added = [Span(original.payload, self._read(child)), tail]
            elif original.text:
                space, tail = self._spaces(number, last, tail)
                added = [space, original, tail]
            items += added
            last = plain_text(added, with_atoms=True)[-1:] or last
        return join_text(items)

    def _spaces(self, number: int, last: str, after: str) -> tuple[str, str]:
        """Return the space before a word that stays as it is, and the text after it.

        Words that were left out of the translation are put back between its words or marks.
        """
        is_after_word = bool(_BEFORE_SPACE.match(last))
        space = " " if is_after_word and (number, False) in self._spaced else ""
        if (number, True) in self._spaced:
            is_before_word = after[:1].isalnum() and bool(_BEFORE_SPACE.match(after))
            after = f" {after}" if is_before_word else _SPACE_BEFORE_MARK.sub("", after, count=1)
        return space, after


def _atom(number: int, text: str) -> str:
    if not text:
        return f'<{_ATOM} id="{number}"/>'
    return f'<{_ATOM} id="{number}" translate="no">{escape(legal(text), quote=False)}</{_ATOM}>'


class Paragraph(abc.ABC):
    """The passages of a paragraph, and what is between them.

    Args:
        items: content of the paragraph.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self.passages: list[Passage] = []
        self._tree = self._divide(items)

    @property
    def segments(self) -> list[Segment]:
        """The texts of the passages."""
        return [passage.segment for passage in self.passages]

    def translated(self, texts: Iterator[str]) -> list[Item]:
        """Return the content with translations, one for each passage."""
        return list(_resolve(self._tree, texts))

    @abc.abstractmethod
    def replace(self, texts: Iterator[str]) -> None:
        """Put the translations of the passages into the document."""

    def _divide(self, items: Sequence[Item]) -> list[Any]:
        """Return items with passages in place of what is translated together."""
        tree: list[Any] = []
        run: list[Item] = []
        for number, item in enumerate(items):
            if not _ends_passage(item):
                if _joins_link(items, number):
                    tree += self._passage(run)
                    run = []
                run.append(item)
                continue
            tree += self._passage(run)
            tree.append(self._inner(item) if isinstance(item, Span) else item)
            run = []
        return tree + self._passage(run)

    def _inner(self, span: Span) -> Span:
        return Span(span.payload, self._divide(span.items))

    def _passage(self, items: Sequence[Item]) -> list[Any]:
        """Return a passage and the items around it that are no text."""
        if not has_letters(plain_text(items)):
            return list(items)
        kept = [
            number
            for number, item in enumerate(items)
            if plain_text([item]).strip() or (isinstance(item, Atom) and item.is_word)
        ]
        start, end = kept[0], kept[-1] + 1
        while start and isinstance(items[start - 1], str):
            start -= 1
        while end < len(items) and isinstance(items[end], str):
            end += 1
        body = items[start:end]
        if len(body) == 1 and isinstance(body[0], Span):
            middle: Any = self._inner(body[0])
        else:
            middle = Passage(body)
            self.passages.append(middle)
        return [*items[:start], middle, *items[end:]]


class Block(Protocol):
    """A part of a document: a paragraph, or one that is translated otherwise."""

    @property
    def segments(self) -> Sequence[Segment]:
        """Segments in order."""

    def replace(self, texts: Iterator[str]) -> None:
        """Put the translations of the segments into the document."""


class ParagraphDocument:
    """A document of paragraphs.

    Args:
        paragraphs: in order.
        to_bytes: returns the file with the content of the paragraphs.
        source: code of the source language that the file names; "" if it names none.
    """

    def __init__(
        self, paragraphs: Sequence[Block], to_bytes: Callable[[], bytes], source: str = ""
    ) -> None:
        self._paragraphs, self._to_bytes = paragraphs, to_bytes
        self.source = source

    @property
    def segments(self) -> list[Segment]:
        """The segments of all paragraphs."""
        return [segment for one in self._paragraphs for segment in one.segments]

    def write(self, texts: Sequence[str]) -> bytes:
        """Return the file with translated passages."""
        remaining = iter(texts)
        for paragraph in self._paragraphs:
            paragraph.replace(remaining)
        return self._to_bytes()


def plain_text(items: Sequence[Item], *, with_atoms: bool = False) -> str:
    """Return the text of items without their elements, with that of their atoms if asked."""
    text = ""
    for item in items:
        if isinstance(item, str):
            text += item
        elif isinstance(item, Span):
            text += plain_text(item.items, with_atoms=with_atoms)
        elif with_atoms:
            text += item.text
    return text


def join_text(items: Iterable[Item]) -> list[Item]:
    """Return items with adjacent texts joined and without empty ones."""
    joined: list[Item] = []
    for is_text, group in itertools.groupby(items, key=lambda item: isinstance(item, str)):
        run = list(group)
        joined += ["".join(map(str, run))] if is_text else run
    return [item for item in joined if item != ""]


def legal(text: str) -> str:
    """Return a text without the characters that XML does not allow; those of space are spaces."""
    return _ILLEGAL.sub(lambda match: " " if match[0].isspace() else "", text)


def _ends_passage(item: Item) -> bool:
    """Return whether an item is a break, or a span that stands apart or in which a passage ends."""
    if isinstance(item, Span):
        inner = item.items
        joins = (_joins_link(inner, number) for number in range(len(inner)))
        return item.is_apart or any(map(_ends_passage, inner)) or any(joins)
    return isinstance(item, Atom) and item.is_break


def _joins_link(items: Sequence[Item], number: int) -> bool:
    """Return whether an item is a link whose text makes one word with that of a link before."""
    item = items[number]
    if not isinstance(item, Span) or not item.is_link:
        return False
    before = (items[index] for index in range(number - 1, -1, -1))
    words = (one for one in before if not isinstance(one, Atom) or one.is_word)
    previous = next(words, None)
    if not isinstance(previous, Span) or not previous.is_link:
        return False
    return joins_words(plain_text([previous]), plain_text([item]))


def _resolve(tree: Sequence[Any], texts: Iterator[str]) -> Iterator[Item]:
    for item in tree:
        if isinstance(item, Passage):
            yield from item.translated(next(texts))
        elif isinstance(item, Span):
            yield Span(item.payload, list(_resolve(item.items, texts)))
        else:
            yield item
