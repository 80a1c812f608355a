"""Encodings of text documents: byte order marks are kept, and other encodings are refused."""

from __future__ import annotations

import codecs
import dataclasses

from mnmt_jax.data.encodings import conversion, guess_narrow_encoding, guess_wide_encoding
from mnmt_jax.errors import UserError

_MARKS = {  # UTF-32 first: its mark starts with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


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


def decode_text(data: bytes, name: str) -> tuple[str, TextEncoding]:
    """Return the text of a file and its encoding.

    Args:
        data: the file: UTF-8, or UTF-16 or UTF-32 with a byte order mark.
        name: its name, for messages.

    Raises:
        UserError: if it is in another encoding.
    """
    for mark, encoding in _MARKS.items():
        if data.startswith(mark):
            return _decode(data[len(mark) :], name, encoding), TextEncoding(encoding, mark)
    return _decode(data, name, "utf-8"), TextEncoding("utf-8")


def _decode(data: bytes, name: str, encoding: str) -> str:
    likely = guess_wide_encoding(data) if encoding == "utf-8" else ""
    try:
        if not likely:
            return data.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            raise UserError(f"{name}: is not valid {encoding.upper()}; export it again") from None
        line = data[: error.start].count(b"\n")
        likely = guess_narrow_encoding(data.splitlines(keepends=True)[line])
        raise UserError(f"{name}:{line + 1}: is not UTF-8; {conversion(likely)}") from None
    raise UserError(f"{name}: is not UTF-8; {conversion(likely)}")
