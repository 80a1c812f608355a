"""Readers of translation files: TMX, XLIFF 1.2 and 2, and gettext PO.

Markup around text (`<hi>`, `<g>`, `<mrk>`, `<pc>`) is removed and its text kept. Elements that
stand for a code of the document (`<ph>`, `<bpt>`, `<x>`, ...) are removed, or become a space if
they break a line. White space is collapsed to single spaces. Units that are not finished
translations have a flaw with the reason.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnmt_jax.data.po_validation import check_po_lines
from mnmt_jax.data.text_reader import Flaw, open_bytes
from mnmt_jax.data.xml_elements import (
    CODE_ELEMENTS,
    UNTRANSLATED_STATES,
    XML_LANG,
    check_root,
    child_named,
    inherited_attribute,
    local_name,
)
from mnmt_jax.errors import UserError, install_remedy
from mnmt_jax.files.storage_errors import one_line
from mnmt_jax.vocabulary.language_codes import parse_code

UNTRANSLATED = Flaw("untranslated", "no translation", expected=True)
_FUZZY = Flaw("fuzzy", "a translation that needs review", expected=True)
_OBSOLETE = Flaw("obsolete", "an obsolete text", expected=True)
_PLURAL = Flaw("plural", "plural forms, whose source forms are ambiguous", expected=True)
_LOCKED = Flaw("not_to_translate", "a text that must not be translated", expected=True)

MAX_UNIT_BYTES = 4 << 20
"""Maximum length of a unit of an XML file, in bytes."""

MAX_OTHER_BYTES = 64 << 20
"""Maximum bytes of XML between two units; a megabyte of gzip can hold a thousand."""

_LINE_BREAK_SUFFIXES = ("lb", "br")  # of `type`, `ctype`, `subType`
_HEAD_BYTES = 1 << 20  # the root element starts within these bytes
_BLOCK = 1 << 15  # bytes parsed at a time
_MAX_LINE_NUMBER = 65535


@dataclass(frozen=True)
class Unit:
    """One text in two or more languages.

    Attributes:
        location: "FILE:LINE" of its start.
        texts: text by language tag, in lower case with hyphens; "" if there is no translation.
        flaw: why it is not a finished translation, or None.
    """

    location: str
    texts: Mapping[str, str]
    flaw: Flaw | None = None


def read_units(path: str) -> Iterator[Unit]:
    """Yield the units of a file in order; XML is streamed, PO files are read completely.

    Args:
        path: file whose name ends in one of `FORMATS`; XML may also end in ".gz".

    Raises:
        UserError: if the file has another format, is damaged, or declares entities.
    """
    for ending, read in FORMATS.items():
        if path.removesuffix(".gz").lower().endswith(ending):
            return read(path)
    endings = ", ".join(f".{ending.removeprefix('.')}" for ending in FORMATS)
    raise UserError(f"{path}: must end in {endings}, XLIFF also in .sdlxliff and the like")


def normalize_tag(tag: str) -> str:
    """Return a language tag in the form used for comparison: "pt_BR" becomes "pt-br"."""
    return tag.strip().replace("_", "-").replace("@", "-").lower()


def _tmx_units(path: str) -> Iterator[Unit]:
    for unit in _elements(path, "tmx", ("tu",)):
        texts: dict[str, str] = {}
        for variant in unit:
            tag = variant.get(XML_LANG) or variant.get("lang")
            segment = child_named(variant, "seg")
            if local_name(variant) == "tuv" and tag and segment is not None:
                texts.setdefault(normalize_tag(tag), _text(segment, path))
        yield Unit(_place(path, unit), texts)


def _xliff_units(path: str) -> Iterator[Unit]:
    for unit in _elements(path, "xliff", ("trans-unit", "unit")):
        if local_name(unit) == "trans-unit":
            yield from _xliff_pair(unit, path, ("source-language", "target-language"))
        elif local_name(unit) == "unit":
            for segment in unit:
                if local_name(segment) == "segment":
                    yield from _xliff_pair(segment, path, ("srcLang", "trgLang"))


def _xliff_pair(segment: Any, path: str, attributes: tuple[str, str]) -> Iterator[Unit]:
    """Yield the unit of an element with a source and a target; nothing without a source.

    Args:
        segment: the element that holds both.
        path: path of the file.
        attributes: inherited attributes that name the source and target languages.
    """
    place = _place(path, segment)
    source, target = child_named(segment, "source"), child_named(segment, "target")
    if source is None:
        return
    tags = [
        inherited_attribute(segment, name) or ("" if side is None else side.get(XML_LANG) or "")
        for name, side in zip(attributes, (source, target), strict=True)
    ]
    if not tags[0] or not (tags[1] or target is None):
        missing = attributes[0] if not tags[0] else attributes[1]
        raise UserError(f"{place}: no language; give {missing} to the element that has the units")
    if not tags[1]:
        return
    flaw = None
    state = segment.get("state") or (target.get("state") if target is not None else None) or ""
    if inherited_attribute(segment, "translate") == "no":
        flaw = _LOCKED
    elif state in UNTRANSLATED_STATES:
        flaw = UNTRANSLATED
    elif state.startswith("needs-") or segment.get("approved") == "no":
        flaw = _FUZZY
    texts = (_text(source, path), "" if target is None else _text(target, path))
    yield Unit(place, dict(zip(map(normalize_tag, tags), texts, strict=True)), flaw)


def _po_units(path: str) -> Iterator[Unit]:
    try:
        import polib
    except ImportError:
        raise UserError(f"{path}: PO files need polib; {install_remedy('po')}") from None
    if path.endswith(".gz"):
        raise UserError(f"{path}: PO files are not read compressed; unpack it")
    try:
        encoding = check_po_lines(path, polib.detect_encoding(path))
        entries = polib.pofile(path, encoding=encoding)
    except (OSError, UnicodeError) as error:
        if line := re.match(r".*\(line (\d+)\)", str(error), re.DOTALL):
            problem = f"{path}:{line[1]}: unexpected after the lines before it"
        else:
            problem = f"{path}: not a PO file ({one_line(error)})"
        raise UserError(f"{problem}; repair the file, or export it again") from None
    header = entries.metadata
    source_tag = normalize_tag(header.get("X-Source-Language") or "en")
    target_tag = normalize_tag(header.get("Language") or Path(path).stem)
    try:
        parse_code(target_tag)
    except UserError:
        raise UserError(
            f"{path}: the header names no known language; add 'Language: de', or name the file "
            "de.po"
        ) from None
    for entry in entries:
        flaw = None
        if entry.obsolete:
            flaw = _OBSOLETE
        elif entry.fuzzy:
            flaw = _FUZZY
        elif entry.msgid_plural:
            flaw = _PLURAL
        texts = {
            source_tag: _collapse_whitespace(entry.msgid),
            target_tag: _collapse_whitespace(entry.msgstr),
        }
        yield Unit(f"{path}:{max(1, entry.linenum)}", texts, flaw)


FORMATS: Mapping[str, Callable[[str], Iterator[Unit]]] = {
    ".tmx": _tmx_units,
    ".xlf": _xliff_units,
    "xliff": _xliff_units,
    ".po": _po_units,
}
"""Readers by file name suffix; "xliff" also matches variants of tools, such as ".sdlxliff"."""


def _elements(path: str, root: str, names: tuple[str, ...]) -> Iterator[Any]:
    """Yield the elements of some names when they are complete; free all others block by block.

    The parser loads no external resources, expands no entities, and has limits: 256 nested
    elements, and 10 million characters in a text or tag. An element of these names has at most
    `MAX_UNIT_BYTES`; at most `MAX_OTHER_BYTES` are between two of them.

    Args:
        path: path of an XML file.
        root: name of the root element.
        names: names of the elements.

    Raises:
        UserError: if the root has another name, the file is damaged or exceeds a limit, or declares
            entities.
    """
    from lxml import etree

    options: dict[str, Any] = {
        "resolve_entities": False,
        "remove_comments": True,
        "remove_pis": True,
    }
    parser = etree.XMLPullParser(events=("start",), **options)
    try:
        with open_bytes(path) as file:
            parser.feed(file.read(_HEAD_BYTES))
            check_root(next((element for _, element in parser.read_events()), None), path, root)
        tags = [f"{{*}}{name}" for name in (root, *names)]
        parser = etree.XMLPullParser(events=("start", "end"), tag=tags, **options)
        with open_bytes(path) as file:
            blocks = iter(lambda: file.read(_BLOCK), b"")
            yield from _complete_elements(parser, blocks, path, frozenset(names))
        parser.close()
    except etree.XMLSyntaxError as error:
        raise _syntax_error(path, error.msg, error.lineno, parser) from None
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(f"{path}: unreadable ({one_line(error)}), copy the file again") from None


def _complete_elements(
    parser: Any, blocks: Iterator[bytes], path: str, names: frozenset[str]
) -> Iterator[Any]:
    """Yield the elements of some names as the parser completes them, and free what was read.

    Args:
        parser: pull parser that reports starts and ends of the root and of the elements.
        blocks: blocks of the file.
        path: path of the file.
        names: names of the elements.
    """
    root, open_elements = None, []
    unit_bytes = other_bytes = 0
    for block in blocks:
        parser.feed(block)
        if any(entry.level_name == "FATAL" for entry in parser.feed_error_log):
            raise _syntax_error(path, "", 0, parser)
        other_bytes += len(block)
        unit_bytes += len(block)
        for event, element in parser.read_events():
            root = element if root is None else root
            if local_name(element) not in names:
                continue
            if event == "start":
                open_elements.append(element)
                unit_bytes = len(block) if len(open_elements) == 1 else unit_bytes
            else:
                open_elements.pop()
                other_bytes = 0
                yield element
        if open_elements and unit_bytes > MAX_UNIT_BYTES:
            raise UserError(
                f"{_place(path, open_elements[0])}: this unit is too long, more than "
                f"{MAX_UNIT_BYTES >> 20} MiB; export the file again"
            )
        if other_bytes > MAX_OTHER_BYTES:
            raise UserError(
                f"{path}: {MAX_OTHER_BYTES >> 20} MiB without a unit; export the file again"
            )
        if root is not None:
            _free_completed(root, names)


def _free_completed(root: Any, names: frozenset[str]) -> None:
    """Free everything that is complete before the current parse position.

    Open elements, each the last child of its parent, are kept, and so are complete units.
    """
    node = root
    while len(node) and (node is root or local_name(node) not in names):
        del node[:-1]
        node = node[-1]


def _syntax_error(path: str, message: str, line: int, parser: Any) -> UserError:
    """Return the error for malformed XML; if the line is unknown, use the parser's error log."""
    if not line:
        entries = [entry for entry in parser.feed_error_log if entry.line]
        message, line = (entries[-1].message, entries[-1].line) if entries else (message, 0)
    place = f"{path}:{line}" if line else path
    # The parser's message repeats the place at its end.
    reason = re.sub(r", line \d+, column \d+$", "", message.partition("\n")[0])
    return UserError(
        f"{place}: {one_line(ValueError(reason))}; repair the file, or export it again"
    )


def _text(element: Any, path: str) -> str:
    """Return the text of an element without codes."""
    return _collapse_whitespace("".join(_text_chunks(element, path)))


def _text_chunks(element: Any, path: str) -> Iterator[str]:
    yield element.text or ""
    for child in element:
        if not local_name(child):
            raise UserError(f"{_place(path, element)}: unknown {child.text}; write its text")
        if local_name(child) in CODE_ELEMENTS:
            yield " " if _breaks_line(child) else ""
        else:
            yield from _text_chunks(child, path)
        yield child.tail or ""


def _breaks_line(code: Any) -> bool:
    types = (code.get(name, "").lower() for name in ("type", "ctype", "subType"))
    code_text = (code.text or "").lower()
    return (
        any(type_.endswith(_LINE_BREAK_SUFFIXES) for type_ in types)
        or "\n" in code_text
        or code_text.startswith("<br")
    )


def _place(path: str, element: Any) -> str:
    """Return "FILE:LINE" of an element; the parser does not count beyond `_MAX_LINE_NUMBER`."""
    line = element.sourceline
    return f"{path}:{line}" if line < _MAX_LINE_NUMBER else f"{path}:{_MAX_LINE_NUMBER}+"


def _collapse_whitespace(text: str) -> str:
    return " ".join(text.split())
