"""Line reader for plain and gzip text files, with checks of each line."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from io import BufferedReader, FileIO
from typing import BinaryIO, Literal, cast

from mnmt_jax.data.encodings import (
    WIDE,
    conversion_hint,
    guess_narrow_encoding,
    read_utf8_blocks,
    usual_encoding,
)
from mnmt_jax.errors import UserError

MAX_LINE_BYTES = 1 << 20
"""Maximum length of a line, in bytes of UTF-8; longer lines are refused or dropped."""

BadLine = Literal["error", "drop"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_GZIP_MAGIC = b"\x1f\x8b"
_TO_LINE_FEEDS = "tr '\\r' '\\n' < FILE > NEW"
# A line with at least this number and this fraction of NULs is taken as UTF-16 or UTF-32.
_MIN_NULS, _MIN_NUL_FRACTION = 4, 0.2


@dataclass(frozen=True)
class Cleaning:
    """Rules for bad lines.

    Attributes:
        on_bad_line: "error" stops at the first bad line and names it; "drop" skips its sentence
            pair and counts it.
        max_characters: maximum length of a sentence, in Unicode characters.
    """

    on_bad_line: BadLine = "error"
    max_characters: int = 5000

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            UserError: if a value is not allowed.
        """
        if self.on_bad_line not in ("error", "drop"):
            raise UserError(f"on_bad_line {self.on_bad_line!r}: must be 'error' or 'drop'")
        if self.max_characters < 1:
            raise UserError(f"max_characters {self.max_characters}: must be at least 1")


@dataclass(frozen=True)
class Flaw:
    """Reason for which a line is not used.

    Attributes:
        reason: short name for counting drops, e.g. "blank".
        detail: description for error messages.
        expected: whether such lines are normal for the file or the selection; they are always
            skipped.
        encoding: likely encoding of the line if it is not UTF-8; "" if unknown.
    """

    reason: str
    detail: str
    expected: bool = False
    encoding: str = ""

    @property
    def remedy(self) -> str:
        """How to correct the line, other than dropping it."""
        return conversion_hint(self.encoding) if self.reason == "bad_utf8" else "fix it"

    def in_language(self, *languages: str) -> Flaw:
        """Return the flaw of a text whose languages are known, with their usual encoding."""
        if not self.encoding or self.encoding in WIDE or not languages:
            return self
        return replace(self, encoding=usual_encoding(*languages))


def surrogate_flaw(text: str) -> Flaw | None:
    """Return the flaw of text with half a character, which escapes of JSON may hold, or None."""
    if (surrogate := _SURROGATE.search(text)) is None:
        return None
    escape = f"\\u{ord(surrogate[0]):x}"
    detail = f"half a character (a surrogate, {escape}) at {surrogate.start() + 1}"
    return Flaw("bad_utf8", detail)


BLANK = Flaw("blank", "blank line")
NUL = Flaw("nul", "a NUL character")
REPEATED = Flaw("repeated", "a pair that occurs before or in a held-out split", expected=True)


def resolve(path: str) -> str | None:
    """Return `path`, or `path` with ".gz", whichever exists; None if neither exists.

    Raises:
        UserError: if both exist, because the choice is ambiguous.
    """
    existing = [name for name in (path, path + ".gz") if os.path.isfile(name)]
    if len(existing) > 1:
        raise UserError(f"{path}: exists plain and as .gz, remove one of them")
    return existing[0] if existing else None


def check_sentence(text: str, cleaning: Cleaning) -> Flaw | None:
    """Return the flaw of a sentence that is blank, too long, or has a NUL character; else None."""
    from mnmt_jax.vocabulary.normalization import is_blank  # lazy: not for --help

    if is_blank(text):
        return BLANK
    if "\0" in text:
        return NUL
    if len(text) > cleaning.max_characters:
        return Flaw(
            "too_long",
            f"{len(text)} characters, more than max_characters={cleaning.max_characters}",
        )
    return None


def read_lines(source: str | BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> Iterator[str | Flaw]:
    """Yield the lines of a text without their line ends.

    A line ends at a line feed, with or without a carriage return before it; other characters that
    Unicode counts as line breaks stay in the text. A file of several lines that end in carriage
    returns alone, as on old Macs, is refused. Text is UTF-8, or UTF-16 or UTF-32 if it begins
    with a byte order mark, which is removed. Memory is bounded by `max_bytes` for any file: a
    longer line is skipped while it is read.

    Args:
        source: path of a file, which is read as gzip if its name ends in ".gz" or it has gzip's
            magic bytes; or an open file, such as standard input, which is read as gzip if it has
            the magic bytes and can peek at them.
        max_bytes: maximum length of a line, in bytes of UTF-8; a longer line becomes a flaw.

    Raises:
        UserError: if the file cannot be opened, is truncated, is not valid gzip, or has carriage
            returns alone as line ends.
    """
    if isinstance(source, str):
        with closing(open_bytes(source)) as file:
            yield from _lines(file, source, max_bytes)
        return
    name = getattr(source, "name", "input")
    if isinstance(source, BufferedReader) and _is_gzip(source):
        source = _decompressed(source)
    yield from _lines(source, name, max_bytes)


def open_bytes(path: str) -> BinaryIO:
    """Open a file or a pipe to read bytes, decompressed if it is gzip by its name or first bytes.

    It is opened once, because a pipe cannot be read again.

    Raises:
        UserError: if it cannot be opened.
    """
    try:
        file = open(path, "rb")
        if not path.endswith(".gz") and not _is_gzip(file):
            return file
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    return _decompressed(file)


def _is_gzip(file: BufferedReader) -> bool:
    return file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)


def _decompressed(file: BufferedReader) -> BinaryIO:
    decompressed = gzip.GzipFile(fileobj=file, mode="rb")
    decompressed.myfileobj = cast(FileIO, file)  # closed with it
    return cast(BinaryIO, decompressed)


def _lines(file: BinaryIO, name: str, max_bytes: int) -> Iterator[str | Flaw]:
    """Yield the lines of an open file."""
    number = 0
    pending = bytearray()  # start of a line that ends in a later block
    skipping = False  # inside a line that was too long
    try:
        encoding, blocks = read_utf8_blocks(file)
        for block in blocks:
            head, end, block = block.partition(b"\n")
            if not skipping:
                pending += head
                if end or len(pending) > max_bytes:
                    yield _decode_line(bytes(pending), encoding, max_bytes)
                    number += 1
                    pending.clear()
                    skipping = not end
            elif end:
                skipping = False
            if not end:
                continue
            complete_lines, end, unfinished = block.rpartition(b"\n")
            if end:
                for line in _decode_block(complete_lines, encoding, max_bytes):
                    yield line
                    number += 1
            pending += unfinished
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(
            f"{name}: unreadable after line {number} ({error}), copy the file again"
        ) from None
    _check_line_ends(pending, number, name)
    if pending:
        yield _decode_line(bytes(pending), encoding, max_bytes)


def _check_line_ends(last: bytearray, earlier: int, name: str) -> None:
    """Check that a file without a line feed has no carriage return between characters.

    Args:
        last: the text after the last line feed.
        earlier: number of lines before it.
        name: name of the file.

    Raises:
        UserError: if it has one.
    """
    if not earlier and _has_inner_returns(last):
        raise UserError(
            f"{name}: its lines end in carriage returns alone; convert them: {_TO_LINE_FEEDS}"
        )


def _has_inner_returns(line: bytes | bytearray) -> bool:
    """Return whether a line has a carriage return that is not at its end."""
    return b"\r" in line.rstrip(b"\r")


def _decode_block(block: bytes, encoding: str, max_bytes: int) -> Iterator[str | Flaw]:
    """Yield the lines of a block that lacks its last line end; valid UTF-8 is decoded at once."""
    lines = block.split(b"\n")
    if b"\0" not in block and max(map(len, lines)) <= max_bytes:
        try:
            # A line feed is added to the last line, which may end in a carriage return.
            text = f"{block.decode()}\n".replace("\r\n", "\n")
        except UnicodeDecodeError:
            pass
        else:
            yield from text[:-1].split("\n")
            return
    for line in lines:
        yield _decode_line(line, encoding, max_bytes)


def _decode_line(line: bytes, encoding: str, max_bytes: int) -> str | Flaw:
    """Decode one line without its line feed."""
    if len(line) > max_bytes:
        returns = f" (if its lines end in carriage returns alone: {_TO_LINE_FEEDS})"
        hint = returns if _has_inner_returns(line) else ""
        return Flaw("too_long", f"more than {max_bytes} bytes{hint}")
    nuls, looks_wide = line.count(0), encoding in WIDE
    if nuls and (looks_wide or nuls >= max(_MIN_NULS, len(line) * _MIN_NUL_FRACTION)):
        wide = encoding if looks_wide else WIDE[0]
        return Flaw("bad_utf8", f"not UTF-8 but, by its NULs, {wide}", encoding=wide)
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        if encoding not in ("", *WIDE):
            return Flaw("bad_utf8", f"not {encoding}")
        likely = encoding or guess_narrow_encoding(line)
        return Flaw("bad_utf8", f"not UTF-8 (byte {error.start + 1})", encoding=likely)
    return text.removesuffix("\r")
