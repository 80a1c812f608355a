"""Word documents (.docx): paragraphs of the body, headers, footers, notes and comments.

Table cells and text boxes hold paragraphs too. The most frequent format of a paragraph is that of
its text; runs of other formats are spans. Runs that Word has split without a difference in format
are one. Field codes, images, bookmarks and deleted text stay as they are.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from mnmt_jax.data.xml_elements import local_name
from mnmt_jax.documents.passages import (
    Atom,
    Item,
    Paragraph,
    ParagraphDocument,
    Span,
    join_text,
    plain_text,
)
from mnmt_jax.documents.segments import Document, DocumentOptions
from mnmt_jax.documents.xml_tree import XmlFile
from mnmt_jax.documents.zip_archive import ZipArchive
from mnmt_jax.errors import UserError

_XML_SPACE = "{http://www.w3.org/XML/1998/namespace}space"
_TYPES = "[Content_Types].xml"
_ROOTS = {  # by the end of the content type
    "main": "document",
    "header": "hdr",
    "footer": "ftr",
    "footnotes": "footnotes",
    "endnotes": "endnotes",
    "comments": "comments",
}
_TYPE = re.compile(
    r"application/vnd\.(?:openxmlformats-officedocument\.wordprocessingml|ms-word)\."
    r"(?:[\w.]+\.)?(\w+)\+xml"
)
_WRAPPERS = frozenset("bdo customXml dir hyperlink ins moveTo sdt smartTag".split())
_CONTAINERS = {"sdt": "sdtContent", "ruby": "rubyBase"}  # of the runs of an element
_IGNORED = frozenset("proofErr lastRenderedPageBreak softHyphen".split())
_BREAKS = frozenset("tab br cr ptab".split())
_MAX_WRAPPERS = 16  # levels; deeper ones stay as they are
_MAX_FIELDS = 8  # levels in a wrapper; marks of deeper ones are atoms
_NO_BREAK_HYPHEN = "\u2011"


def read_docx(data: bytes, name: str, options: DocumentOptions) -> Document:
    """Read a Word document.

    Raises:
        UserError: if it is damaged or unsafe to unpack.
    """
    archive = ZipArchive(data, name)
    files = {
        part: XmlFile(archive.read(part), f"{name}/{part}", root)
        for part, root in _text_parts(archive, name)
    }
    if "document" not in [local_name(file.root) for file in files.values()]:
        raise UserError(f"{name}: is no Word document; save it as .docx")
    paragraphs = [
        _WordParagraph(element)
        for file in files.values()
        for element in file.root.iter("{*}p")
        if element.tag.startswith(file.root.tag.rpartition("}")[0])  # not those of drawings
    ]
    return ParagraphDocument(
        paragraphs,
        lambda: archive.replaced({part: file.to_bytes() for part, file in files.items()}),
    )


def _text_parts(archive: ZipArchive, name: str) -> Iterator[tuple[str, str]]:
    """Yield the names of the parts that have text, and of their root elements."""
    types = XmlFile(archive.read(_TYPES), f"{name}/{_TYPES}", "Types").root
    for override in types.iter("{*}Override"):
        kind = _TYPE.fullmatch(override.get("ContentType", ""))
        part = override.get("PartName", "").removeprefix("/")
        if kind and kind[1] in _ROOTS and part in archive.names():
            yield part, _ROOTS[kind[1]]


@dataclasses.dataclass(frozen=True, eq=False)
class _Format:
    """The format of a run; `key` is equal for equal formats."""

    properties: Any
    key: bytes


@dataclasses.dataclass(frozen=True, eq=False)
class _RunContent:
    """A child of a run other than text."""

    format: _Format
    element: Any


@dataclasses.dataclass(frozen=True, eq=False)
class _Wrapper:
    """An element around runs, such as a hyperlink.

    Attributes:
        element: the element.
        container: the element in it that holds the runs.
        base: the format of most of them.
        outer: the format of the run that the element is in, if it is in one.
    """

    element: Any
    container: Any
    base: _Format
    outer: _Format | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class _Field:
    """What is before and after the text of a field."""

    start: Sequence[Item]
    end: Sequence[Item]
    base: _Format


class _WordParagraph(Paragraph):
    """A paragraph of runs.

    Args:
        element: the element w:p.
    """

    def __init__(self, element: Any) -> None:
        self._element = element
        self._namespace = element.tag.rpartition("}")[0] + "}"
        items = _with_fields(list(self._read(element)))
        self._base, items = _with_base(items)
        super().__init__(items)

    def replace(self, texts: Iterator[str]) -> None:
        """Replace the runs by translated ones; texts are those of the passages."""
        if self.passages:
            self._fill(self._element, self.translated(texts), self._base)

    def _read(self, container: Any, depth: int = 0) -> Iterator[Item]:
        """Yield the items of a paragraph or wrapper; text is in spans of its format."""
        for child in container:
            name = self._name(child)
            if name == "r":
                yield from self._read_run(child, depth)
            elif name in _WRAPPERS:
                yield self._wrapper(child, depth + 1)
            elif not name.endswith("Pr") and name not in _IGNORED:
                yield Atom(child)

    def _read_run(self, run: Any, depth: int) -> Iterator[Item]:
        run_format = self._format(run)
        for child in run:
            name = self._name(child)
            if name == "t":
                yield Span(run_format, (child.text or "",))
            elif name == "noBreakHyphen":
                yield Span(run_format, (_NO_BREAK_HYPHEN,))
            elif name == "ruby":
                yield self._wrapper(child, depth + 1, run_format)
            elif name != "rPr" and name not in _IGNORED:
                yield Atom(_RunContent(run_format, child), is_break=name in _BREAKS)

    def _wrapper(self, element: Any, depth: int, outer: _Format | None = None) -> Item:
        container = element
        if inner := _CONTAINERS.get(self._name(element)):
            container = element.find(f"{self._namespace}{inner}")
        if container is None or depth > _MAX_WRAPPERS:
            return Atom(_RunContent(outer, element) if outer else element)
        base, items = _with_base(_with_fields(list(self._read(container, depth))))
        is_link = self._name(element) == "hyperlink"
        return Span(_Wrapper(element, container, base, outer), items, is_link=is_link)

    def _format(self, run: Any) -> _Format:
        """Return the format of a run without the language of its spelling."""
        from lxml import etree

        properties = run.find(f"{self._namespace}rPr")
        if properties is None:
            return _Format(None, b"")
        properties = copy.deepcopy(properties)
        properties.tail = None
        for child in list(properties):
            if self._name(child) in ("lang", "noProof"):
                properties.remove(child)
        if not len(properties):
            return _Format(None, b"")
        return _Format(properties, etree.tostring(properties))

    def _name(self, element: Any) -> str:
        """Return the local name of an element of Word's namespace; "-" for others."""
        is_word = isinstance(element.tag, str) and element.tag.startswith(self._namespace)
        return local_name(element) if is_word else "-"

    def _fill(self, container: Any, items: Sequence[Item], base: _Format) -> None:
        """Replace the content of an element, other than its properties."""
        for child in list(container):
            if not self._name(child).endswith("Pr"):
                container.remove(child)
        self._append(container, items, base)

    def _append(self, container: Any, items: Sequence[Item], base: _Format) -> None:
        for item in items:
            payload = base if isinstance(item, str) else item.payload
            if isinstance(item, str):
                container.append(self._run(base, self._text(item)))
            elif isinstance(payload, _RunContent):
                container.append(self._run(payload.format, payload.element))
            elif isinstance(item, Atom) and isinstance(payload, list):
                self._append(container, payload, base)
            elif isinstance(item, Atom):
                container.append(payload)
            else:
                self._append_span(container, item)

    def _append_span(self, container: Any, span: Span) -> None:
        payload = span.payload
        if isinstance(payload, _Format):
            self._append(container, span.items, payload)
        elif isinstance(payload, _Field):
            self._append(container, payload.start, payload.base)
            self._append(container, span.items, payload.base)
            self._append(container, payload.end, payload.base)
        else:
            element, outer = payload.element, payload.outer
            container.append(self._run(outer, element) if outer else element)
            self._fill(payload.container, span.items, payload.base)

    def _run(self, run_format: _Format, child: Any) -> Any:
        run = self._element.makeelement(f"{self._namespace}r")
        if run_format.properties is not None:
            run.append(copy.deepcopy(run_format.properties))
        run.append(child)
        return run

    def _text(self, text: str) -> Any:
        element = self._element.makeelement(f"{self._namespace}t")
        element.text = re.sub(r"[\t\r\n]", " ", text)
        if text != text.strip() or "  " in text:
            element.set(_XML_SPACE, "preserve")
        return element


def _with_fields(items: Sequence[Item]) -> list[Item]:
    """Return items in which complete fields are spans, if they are links, or atoms.

    The ends of a field that begins or ends in another paragraph are breaks.
    """
    levels: list[list[Item]] = [[]]
    deep = 0  # levels below
    for item in items:
        kind = _field_character(item)
        is_deep = deep > 0 or (kind == "begin" and len(levels) > _MAX_FIELDS)
        if is_deep:
            levels[-1].append(item)
            deep += (kind == "begin") - (kind == "end")
        elif kind == "begin":
            levels.append([item])
        elif kind and len(levels) == 1:
            levels[-1].append(Atom(item.payload, is_break=True))  # type: ignore[union-attr]
        elif kind == "end":
            field = levels.pop()
            levels[-1].append(_field([*field, item]))
        else:
            levels[-1].append(item)
    for item in itertools.chain(*levels[1:]):
        is_end = bool(_field_character(item))
        levels[0].append(Atom(item.payload, is_break=True) if is_end else item)  # type: ignore[union-attr]
    return levels[0]


def _field(items: Sequence[Item]) -> Item:
    """Return a field from its begin to its end as one item."""
    kinds = [_field_character(item) for item in items]
    if "separate" not in kinds or not _is_link(items):
        return Atom(list(items))
    start = kinds.index("separate") + 1
    base, result = _with_base(items[start:-1])
    return Span(_Field(items[:start], items[-1:], base), result, is_link=True)


def _field_character(item: Item) -> str:
    """Return "begin", "separate" or "end" for a mark of a field, "" for other items."""
    if not isinstance(item, Atom) or not isinstance(item.payload, _RunContent):
        return ""
    element = item.payload.element
    if local_name(element) != "fldChar":
        return ""
    return next((text for name, text in element.items() if name.endswith("fldCharType")), "")


def _is_link(items: Sequence[Item]) -> bool:
    codes = (
        item.payload.element.text or ""
        for item in items
        if isinstance(item, Atom)
        and isinstance(item.payload, _RunContent)
        and local_name(item.payload.element) == "instrText"
    )
    return "".join(codes).split()[:1] == ["HYPERLINK"]


def _with_base(items: Sequence[Item]) -> tuple[_Format, list[Item]]:
    """Return the format of most characters, and items in which text of this format is text."""
    lengths: Counter[bytes] = Counter()
    formats: dict[bytes, _Format] = {}
    for item in items:
        if run_format := _format_of(item):
            formats.setdefault(run_format.key, run_format)
            lengths[run_format.key] += len(plain_text([item]))
    if not formats:
        return _Format(None, b""), list(items)
    base = formats[lengths.most_common(1)[0][0]]
    return base, join_text(_flattened(_with_merged_spans(items), base))


def _flattened(items: Sequence[Item], base: _Format) -> Iterator[Item]:
    for item in items:
        if run_format := _format_of(item):
            text = plain_text([item])
            is_invisible = not text.strip() and not _is_visible(run_format)
            if run_format.key == base.key or is_invisible:
                yield text
                continue
        yield item


def _with_merged_spans(items: Sequence[Item]) -> list[Item]:
    """Return items in which adjacent spans of one format are one."""
    merged: list[Item] = []
    for _, group in itertools.groupby(items, key=_format_key):
        run = list(group)
        run_format = _format_of(run[0])
        merged += [Span(run_format, (plain_text(run),))] if run_format else run
    return merged


def _format_of(item: Item) -> _Format | None:
    """Return the format of a span of text; None for other items."""
    is_run = isinstance(item, Span) and isinstance(item.payload, _Format)
    return item.payload if is_run else None  # type: ignore[union-attr]


def _format_key(item: Item) -> bytes | None:
    run_format = _format_of(item)
    return run_format.key if run_format else None


def _is_visible(run_format: _Format) -> bool:
    """Return whether a format shows on spaces."""
    return bool(re.search(rb":(u|strike|dstrike|highlight|shd|bdr)\b", run_format.key))
