"""XML of documents: parsing without entities, and paragraphs of mixed content."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mnmt_jax.data.xml_elements import check_root
from mnmt_jax.documents.passages import MAX_DEPTH, Atom, Item, Paragraph, Span, join_text
from mnmt_jax.errors import UserError
from mnmt_jax.files.storage_errors import one_line

_BLOCK = 1 << 15  # bytes parsed at a time
_WIDE = ("UTF-16", "UTF-32", "UCS")
_SPACES = (b" ", b"\t", b"\r", b"\n")
_PROLOG = re.compile(  # declaration, comments, instructions, and a DTD without entities
    rb"(?:\xef\xbb\xbf)?(?:\s+|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^\[>]*(?:\[.*?\]\s*)?>)*", re.DOTALL
)


class XmlFile:
    """An XML file; what is before and after its root element is written as it was.

    Args:
        data: the file.
        name: its name, for messages.
        root: required name of the root element.

    Attributes:
        root: the root element.

    Raises:
        UserError: if the file is malformed, has another root, or declares entities.
    """

    def __init__(self, data: bytes, name: str, root: str) -> None:
        self.root = _parse(data, name, root)
        prolog = _PROLOG.match(data)
        self._prolog = prolog[0] if prolog else b""
        self._epilog = _epilog(data, self.root)
        self._line_end = b"\r\n" if b"\r\n" in data else b"\n"

    def to_bytes(self) -> bytes:
        """Return the file in its encoding."""
        from lxml import etree

        tree = self.root.getroottree()
        encoding = tree.docinfo.encoding or "UTF-8"
        if encoding.upper().startswith(_WIDE):  # the prolog is in this encoding too
            return etree.tostring(tree, encoding=encoding, xml_declaration=True)
        text = etree.tostring(self.root, encoding=encoding, xml_declaration=False, with_tail=False)
        return self._prolog + text.replace(b"\n", self._line_end) + self._epilog


def _parse(data: bytes, name: str, root: str) -> Any:
    from lxml import etree

    parser = etree.XMLPullParser(events=("start",), resolve_entities=False, no_network=True)
    outermost = None
    try:
        for start in range(0, len(data), _BLOCK):
            parser.feed(data[start : start + _BLOCK])
            if outermost is None:
                outermost = next((element for _, element in parser.read_events()), None)
                if outermost is not None:
                    check_root(outermost, name, root)
        if outermost is None:
            check_root(None, name, root)
        return parser.close()
    except etree.XMLSyntaxError as error:
        line = f"{name}:{error.lineno}" if error.lineno else name
        reason = one_line(ValueError((error.msg or "is no XML").partition("\n")[0]))
        raise UserError(f"{line}: {reason}; repair the file, or export it again") from None


def _epilog(data: bytes, root: Any) -> bytes:
    """Return what follows the root element: spaces, comments and instructions."""
    from lxml import etree

    start = _end_without_spaces(data, len(data))
    for node in reversed(list(root.itersiblings())):
        opening = b"<!--"
        if node.tag is not etree.Comment:  # an instruction; its name up to what is not ASCII
            opening = b"<?" + node.target.encode("ascii", "replace").partition(b"?")[0]
        start = data.rfind(opening, 0, start)
        if start < 0:  # the encoding is not one of ASCII
            return b""
        start = _end_without_spaces(data, start)
    return data[start:]


def _end_without_spaces(data: bytes, end: int) -> int:
    while data[end - 1 : end] in _SPACES:
        end -= 1
    return end


class MixedParagraph(Paragraph):
    """A paragraph that is the text and children of an element.

    Args:
        element: the element; `replace` changes its content.
        classify: returns a child as text, an atom, or a span without items; a span without payload
            is replaced by its items.
        read_text: applied to text that is read.
        add_text: adds text to the end of an element.
        container: returns the element that holds the content of one that is a span.
    """

    def __init__(
        self,
        element: Any,
        classify: Callable[[Any], Item],
        read_text: Callable[[str], str] = str,
        add_text: Callable[[Any, str], None] | None = None,
        container: Callable[[Any], Any] | None = None,
    ) -> None:
        self._element, self._classify, self._read_text = element, classify, read_text
        self._add_text = add_text or append_text
        self._container = container or (lambda element: element)
        super().__init__(self._items(element))

    def replace(self, texts: Iterator[str]) -> None:
        """Replace the content by its translation; texts are those of the passages."""
        if self.passages:
            self._fill(self._element, self.translated(texts))

    def _items(self, element: Any, depth: int = 0) -> list[Item]:
        items: list[Item] = [self._read_text(element.text or "")]
        for child in element:
            item = self._classify(child)
            if isinstance(item, Span) and depth == MAX_DEPTH:
                items.append(Atom(child))
            elif isinstance(item, Span):
                inner = self._items(self._container(child), depth + 1)
                items += inner if item.payload is None else [dataclasses.replace(item, items=inner)]
            else:
                items.append(item)
            items.append(self._read_text(child.tail or ""))
        return join_text(items)

    def _fill(self, element: Any, items: Sequence[Item]) -> None:
        element.text = None
        for child in list(element):
            element.remove(child)
        for item in items:
            if isinstance(item, str):
                self._add_text(element, item)
                continue
            item.payload.tail = None
            element.append(item.payload)
            if isinstance(item, Span):
                self._fill(self._container(item.payload), item.items)


def append_text(element: Any, text: str) -> None:
    """Add text to the end of an element."""
    last = next(element.iterchildren(reversed=True), None)  # len() would count all children
    if last is None:
        element.text = (element.text or "") + text
    else:
        last.tail = (last.tail or "") + text
