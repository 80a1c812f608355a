"""Encodings of text documents: byte order marks are kept, and other encodings are refused."""

from __future__ import annotations

import codecs
import dataclasses

from mnmt_jax.data.encodings import (
    BYTE_ORDER_MARKS,
    conversion_hint,
    declared_codec,
    guess_narrow_encoding,
    guess_wide_encoding,
    usual_encoding,
)
from mnmt_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class TextEncoding:
    """An encoding with or without a byte order mark.

    Attributes:
        name: Python's name of the encoding.
        mark: the byte order mark, or nothing.
        errors: how characters that the encoding lacks are written, as `str.encode` has it.
    """

    name: str
    mark: bytes = b""
    errors: str = "strict"

    def encode(self, text: str) -> bytes:
        """Return a text as it is written to a file."""
        return self.mark + text.encode(self.name, self.errors)


def decode_text(data: bytes, name: str, language: str | None = None) -> tuple[str, TextEncoding]:
    """Return the text of a file and its encoding.

    Args:
        data: the file: UTF-8, or UTF-16 or UTF-32 with a byte order mark.
        name: its name, for messages.
        language: code of its language, if that is known; the likely encoding depends on it.

    Raises:
        UserError: if it is in another encoding.
    """
    for mark, marked_encoding in BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            encoding = codecs.lookup(marked_encoding or "utf-8").name
            return _decode(data[len(mark) :], name, encoding, language), TextEncoding(
                encoding, mark
            )
    return _decode(data, name, "utf-8", language), TextEncoding("utf-8")


def decode_declared(data: bytes, name: str, encoding: TextEncoding) -> tuple[str, TextEncoding]:
    """Return the text of a file in the encoding that it declares, and the encoding.

    Raises:
        UserError: if it is not in this encoding, or files may not declare it.
    """
    charset = encoding.name
    codec = declared_codec(charset)
    if not codec:
        raise UserError(f"{name}: declares {charset}, which is not supported; convert it to UTF-8")
    try:
        return data.decode(codec), dataclasses.replace(encoding, name=codec)
    except UnicodeError:
        raise UserError(f"{name}: is not {charset}, as it says; convert it to UTF-8") from None


def _decode(data: bytes, name: str, encoding: str, language: str | None) -> str:
    likely = guess_wide_encoding(data) if encoding == "utf-8" else ""
    try:
        if not likely:
            return data.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            raise UserError(f"{name}: is not valid {encoding.upper()}; export it again") from None
        line = data[: error.start].count(b"\n")
        bad_line = data.split(b"\n")[line]
        likely = usual_encoding(language) if language else guess_narrow_encoding(bad_line)
        raise UserError(f"{name}:{line + 1}: is not UTF-8; {conversion_hint(likely)}") from None
    raise UserError(f"{name}: is not UTF-8; {conversion_hint(likely)}")
