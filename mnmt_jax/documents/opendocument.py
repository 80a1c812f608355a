"""OpenDocument text (.odt): paragraphs and headings of content.xml, headers and footers.

Notes, text boxes, table cells and annotations hold paragraphs too. Text that is recorded as
deleted stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mnmt_jax.data.xml_elements import local_name
from mnmt_jax.documents.passages import Atom, Item, ParagraphDocument, Span
from mnmt_jax.documents.segments import Document, DocumentOptions
from mnmt_jax.documents.xml_tree import MixedParagraph, XmlFile, append_text
from mnmt_jax.documents.zip_archive import ZipArchive
from mnmt_jax.errors import UserError

_TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
_STYLE = "urn:oasis:names:tc:opendocument:xmlns:style:1.0"
_PARTS = {"content.xml": "document-content", "styles.xml": "document-styles"}
_MANIFEST = "META-INF/manifest.xml"
_OPTIONAL = ("styles.xml",)
_LIBREOFFICE = "urn:org:documentfoundation:names:experimental:office:xmlns:loext:1.0"
_SPANS = frozenset(
    (
        *(f"{{{_TEXT}}}{name}" for name in ("span", "a", "meta", "ruby")),
        f"{{{_LIBREOFFICE}}}content-control",
    )
)
_RUBY, _RUBY_BASE = f"{{{_TEXT}}}ruby", f"{{{_TEXT}}}ruby-base"
_LINK = f"{{{_TEXT}}}a"
_BREAKS = frozenset(f"{{{_TEXT}}}{name}" for name in ("tab", "line-break"))
_SPACE = f"{{{_TEXT}}}s"
_COUNT = f"{{{_TEXT}}}c"
_MAX_SPACES = 1000
_BLANKS = " \t\r\n"  # characters that are spaces in XML
_MARKERS = frozenset(f"{{{_TEXT}}}{name}" for name in ("soft-page-break",))
_RSID = re.compile(r"(paragraph-)?rsid")  # of an editing session, without effect


def read_odt(data: bytes, name: str, options: DocumentOptions) -> Document:
    """Read an OpenDocument text.

    Raises:
        UserError: if it is damaged or unsafe to unpack.
    """
    archive = ZipArchive(data, name)
    if _MANIFEST in archive.names() and b"encryption-data" in archive.read(_MANIFEST):
        raise UserError(f"{name}: is encrypted; save it without a password")
    files = {
        part: XmlFile(archive.read(part), f"{name}/{part}", root)
        for part, root in _PARTS.items()
        if part not in _OPTIONAL or part in archive.names()
    }
    paragraphs = [one for file in files.values() for one in _paragraphs(file.root)]
    return ParagraphDocument(
        paragraphs,
        lambda: archive.replaced({part: file.to_bytes() for part, file in files.items()}),
    )


def _paragraphs(root: Any) -> Iterator[MixedParagraph]:
    plain = _styles_without_effect(root)
    elements = root.iter(f"{{{_TEXT}}}p", f"{{{_TEXT}}}h")
    outer = {space for element in elements for space in _outer_spaces(element)}

    def classify(child: Any) -> Item:
        if child.tag == _SPACE and child not in outer:
            return " " * _count(child)
        if child.tag in _MARKERS:
            return ""
        if child.tag in _SPANS and _container(child) is not None:
            is_plain = child.get(f"{{{_TEXT}}}style-name") in plain
            has_effect = child.tag == _RUBY or not is_plain
            return Span(child if has_effect else None, (), is_link=child.tag == _LINK)
        return Atom(child, is_break=child.tag in _BREAKS)

    for element in root.iter(f"{{{_TEXT}}}p", f"{{{_TEXT}}}h"):
        if not any(local_name(parent) == "tracked-changes" for parent in element.iterancestors()):
            yield MixedParagraph(element, classify, _collapsed, _add_text, _container)


def _container(span: Any) -> Any:
    """Return the element with the content of a span: the base of a ruby, or itself."""
    return span.find(_RUBY_BASE) if span.tag == _RUBY else span


def _styles_without_effect(root: Any) -> set[str]:
    """Return names of automatic styles that only tell editing sessions apart."""
    names = set()
    for style in root.iter(f"{{{_STYLE}}}style"):
        properties = [attribute for child in style for attribute in child.attrib]
        is_plain = all(_RSID.fullmatch(one.rpartition("}")[2]) for one in properties)
        is_text = style.get(f"{{{_STYLE}}}family") == "text"
        has_parent = style.get(f"{{{_STYLE}}}parent-style-name") is not None
        if is_text and is_plain and not has_parent and properties:
            names.add(style.get(f"{{{_STYLE}}}name"))
    return names


def _outer_spaces(paragraph: Any) -> list[Any]:
    """Return the elements of spaces before the first and after the last character.

    They stay elements, because plain spaces at the ends of a paragraph have no effect.
    """
    content = list(_content(paragraph))
    texts = (item.strip(_BLANKS) if isinstance(item, str) else "" for item in content)
    inner = [number for number, text in enumerate(texts) if text]
    outer = [*content[: inner[0]], *content[inner[-1] :]] if inner else content
    return [item for item in outer if not isinstance(item, str)]


def _content(element: Any) -> Iterator[Any]:
    """Yield the texts of an element and its spans, and the elements of spaces."""
    yield element.text or ""
    for child in element:
        if child.tag in _SPANS and _container(child) is not None:
            yield from _content(_container(child))
        elif child.tag == _SPACE:
            yield child
        yield child.tail or ""


def _count(space: Any) -> int:
    """Return the number of spaces of an element, at most 1000."""
    text = space.get(_COUNT, "1")
    return min(int(text), _MAX_SPACES) if text.isascii() and text.isdigit() else 1


def _collapsed(text: str) -> str:
    return re.sub(f"[{_BLANKS}]+", " ", text)


def _add_text(element: Any, text: str) -> None:
    """Add text; spaces that would be collapsed become elements."""
    for number, piece in enumerate(re.split("( {2,})", _collapsed_breaks(text))):
        if number % 2:
            append_text(element, " ")
            space = element.makeelement(_SPACE)
            if len(piece) > 2:
                space.set(_COUNT, str(len(piece) - 1))
            element.append(space)
        elif piece:
            append_text(element, piece)


def _collapsed_breaks(text: str) -> str:
    return re.sub(r"[\t\r\n]", " ", text)
