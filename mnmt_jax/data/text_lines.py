"""Reads text files line by line, plain or gzip, and says what is wrong with a line."""

from __future__ import annotations

import codecs
import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import BinaryIO, Literal, cast

from mnmt_jax.errors import UserError

BadLine = Literal["error", "drop"]

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Cleaning:
    """Says which lines are bad and what becomes of them.

    Attributes:
        on_bad_line: "error" stops at the first bad line, naming it; "drop" leaves out its whole
            sentence pair and counts it.
        max_characters: longest sentence allowed, in Unicode characters.
    """

    on_bad_line: BadLine = "error"
    max_characters: int = 5000

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            UserError: if a value is not allowed.
        """
        if self.on_bad_line not in ("error", "drop"):
            raise UserError(f"on_bad_line {self.on_bad_line!r}: must be 'error' or 'drop'")
        if self.max_characters < 1:
            raise UserError(f"max_characters {self.max_characters}: must be at least 1")


@dataclass(frozen=True)
class Flaw:
    """Says what is wrong with a line.

    Attributes:
        reason: short name that drops are counted under, e.g. "blank".
        detail: the same in words, for an error.
        expected: whether such lines belong to the file or the choice, and are left out in any case.
    """

    reason: str
    detail: str
    expected: bool = False


BLANK = Flaw("blank", "blank line")
REPEATED = Flaw("repeated", "a pair that occurs before or in a held-out split", expected=True)


def resolve(path: str) -> str | None:
    """Returns `path`, or `path` with ".gz", whichever exists; None if neither does.

    Raises:
        UserError: if both exist, for nobody could tell which is meant.
    """
    found = [name for name in (path, path + ".gz") if os.path.isfile(name)]
    if len(found) > 1:
        raise UserError(f"{path}: exists plain and as .gz, remove one of them")
    return found[0] if found else None


def check_sentence(text: str, cleaning: Cleaning) -> Flaw | None:
    """Returns the flaw of a sentence: blank or over-long."""
    if not text.strip():
        return BLANK
    if len(text) > cleaning.max_characters:
        return Flaw(
            "too_long",
            f"{len(text)} characters, more than max_characters={cleaning.max_characters}",
        )
    return None


def read_lines(source: str | BinaryIO, max_bytes: int | None = None) -> Iterator[str | Flaw]:
    """Yields the lines of UTF-8 text without their line ends, one at a time.

    A line ends at a line feed, with or without a carriage return before it; other characters that
    Unicode counts as line breaks stay in the text. A byte order mark is removed. Memory stays
    bounded by the longest line that is read, whatever the file holds.

    Args:
        source: path of a file, gzip if it is named ".gz" or begins as gzip does; or an open plain
            file.
        max_bytes: longest line that is read; a longer one becomes a flaw. None reads any.

    Raises:
        UserError: if the file cannot be opened, or is cut off or no gzip inside.
    """
    if isinstance(source, str):
        with closing(open_bytes(source)) as file:
            yield from _lines(file, source, max_bytes)
    else:
        yield from _lines(source, getattr(source, "name", "input"), max_bytes)


def open_bytes(path: str) -> BinaryIO:
    """Opens a file to read its bytes: unpacked, if it is named ".gz" or begins as gzip does.

    Raises:
        UserError: if it cannot be opened.
    """
    try:
        with open(path, "rb") as file:
            compressed = path.endswith(".gz") or file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        return cast(BinaryIO, gzip.open(path, "rb") if compressed else open(path, "rb"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


def _lines(file: BinaryIO, name: str, max_bytes: int | None) -> Iterator[str | Flaw]:
    number = 0
    while True:
        try:
            line = file.readline(-1 if max_bytes is None else max_bytes + 1)
            overlong = max_bytes is not None and len(line) > max_bytes and line[-1:] != b"\n"
            while overlong and (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
                pass
        except (EOFError, OSError, zlib.error) as error:
            raise UserError(
                f"{name}: unreadable after line {number} ({error}), copy the file again"
            ) from None
        if not line:
            return
        number += 1
        if overlong:
            yield Flaw("too_long", f"more than {max_bytes} bytes")
            continue
        yield _decode(line, first=number == 1)


def _decode(line: bytes, *, first: bool) -> str | Flaw:
    """Decodes one line."""
    line = line.removeprefix(codecs.BOM_UTF8) if first else line
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return Flaw("bad_utf8", f"not UTF-8 (byte {error.start + 1})")
    return text.removesuffix("\n").removesuffix("\r")
