"""gettext catalogs (.po): texts without a translation get one, everything else is kept.

The lines of all other entries, comments, contexts and flags are those of the file.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mnmt_jax.data.po_validation import check_po_text
from mnmt_jax.documents.segments import Document, DocumentOptions, Segment
from mnmt_jax.documents.tagged_text import MessageFilter, TaggedText
from mnmt_jax.documents.text_encoding import TextEncoding, decode_declared, decode_text
from mnmt_jax.errors import UserError, install_remedy
from mnmt_jax.files.storage_errors import one_line
from mnmt_jax.vocabulary.language_codes import is_same_in_any_region, may_be_same_language

_HEADER = re.compile(r'^msgid[ \t]+""\s*^msgstr[ \t]*(".*(?:\s*^[ \t]*".*)*)', re.MULTILINE)
_CHARSET = re.compile(  # in the source of the header, whose lines end with "\n"
    r"Content-Type:(?:(?!\\n).)*?charset=([\w-]+)", re.ASCII | re.DOTALL | re.IGNORECASE
)
_TRANSLATION = re.compile(r"\s*msgstr(?:\[(\d+)\s*\])?\s*\"")
_UNKNOWN_CHARSET = "charset=CHARSET"  # of templates
_EMPTY_LANGUAGE = re.compile(r'("|\\n)(Language:)\s*(?=\\n)')
_ESCAPE = r"\\(?:a|[0-7]{1,3}|x[0-9a-fA-F]{1,2})"  # that polib does not know
_ESCAPES = re.compile(rf"((?:{_ESCAPE})+)|\\.")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_BELL = "\a"
_CONTINUATION = re.compile(r"\s*\"")
_UTF8 = ("utf-8", "utf8", "charset")  # templates have the word CHARSET
_HEAD_BYTES = 8192


def read_po(data: bytes, name: str, options: DocumentOptions) -> Document:
    """Read a gettext catalog.

    Raises:
        UserError: if a line is malformed, polib is not installed, the encoding is not known, or
            the header names other languages than the options.
    """
    text, encoding = _decode(data, name)
    catalog = _parsed(text, name, encoding.name)
    _check_languages(catalog.metadata, name, options)
    document = _Catalog(text, encoding, catalog, options)
    document.messages.report(name, options.warn)
    return document


def _check_languages(header: Mapping[str, str], name: str, options: DocumentOptions) -> None:
    """Check the languages of a catalog, and that its plural forms are of the target language.

    Raises:
        UserError: if they are others, or the language of the plural forms is not known.
    """
    for field, code, is_similar in (
        ("X-Source-Language", options.source, is_same_in_any_region),
        ("Language", options.target, may_be_same_language),
    ):
        language = header.get(field, "").partition("@")[0].strip()
        if language and code and not is_similar(language, code):
            raise UserError(f"{name}: {field}: {language} in the file, but {code} is asked for")
    plurals = header.get("Plural-Forms", "")
    if not header.get("Language", "").strip() and re.search(r"nplurals\s*=\s*\d", plurals):
        raise UserError(
            f"{name}: has Plural-Forms, but no Language; write Language: {options.target} into "
            "the header if they are of that language, else run msginit"
        )


def _decode(data: bytes, name: str) -> tuple[str, TextEncoding]:
    declared = _declared_charset(data.decode("latin-1"))
    charset = declared[1] if declared else "utf-8"
    if charset.lower() in _UTF8:
        return decode_text(data, name)
    return decode_declared(data, name, TextEncoding(charset))


def _declared_charset(text: str) -> re.Match[str] | None:
    """Return the encoding of a catalog that its header names."""
    header = _HEADER.search(text)
    if not header:
        return None
    start, end = header.span(1)
    return _CHARSET.search(text, start, min(end, start + _HEAD_BYTES))


def _parsed(text: str, name: str, encoding: str) -> Any:
    """Return the entries of a catalog, with the fields of its header as metadata."""
    try:
        import polib
    except ImportError:
        raise UserError(f"{name}: PO files need polib; {install_remedy('documents')}") from None
    text = text.replace("\r\n", "\n")
    check_po_text(io.StringIO(text), name)
    text = _ESCAPES.sub(lambda match: _unescaped(match, encoding), text)
    try:
        catalog = polib.pofile(_Lines(f"{text}\n"))  # one line would be the name of a file
    except (OSError, ValueError, IndexError) as error:
        reason = one_line(error)
        line = re.search(r"\(line (\d+)\)", str(error))
        place = f"{name}:{line[1]}: unexpected" if line else f"{name}: {reason}"
        raise UserError(f"{place}; repair the file, or export it again") from None
    return catalog


def _unescaped(match: re.Match[str], encoding: str) -> str:
    """Return escapes of bytes as characters, or as escapes that polib knows."""
    import polib

    codes = re.findall(r"\\(\w+)", match[1] or "")
    values = (
        ord(_BELL) if code == "a" else int(code[1:], 16) if code[0] == "x" else int(code, 8) & 0xFF
        for code in codes
    )
    try:
        return polib.escape(bytes(values).decode(encoding)) if codes else match[0]
    except UnicodeDecodeError:
        return match[0]


class _Lines(str):
    """A text whose lines end with line feeds alone; `str.splitlines` ends them at others too."""

    def splitlines(self, keepends: bool = False) -> list[str]:
        """Return the lines; the last one is empty, if the text ends with a line feed."""
        assert not keepends
        return self.split("\n")


class _Catalog:
    """A catalog as lines; a translation is written in place of the lines of an empty one.

    Attributes:
        source: code of the source language that the header names; "" if it names none.
        messages: the ICU messages that are left out.
    """

    def __init__(
        self, text: str, encoding: TextEncoding, entries: Any, options: DocumentOptions
    ) -> None:
        self.source = entries.metadata.get("X-Source-Language", "").strip()
        self._encoding = encoding
        self._lines = text.split("\n")
        self._blocks: list[range] = []
        self._texts: list[TaggedText] = []
        self.messages = MessageFilter()
        starts = [max(0, entry.linenum - 1) for entry in entries]  # 0: first, without a header
        language = rf"\1\2 {options.target}"
        for number in range(min(starts, default=0)):  # of the header
            line = _EMPTY_LANGUAGE.sub(language, self._lines[number])
            self._lines[number] = line.replace(_UNKNOWN_CHARSET, f"charset={encoding.name.upper()}")
        ends = [*starts, len(self._lines)][1:]
        for entry, start, end in zip(entries, starts, ends, strict=True):
            self._add(entry, list(self._translations(start, end)), options.overwrite)

    def _add(self, entry: Any, blocks: Sequence[tuple[int, range]], overwrite: bool) -> None:
        """Add the translations of an entry that are empty, or all of them."""
        filled = {0: entry.msgstr, **entry.msgstr_plural}
        for index, block in blocks:
            if filled.get(index) and not overwrite:
                continue
            is_plural = bool(entry.msgid_plural) and (index > 0 or len(blocks) == 1)
            text = entry.msgid_plural if is_plural else entry.msgid
            tagged = TaggedText(text, entry.flags)
            if tagged.segment.is_translatable and not self.messages.leaves_out(text):
                self._blocks.append(block)
                self._texts.append(tagged)

    @property
    def segments(self) -> list[Segment]:
        """The texts without translation, in order."""
        return [text.segment for text in self._texts]

    def _translations(self, start: int, end: int) -> Iterator[tuple[int, range]]:
        """Yield the number and the lines of each translation of an entry."""
        number = start
        while number < end:
            match = _TRANSLATION.match(self._lines[number])
            first = number
            number += 1
            if match:
                while number < end and _CONTINUATION.match(self._lines[number]):
                    number += 1
                yield int(match[1] or 0), range(first, number)

    def write(self, texts: Sequence[str]) -> bytes:
        """Return the file with the translations."""
        lines: list[str] = []
        position = 0
        for block, source, translation in zip(self._blocks, self._texts, texts, strict=True):
            text = source.restored(translation)
            first = self._lines[block.start]
            end = "\r" if first.endswith("\r") else ""
            lines += self._lines[position : block.start]
            keyword = first[: first.index('"')]
            lines += [line + end for line in _quoted(keyword, text)]
            position = block.stop
        return self._encoded("\n".join(lines + self._lines[position:]))

    def _encoded(self, text: str) -> bytes:
        """Return the file in its encoding, or in UTF-8 if that lacks characters of translations."""
        try:
            return self._encoding.encode(text)
        except UnicodeEncodeError:
            declared = _declared_charset(text)
            assert declared is not None, "no other encoding lacks characters"
            return f"{text[: declared.start(1)]}UTF-8{text[declared.end(1) :]}".encode()


def _quoted(keyword: str, text: str) -> list[str]:
    """Return the lines of a text: one, or one for each line of the text after an empty one."""
    parts = [f'"{_escaped(part)}"' for part in text.splitlines(keepends=True)] or ['""']
    return [keyword + parts[0]] if len(parts) == 1 else [f'{keyword}""', *parts]


def _escaped(text: str) -> str:
    """Return a text as it is written in quotes."""
    import polib

    return _CONTROL.sub(
        lambda match: r"\a" if match[0] == _BELL else f"\\{ord(match[0]):03o}", polib.escape(text)
    )
