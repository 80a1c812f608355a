"""Validation of the lines of PO files; polib truncates texts that lack a quote."""

from __future__ import annotations

import re
from typing import IO

from mnmt_jax.data.encodings import declared_codec
from mnmt_jax.data.text_reader import MAX_LINE_BYTES
from mnmt_jax.errors import UserError

MAX_TEXT_LINES = 20_000
"""Maximum lines of a text or of an entry's comments; polib takes quadratic time in them."""

_KEYWORD = re.compile(r"msgstr\[\d+\s*\]\s*|(msgctxt|msgid_plural|msgid|msgstr)(\s+|$)")
_QUOTED = re.compile(r'"[^"\\]*(\\.[^"\\]*)*"')
_TEXT_START = re.compile(r"\s*(#~\s*)?(msgctxt|msgid|msgstr)")  # or an obsolete one
_DEFAULT_ENCODING = "utf-8"
_BYTE_ORDER_MARK = "\ufeff"  # polib removes it too


def check_po_lines(path: str, encoding: str) -> str:
    """Check that each line is blank, a comment, or a quoted text after an optional keyword.

    Obsolete and previous entries (`#~ msgid "..."`, `#| msgid "..."`) are comments.

    Args:
        path: path of the file.
        encoding: encoding that the file declares.

    Returns:
        The encoding that was used: UTF-8 if the declared one is not supported.

    Raises:
        UserError: if a line is malformed or longer than `MAX_LINE_BYTES` characters, or a text or
            comment has more than `MAX_TEXT_LINES` lines.
        OSError: if the file cannot be opened.
        UnicodeError: if the file cannot be decoded.
    """
    encoding = declared_codec(encoding) or _DEFAULT_ENCODING
    with open(path, encoding=encoding) as file:
        check_po_text(file, path)
    return encoding


def check_po_text(file: IO[str], name: str) -> None:
    """Check the lines of an open file, as `check_po_lines`."""
    lines_of_text = 0  # lines since the last keyword
    lines = iter(lambda: file.readline(MAX_LINE_BYTES + 1), "")
    for number, line in enumerate(lines, start=1):
        lines_of_text = 0 if _TEXT_START.match(line) else lines_of_text + bool(line.strip())
        if len(line) > MAX_LINE_BYTES:
            flaw = f"more than {MAX_LINE_BYTES} characters"
        elif lines_of_text > MAX_TEXT_LINES:
            flaw = f"a text or comment of more than {MAX_TEXT_LINES} lines"
        else:
            flaw = po_line_error(line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line)
        if flaw:
            raise UserError(f"{name}:{number}: {flaw}; repair the file, or export it again")


def po_line_error(line: str) -> str:
    """Return the error in a line; empty if there is none.

    Args:
        line: the line, with or without its line end.
    """
    line = line.strip()
    if not line or line.startswith("#"):
        return ""
    keyword = _KEYWORD.match(line)
    text = line[keyword.end() :] if keyword else line
    if not text.startswith('"'):
        if keyword:
            return f"no opening quote after {keyword[0].strip()}"
        return "neither a comment nor a keyword such as msgid, a space and a quoted text"
    quoted = _QUOTED.match(text)
    if quoted is None:
        return "no closing quote"
    flaw = 'text after the closing quote; write a quote in a text as \\"'
    return "" if quoted[0] == text else flaw
