"""Plain text and HTML: one segment, whose layout the translation of texts keeps."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

from mnmt_jax.data.encodings import declared_codec
from mnmt_jax.decoding.text.markup_tokens import Markup, MarkupReader, attributes_of
from mnmt_jax.documents.segments import Document, DocumentOptions, Segment
from mnmt_jax.documents.text_encoding import TextEncoding, decode_declared, decode_text

_CHARSET = re.compile(r"""charset\s*=\s*["']?([\w.:-]+)""", re.ASCII | re.IGNORECASE)
_UTF8 = ("utf-8", "utf8", "utf-16", "utf-16le", "utf-16be")  # of a declaration that is ASCII
_HTML_CODECS = {  # encodings that the HTML standard reads as larger ones, as Python names them
    "ascii": "cp1252",
    "latin_1": "cp1252",
    "iso8859_9": "cp1254",
    "iso8859_11": "cp874",
    "tis_620": "cp874",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "gb2312": "gbk",
}
_HEAD_BYTES = 4096  # of HTML, with the declaration of its encoding


class _WholeText:
    """A document that is one segment."""

    source = ""

    def __init__(self, text: str, encoding: TextEncoding, markup: Markup) -> None:
        self._encoding = encoding
        segment = Segment(text, markup)
        self.segments = [segment] if segment.is_translatable else []

    def write(self, texts: Sequence[str]) -> bytes:
        """Return the translation in the encoding of the file."""
        (text,) = texts
        return self._encoding.encode(text)


def read_text(data: bytes, name: str, options: DocumentOptions) -> Document:
    """Read plain text.

    Raises:
        UserError: if its encoding is not known.
    """
    return _WholeText(*decode_text(data, name, options.source), "")


def read_html(data: bytes, name: str, options: DocumentOptions) -> Document:
    """Read HTML; characters that its encoding lacks are written as references.

    A page that declares UTF-16 in ASCII is read as UTF-8 and one that declares ISO-8859-1 as
    Windows-1252, as the HTML standard demands.

    Raises:
        UserError: if its encoding is not known, or not the one that it declares.
    """
    charset = _declared_charset(data[:_HEAD_BYTES].decode("latin-1"))
    is_marked = data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if is_marked or charset.lower() in _UTF8:
        return _WholeText(*decode_text(data, name, options.source), "html")
    codec = declared_codec(charset)
    encoding = TextEncoding(_HTML_CODECS.get(codec, charset), errors="xmlcharrefreplace")
    return _WholeText(*decode_declared(data, name, encoding), "html")


def _declared_charset(head: str) -> str:
    """Return the encoding that the first `<meta>` with one declares; UTF-8 if there is none."""
    for token in MarkupReader("html").tokens(head):
        attributes = attributes_of(token.raw) if token.name == "meta" else {}
        is_type = attributes.get("http-equiv", "").strip().lower() == "content-type"
        texts = f"charset={attributes.get('charset', '')}", attributes.get("content", "")
        for text in texts[: 1 + is_type]:
            if declared := _CHARSET.search(text):
                return declared[1]
    return "utf-8"
