"""Translators' files: TMX, XLIFF 1.2 and 2, gettext PO, unit by unit.

What marks text up (`<hi>`, `<g>`, `<mrk>`, `<pc>`) leaves its text; what stands for a code of the
document (`<ph>`, `<bpt>`, `<x>`, ...) leaves nothing, or a blank where it breaks a line. Blanks and
line ends become single blanks. Units that are no finished translation have a flaw that says so.
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
from mnmt_jax.errors import UserError
from mnmt_jax.files.storage_errors import one_line
from mnmt_jax.vocabulary.language_codes import parse_code

UNTRANSLATED = Flaw("untranslated", "no translation", expected=True)
_FUZZY = Flaw("fuzzy", "a translation that somebody has to review", expected=True)
_OBSOLETE = Flaw("obsolete", "a text that is used no more", expected=True)
_PLURAL = Flaw("plural", "forms for numbers, which do not say what they translate", expected=True)
_LOCKED = Flaw("not_to_translate", "a text that must not be translated", expected=True)

MAX_UNIT_BYTES = 4 << 20
"""Longest unit of a file of XML, in bytes."""

MAX_OTHER_BYTES = 64 << 20
"""Bytes of XML between two units at most; a megabyte of gzip can hold a thousand."""

_CODES = frozenset("bpt bx cp ec ept ex it ph sc sm em ut x".split())
_BREAKS = ("lb", "br")  # how `type`, `ctype` and `subType` of a code that breaks a line end
_BEGINNING = 1 << 20  # bytes in which the outermost element begins
_BLOCK = 1 << 15  # bytes parsed at a time
_LAST_LINE = 65535
_XLIFF_VERSIONS = ("1", "2")  # 1.x and 2.x
_NOT_BEGUN = ("new", "needs-translation", "initial")


@dataclass(frozen=True)
class Unit:
    """One text in two languages or more.

    Attributes:
        place: "FILE:LINE", where it begins.
        texts: by language tag, in lower case with hyphens; "" where there is no translation.
        flaw: why it is no finished translation, or None.
    """

    place: str
    texts: Mapping[str, str]
    flaw: Flaw | None = None


def read_units(path: str) -> Iterator[Unit]:
    """Yields the units of a file in their order; XML is read piece by piece, PO files whole.

    Args:
        path: of a file whose name ends as one of `FORMATS`, for XML perhaps with ".gz" behind it.

    Raises:
        UserError: if it is of another kind, damaged, or declares entities.
    """
    for ending, read in FORMATS.items():
        if path.removesuffix(".gz").lower().endswith(ending):
            return read(path)
    endings = ", ".join(f".{ending.removeprefix('.')}" for ending in FORMATS)
    raise UserError(f"{path}: must end in {endings}, XLIFF also in .sdlxliff and the like")


def normalize_tag(tag: str) -> str:
    """Returns a language tag in the form that they are compared in: "pt_BR" is "pt-br"."""
    return tag.strip().replace("_", "-").replace("@", "-").lower()


def _tmx_units(path: str) -> Iterator[Unit]:
    for unit in _elements(path, "tmx", ("tu",)):
        texts: dict[str, str] = {}
        for variant in unit:
            tag = variant.get(_XML_LANG) or variant.get("lang")
            segment = _child(variant, "seg")
            if _name(variant) == "tuv" and tag and segment is not None:
                texts.setdefault(normalize_tag(tag), _text(segment, path))
        yield Unit(_place(path, unit), texts)


def _xliff_units(path: str) -> Iterator[Unit]:
    for unit in _elements(path, "xliff", ("trans-unit", "unit")):
        if _name(unit) == "trans-unit":
            yield from _xliff_pair(unit, path, ("source-language", "target-language"))
        elif _name(unit) == "unit":
            for segment in unit:
                if _name(segment) == "segment":
                    yield from _xliff_pair(segment, path, ("srcLang", "trgLang"))


def _xliff_pair(segment: Any, path: str, names: tuple[str, str]) -> Iterator[Unit]:
    """Yields the unit that has a source and a target; none without a source.

    Args:
        segment: the element that holds both.
        path: of the file.
        names: attributes above it that name the languages.
    """
    place = _place(path, segment)
    source, target = _child(segment, "source"), _child(segment, "target")
    if source is None:
        return
    tags = [
        _above(segment, name) or ("" if side is None else side.get(_XML_LANG) or "")
        for name, side in zip(names, (source, target), strict=True)
    ]
    if not tags[0] or not (tags[1] or target is None):
        missing = names[0] if not tags[0] else names[1]
        raise UserError(f"{place}: no language; give {missing} to the element that has the units")
    if not tags[1]:
        return
    flaw = None
    state = segment.get("state") or (target.get("state") if target is not None else None) or ""
    if _above(segment, "translate") == "no":
        flaw = _LOCKED
    elif state in _NOT_BEGUN:
        flaw = UNTRANSLATED
    elif state.startswith("needs-") or segment.get("approved") == "no":
        flaw = _FUZZY
    texts = (_text(source, path), "" if target is None else _text(target, path))
    yield Unit(place, dict(zip(map(normalize_tag, tags), texts, strict=True)), flaw)


def _po_units(path: str) -> Iterator[Unit]:
    try:
        import polib
    except ImportError:
        raise UserError(f"{path}: PO files need polib; pip install 'mnmt-jax[po]'") from None
    if path.endswith(".gz"):
        raise UserError(f"{path}: PO files are not read compressed; unpack it")
    try:
        encoding = check_po_lines(path, polib.detect_encoding(path))
        entries = polib.pofile(path, encoding=encoding)
    except (OSError, UnicodeError) as error:
        if line := re.match(r".*\(line (\d+)\)", str(error), re.DOTALL):
            said = f"{path}:{line[1]}: a line that does not belong behind those before it"
        else:
            said = f"{path}: not a PO file ({one_line(error)})"
        raise UserError(f"{said}; mend the file, or export it again") from None
    header = entries.metadata
    source = normalize_tag(header.get("X-Source-Language") or "en")
    target = normalize_tag(header.get("Language") or Path(path).stem)
    try:
        parse_code(target)
    except UserError:
        raise UserError(
            f"{path}: which language? the header names none that is known; add 'Language: de', or "
            "call the file de.po"
        ) from None
    for entry in entries:
        flaw = None
        if entry.obsolete:
            flaw = _OBSOLETE
        elif entry.fuzzy:
            flaw = _FUZZY
        elif entry.msgid_plural:
            flaw = _PLURAL
        texts = {source: _joined(entry.msgid), target: _joined(entry.msgstr)}
        yield Unit(f"{path}:{entry.linenum}", texts, flaw)


FORMATS: Mapping[str, Callable[[str], Iterator[Unit]]] = {
    ".tmx": _tmx_units,
    ".xlf": _xliff_units,
    "xliff": _xliff_units,
    ".po": _po_units,
}
"""Endings of the files' names, and what reads them; "xliff" is also the end of tools' own."""

_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


def _elements(path: str, root: str, names: tuple[str, ...]) -> Iterator[Any]:
    """Yields the elements of some names when they are complete; all else is freed block by block.

    The parser loads nothing that the file names, replaces no entity in a text, and has limits: 256
    elements within each other, 10 million characters in a text or tag. An element of these names
    has `MAX_UNIT_BYTES` at most, and between two of them are `MAX_OTHER_BYTES`.

    Args:
        path: of an XML file.
        root: name of the outermost element.
        names: of the elements.

    Raises:
        UserError: if it is no such file, is damaged or beyond a limit, or declares entities.
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
            parser.feed(file.read(_BEGINNING))
            _check_start(next((each for _, each in parser.read_events()), None), path, root)
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
    """Yields the elements of some names that a parser completes, and frees what was read.

    Args:
        parser: reports starts and ends of the outermost element and those of the names.
        blocks: of the file.
        path: of the file.
        names: of the elements.
    """
    root, open_units = None, []
    unit_bytes = other_bytes = 0
    for block in blocks:
        parser.feed(block)
        if any(entry.level_name == "FATAL" for entry in parser.feed_error_log):
            raise _syntax_error(path, "", 0, parser)
        other_bytes += len(block)
        unit_bytes += len(block)
        for event, element in parser.read_events():
            root = element if root is None else root
            if _name(element) not in names:
                continue
            if event == "start":
                open_units.append(element)
                unit_bytes = len(block) if len(open_units) == 1 else unit_bytes
            else:
                open_units.pop()
                other_bytes = 0
                yield element
        if open_units and unit_bytes > MAX_UNIT_BYTES:
            raise UserError(
                f"{_place(path, open_units[0])}: this unit is too long, more than "
                f"{MAX_UNIT_BYTES >> 20} MiB; export the file again"
            )
        if other_bytes > MAX_OTHER_BYTES:
            raise UserError(
                f"{path}: {MAX_OTHER_BYTES >> 20} MiB without a unit; export the file again"
            )
        if root is not None:
            _free(root, names)


def _free(root: Any, names: frozenset[str]) -> None:
    """Frees all that is complete before the place up to which a tree was parsed.

    Elements that are open, each the last in the one around it, stay, and so does a whole unit.
    """
    node = root
    while len(node) and (node is root or _name(node) not in names):
        del node[:-1]
        node = node[-1]


def _syntax_error(path: str, message: str, line: int, parser: Any) -> UserError:
    """Returns the error of a file that is no XML; of some the parser's log has the message."""
    if not line:
        known = [entry for entry in parser.feed_error_log if entry.line]
        message, line = (known[-1].message, known[-1].line) if known else (message, 0)
    where = f"{path}:{line}" if line else path
    # The parser's message ends with the place once more.
    said = re.sub(r", line \d+, column \d+$", "", message.partition("\n")[0])
    return UserError(f"{where}: {one_line(ValueError(said))}; mend the file, or export it again")


def _check_start(outermost: Any, path: str, root: str) -> None:
    """Checks the outermost element, or None, and what is declared before it.

    Raises:
        UserError: if it has another name or is XLIFF of another version, or entities are declared.
    """
    if outermost is None:
        raise UserError(f"{path}: has no element at its beginning; this is no XML")
    declared = outermost.getroottree().docinfo.internalDTD
    if declared is not None and next(declared.iterentities(), None) is not None:
        raise UserError(f"{path}: declares entities, which can grow to any size; refused")
    if _name(outermost) != root:
        raise UserError(f"{path}: begins with <{_name(outermost)}>, not with <{root}>")
    version = outermost.get("version", _XLIFF_VERSIONS[0]).strip()
    if root == "xliff" and version.partition(".")[0] not in _XLIFF_VERSIONS:
        raise UserError(f'{path}: version="{version}" of XLIFF; export it as XLIFF 1.2 or 2')


def _text(element: Any, path: str) -> str:
    """Returns the text of an element without codes."""
    return _joined("".join(_pieces(element, path)))


def _pieces(element: Any, path: str) -> Iterator[str]:
    yield element.text or ""
    for child in element:
        if not _name(child):
            raise UserError(f"{_place(path, element)}: unknown {child.text}; write its text")
        if _name(child) in _CODES:
            yield " " if _breaks_line(child) else ""
        else:
            yield from _pieces(child, path)
        yield child.tail or ""


def _breaks_line(code: Any) -> bool:
    kinds = (code.get(name, "").lower() for name in ("type", "ctype", "subType"))
    native = (code.text or "").lower()
    return any(k.endswith(_BREAKS) for k in kinds) or "\n" in native or native.startswith("<br")


def _place(path: str, element: Any) -> str:
    """Returns "FILE:LINE" of an element; the parser does not count further than `_LAST_LINE`."""
    line = element.sourceline
    return f"{path}:{line}" if line < _LAST_LINE else f"{path}:{_LAST_LINE}+"


def _joined(text: str) -> str:
    return " ".join(text.split())


def _name(element: Any) -> str:
    """Returns the name of an element without its namespace; "" for an entity."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _child(element: Any, name: str) -> Any:
    """Returns the first child of a name, or None."""
    return next((child for child in element if _name(child) == name), None)


def _above(element: Any, name: str) -> str:
    """Returns the attribute of an element or the nearest around it that has it, or ""."""
    while element is not None and element.get(name) is None:
        element = element.getparent()
    return "" if element is None else element.get(name)
