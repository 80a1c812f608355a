"""Formats of documents by the end of a file's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath

from mnmt_jax.documents.gettext_catalog import read_po
from mnmt_jax.documents.interchange import read_tmx, read_xliff
from mnmt_jax.documents.markdown_text import read_markdown
from mnmt_jax.documents.opendocument import read_odt
from mnmt_jax.documents.plain_text import read_html, read_text
from mnmt_jax.documents.segments import Document, DocumentOptions
from mnmt_jax.documents.subtitles import read_srt
from mnmt_jax.documents.wordprocessing import read_docx
from mnmt_jax.errors import UserError, suggest

Read = Callable[[bytes, str, DocumentOptions], Document]

FORMATS: Mapping[str, Read] = {
    ".txt": read_text,
    ".md": read_markdown,
    ".html": read_html,
    ".htm": read_html,
    ".docx": read_docx,
    ".odt": read_odt,
    ".srt": read_srt,
    ".po": read_po,
    ".xliff": read_xliff,
    ".xlf": read_xliff,
    ".tmx": read_tmx,
}
"""Readers by the end of the name."""

FOR_TRANSLATORS = (".po", ".xliff", ".xlf", ".tmx")
"""Endings of formats that can hold translations."""


def read_document(data: bytes, name: str, options: DocumentOptions) -> Document:
    """Read a document.

    Args:
        data: the file.
        name: its name, whose end is its format.
        options: languages.

    Raises:
        UserError: if the format is not supported, the file is damaged, or it has nothing to
            translate.
    """
    ending = check_format(name)
    document = FORMATS[ending](data, name, options)
    if not document.segments:
        translated = " that is not translated yet" if ending in FOR_TRANSLATORS else ""
        raise UserError(f"{name}: has no text{translated}; there is nothing to translate")
    return document


def check_format(name: str) -> str:
    """Return the end of a file's name, in lower case.

    Raises:
        UserError: if it is that of no supported format.
    """
    ending = PurePath(name).suffix.lower()
    if ending not in FORMATS:
        endings = ", ".join(FORMATS)
        hint = suggest(ending, FORMATS)
        raise UserError(f"{name}: {hint}the file extension must be one of {endings}")
    return ending
