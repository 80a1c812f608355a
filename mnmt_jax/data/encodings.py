"""Encodings of text files: byte order marks, likely encodings, shares of undecodable lines."""

from __future__ import annotations

import codecs
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from mnmt_jax.errors import UserError

WIDE = ("UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE")
"""Encodings whose bytes are NULs to a fifth or more in text with spaces and line ends."""

_BLOCK = 1 << 18  # bytes read at a time
_MARKS = {  # UTF-32 first: its mark begins as that of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32LE",
    codecs.BOM_UTF32_BE: "UTF-32BE",
    codecs.BOM_UTF8: "",
    codecs.BOM_UTF16_LE: "UTF-16LE",
    codecs.BOM_UTF16_BE: "UTF-16BE",
}
_MARKED = " with a byte order mark"
_HALF = "mnmt_jax.half_character"  # name of an error handler
_MAX_BAD_SHARE = 0.05
_FEW = 5  # undecodable lines that are no matter of a whole file's encoding
_EARLY = 1000  # lines after which a share is known well enough to stop before the end
_CYRILLIC_OR_EASTERN = "Windows-1251"


def read_utf8_blocks(file: BinaryIO) -> tuple[str, Iterator[bytes]]:
    """Read a file in blocks, decoding UTF-16 and UTF-32 with a byte order mark.

    Args:
        file: open at its beginning.

    Returns:
        The encoding: "" for UTF-8, one of `WIDE` for what looks like it but has no mark, and any
        other text for one that has. Then blocks of UTF-8 without the mark; what could not be
        decoded is in them as bytes that are no UTF-8.
    """
    read = getattr(file, "read1", file.read)
    first = read(_BLOCK)
    while first and any(mark.startswith(first) and mark != first for mark in _MARKS):
        more = read(_BLOCK)
        if not more:
            break
        first += more
    following = iter(lambda: read(_BLOCK), b"")
    for mark, encoding in _MARKS.items():
        if first.startswith(mark):
            blocks = itertools.chain([first[len(mark) :]], following)
            return (encoding + _MARKED, _transcoded(blocks, encoding)) if encoding else ("", blocks)
    return guess_wide_encoding(first), itertools.chain([first], following)


def _transcoded(blocks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """Yield blocks of text in UTF-8; halves of characters become bytes that are no UTF-8."""
    decoder = codecs.getincrementaldecoder(encoding)(_HALF)
    for block in blocks:
        yield decoder.decode(block).encode("utf-8", "surrogatepass")
    yield decoder.decode(b"", final=True).encode("utf-8", "surrogatepass")


def _half(error: UnicodeError) -> tuple[str, int]:
    """Put a lone surrogate in the place of what cannot be decoded."""
    return "\udc80", getattr(error, "end", 0)


codecs.register_error(_HALF, _half)


def conversion(encoding: str) -> str:
    """Return the remedy for a file that is likely in an encoding, "" if that is not known."""
    command = f" (if it is {encoding}: iconv -f {encoding} -t UTF-8 FILE > NEW)" if encoding else ""
    return f"convert the file to UTF-8{command}"


def guess_wide_encoding(start: bytes) -> str:
    """Return which of `WIDE` the start of a file without a mark is likely in; "" for none."""
    start = start[:4096]
    nuls = [start[place::4].count(0) for place in range(4)]
    if sum(nuls) < max(2, len(start) / 5):
        return ""
    most = len(start) // 4 * 0.9
    if len(start) >= 8 and min(nuls[2], nuls[3]) >= most and nuls[0] < most:
        return "UTF-32LE"
    if len(start) >= 8 and min(nuls[0], nuls[1]) >= most and nuls[3] < most:
        return "UTF-32BE"
    return "UTF-16LE" if nuls[1] + nuls[3] >= nuls[0] + nuls[2] else "UTF-16BE"


def guess_narrow_encoding(line: bytes) -> str:
    """Return the likely encoding of a line that is not UTF-8.

    Letters with accents stand alone between letters of ASCII, those of other scripts together.
    """
    high = [byte >= 0x80 for byte in line]
    alone = sum(
        here and not before and not after
        for before, here, after in zip([False, *high], high, [*high[1:], False], strict=False)
    )
    if 2 * alone > sum(high):
        return "Windows-1252"
    for encoding in ("Shift_JIS", "GB18030"):
        # Nearly any bytes are GB18030: only text without letters of ASCII tells.
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError:
            continue
        kana = sum("\u3040" <= character <= "\u30ff" for character in text)
        common = sum("\u4e00" <= character <= "\u9fff" for character in text)
        if (encoding == "Shift_JIS" and kana) or (encoding == "GB18030" and 3 * common > len(text)):
            return encoding
    return _CYRILLIC_OR_EASTERN


@dataclass
class EncodingCheck:
    """Count of undecodable lines, whose share must stay small.

    Attributes:
        place: of the first of them.
        lines: of the text so far.
    """

    place: str = ""
    lines: int = 0
    _bad: int = 0
    _encodings: Counter[str] = field(default_factory=Counter)

    def add(self, place: str, encoding: str, lines: int) -> None:
        """Count an undecodable line.

        Args:
            place: of the line, such as "FILE:LINE".
            encoding: that it is likely in.
            lines: read so far, with it.

        Raises:
            UserError: if the share is too large already.
        """
        self.place = self.place or place
        self._bad += 1
        self._encodings[encoding] += 1
        if lines >= _EARLY:
            self.check(lines)

    def check(self, lines: int) -> None:
        """Check the share of undecodable lines.

        Args:
            lines: read so far.

        Raises:
            UserError: if more than 5 % of them, and more than five, cannot be decoded.
        """
        if self._bad <= max(_FEW, lines * _MAX_BAD_SHARE):
            return
        likely = next((name for name, _ in self._encodings.most_common() if name), "")
        raise UserError(
            f"{self.place}: the first of {self._bad} lines among {lines} that are not UTF-8; "
            f"{conversion(likely)}"
        )
