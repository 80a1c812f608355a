"""Text encodings: byte order marks, encoding guesses, and limits of undecodable lines."""

from __future__ import annotations

import codecs
import encodings
import encodings.aliases
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_codes import canonical_code_or_input

WIDE = ("UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE")
"""Encodings in which at least a fifth of the bytes of typical text are NULs."""

BYTE_ORDER_MARKS = {  # UTF-32 first: its mark starts with that of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32LE",
    codecs.BOM_UTF32_BE: "UTF-32BE",
    codecs.BOM_UTF8: "",
    codecs.BOM_UTF16_LE: "UTF-16LE",
    codecs.BOM_UTF16_BE: "UTF-16BE",
}
"""Encoding of each byte order mark; "" for UTF-8."""

_DECLARABLE = frozenset(  # those of the Encoding standard and of gettext, as Python names them
    "ascii big5 big5hkscs cp437 cp850 cp852 cp855 cp862 cp866 cp874 cp932 cp949 cp950 cp1125 "
    "cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 euc_jis_2004 euc_jp euc_kr "
    "gb18030 gb2312 gbk iso2022_jp iso8859_2 iso8859_3 iso8859_4 iso8859_5 iso8859_6 iso8859_7 "
    "iso8859_8 iso8859_9 iso8859_10 iso8859_11 iso8859_13 iso8859_14 iso8859_15 iso8859_16 johab "
    "koi8_r koi8_t koi8_u latin_1 mac_cyrillic mac_roman ptcp154 shift_jis tis_620 utf_8".split()
)
_BLOCK = 1 << 18  # bytes read at a time
_MARKED_SUFFIX = " with a byte order mark"
_REPLACE_HANDLER = "mnmt_jax.half_character"  # name of an error handler
_MAX_BAD_SHARE = 0.05
_MAX_BAD_LINES = 5  # undecodable lines that are always accepted
_MIN_LINES_FOR_EARLY_CHECK = 1000  # lines to read before a pass may stop early
_DEFAULT_NARROW, _WESTERN = "Windows-1251", "Windows-1252"
_OF_LANGUAGES = {
    "Windows-1250": "bs cs hr hu pl ro sk sl sq",
    "Windows-1251": "be bg kk ky mk mn ru sr tg tt uk",
    _WESTERN: "af br ca co cy da de en es eu fi fr ga gl id is it lb ms nb nl nn no oc pt sv sw tl",
    "Windows-1253": "el",
    "Windows-1254": "az tr",
    "Windows-1255": "he yi",
    "Windows-1256": "ar fa ur",
    "Windows-1257": "et lt lv",
    "Windows-1258": "vi",
    "Shift_JIS": "ja",
    "GB18030": "zh",
}
_BY_LANGUAGE = {code: name for name, codes in _OF_LANGUAGES.items() for code in codes.split()}


def read_utf8_blocks(file: BinaryIO) -> tuple[str, Iterator[bytes]]:
    """Read a file in blocks, decoding UTF-16 and UTF-32 with a byte order mark.

    Args:
        file: open at its beginning.

    Returns:
        The encoding: "" for UTF-8, one of `WIDE` for a guess without a mark, and another text for
        an encoding with a mark. Then blocks of UTF-8 without the mark; undecodable input is
        replaced by bytes that are not valid UTF-8.
    """
    read = getattr(file, "read1", file.read)
    head = read(_BLOCK)
    while head and any(mark.startswith(head) and mark != head for mark in BYTE_ORDER_MARKS):
        more = read(_BLOCK)
        if not more:
            break
        head += more
    remaining = iter(lambda: read(_BLOCK), b"")
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            blocks = itertools.chain([head[len(mark) :]], remaining)
            return (
                (encoding + _MARKED_SUFFIX, _transcoded(blocks, encoding))
                if encoding
                else ("", blocks)
            )
    return guess_wide_encoding(head), itertools.chain([head], remaining)


def _transcoded(blocks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """Yield blocks of text as UTF-8; undecodable input becomes bytes that are not valid UTF-8."""
    decoder = codecs.getincrementaldecoder(encoding)(_REPLACE_HANDLER)
    for block in blocks:
        yield decoder.decode(block).encode("utf-8", "surrogatepass")
    yield decoder.decode(b"", final=True).encode("utf-8", "surrogatepass")


def _replace_undecodable(error: UnicodeError) -> tuple[str, int]:
    """Replace undecodable input by a lone surrogate (an error handler of codecs)."""
    return "\udc80", getattr(error, "end", 0)


codecs.register_error(_REPLACE_HANDLER, _replace_undecodable)


def declared_codec(label: str) -> str:
    """Return Python's name of an encoding that a file may declare; "" if it may not.

    Python knows others, such as Punycode, which it decodes in quadratic time.
    """
    name = encodings.normalize_encoding(label).lower()
    codec = encodings.aliases.aliases.get(name, name)
    return codec if codec in _DECLARABLE else ""


def conversion_hint(encoding: str) -> str:
    """Return the hint to convert a file to UTF-8, with the command if the encoding is known."""
    command = f" (if it is {encoding}: iconv -f {encoding} -t UTF-8 FILE > NEW)" if encoding else ""
    return f"convert the file to UTF-8{command}"


def guess_wide_encoding(start: bytes) -> str:
    """Return the likely encoding, one of `WIDE`, of a file without a mark; "" for none."""
    start = start[:4096]
    nuls = [start[offset::4].count(0) for offset in range(4)]
    if sum(nuls) < max(2, len(start) / 5):
        return ""
    threshold = len(start) // 4 * 0.9
    if len(start) >= 8 and min(nuls[2], nuls[3]) >= threshold and nuls[0] < threshold:
        return "UTF-32LE"
    if len(start) >= 8 and min(nuls[0], nuls[1]) >= threshold and nuls[3] < threshold:
        return "UTF-32BE"
    return "UTF-16LE" if nuls[1] + nuls[3] >= nuls[0] + nuls[2] else "UTF-16BE"


def guess_narrow_encoding(line: bytes) -> str:
    """Return the likely encoding of a line that is not UTF-8.

    Accented Latin letters are mostly isolated between ASCII letters; letters of other scripts are
    adjacent to each other.
    """
    is_high = [byte >= 0x80 for byte in line]
    isolated = sum(
        current and not previous and not following
        for previous, current, following in zip(
            [False, *is_high], is_high, [*is_high[1:], False], strict=False
        )
    )
    if 2 * isolated > sum(is_high):
        return _WESTERN
    for encoding in ("Shift_JIS", "GB18030"):
        # Nearly all byte strings are valid GB18030: check the characters.
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError:
            continue
        kana = sum("\u3040" <= character <= "\u30ff" for character in text)
        ideographs = sum("\u4e00" <= character <= "\u9fff" for character in text)
        if (encoding == "Shift_JIS" and kana) or (
            encoding == "GB18030" and 3 * ideographs > len(text)
        ):
            return encoding
    return _DEFAULT_NARROW


def usual_encoding(*languages: str) -> str:
    """Return the encoding that text of a language usually had before UTF-8; "" if there is none.

    Args:
        languages: code of the language; of several languages in one text, the first that is not
            written in Western European letters counts.
    """
    encodings_of = map(_usual_encoding, languages)
    return next((encoding for encoding in encodings_of if encoding != _WESTERN), _WESTERN)


def _usual_encoding(language: str) -> str:
    code, *others = canonical_code_or_input(language).split("_")
    has_script = any(len(other) == 4 for other in others)  # not the usual one
    return "" if has_script else _BY_LANGUAGE.get(code, "")


@dataclass
class EncodingCheck:
    """Counter of undecodable lines with a limit on their fraction.

    Attributes:
        location: place of the first undecodable line.
        lines: number of lines so far.
    """

    location: str = ""
    lines: int = 0
    _bad: int = 0
    _encodings: Counter[str] = field(default_factory=Counter)

    def add(self, location: str, encoding: str, lines: int) -> None:
        """Count an undecodable line.

        Args:
            location: place of the line, such as "FILE:LINE".
            encoding: its likely encoding.
            lines: number of lines so far, including this one.

        Raises:
            UserError: if the fraction is already too large.
        """
        self.location = self.location or location
        self._bad += 1
        self._encodings[encoding] += 1
        if lines >= _MIN_LINES_FOR_EARLY_CHECK:
            self.check(lines)

    def check(self, lines: int) -> None:
        """Check the fraction of undecodable lines.

        Args:
            lines: number of lines so far.

        Raises:
            UserError: if more than 5 % of them, and more than five, cannot be decoded.
        """
        if self._bad <= max(_MAX_BAD_LINES, lines * _MAX_BAD_SHARE):
            return
        likely = next((name for name, _ in self._encodings.most_common() if name), "")
        raise UserError(
            f"{self.location}: the first of {self._bad} lines among {lines} that are not UTF-8; "
            f"{conversion_hint(likely)}"
        )
