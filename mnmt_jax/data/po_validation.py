"""The form of a PO file's lines, which polib does not check: it cuts texts that lack a quote."""

from __future__ import annotations

import re

from mnmt_jax.data.text_reader import MAX_LINE_BYTES
from mnmt_jax.errors import UserError

MAX_TEXT_LINES = 20_000
"""Most lines of one text, or of an entry's comments; polib needs time for their square."""

_KEYWORD = re.compile(r"msgstr\[\d+\s*\]\s*|(msgctxt|msgid_plural|msgid|msgstr)(\s+|$)")
_QUOTED = re.compile(r'"[^"\\]*(\\.[^"\\]*)*"')
_BEGINS = re.compile(r"\s*(#~\s*)?(msgctxt|msgid|msgstr)")  # a text, also an obsolete one
_STANDARD = "utf-8"
_MARK = "\ufeff"  # of the byte order, which polib removes too


def check_po_lines(path: str, encoding: str) -> str:
    """Checks that each line is blank, a comment, or a text in quotes, perhaps behind a keyword.

    What is obsolete or was before (`#~ msgid "..."`, `#| msgid "..."`) is a comment.

    Args:
        path: of a file.
        encoding: that it declares.

    Returns:
        The encoding that it was read with: UTF-8 if the declared one is none of texts.

    Raises:
        UserError: if a line is none of these, is longer than `MAX_LINE_BYTES` characters, or is one
            of more than `MAX_TEXT_LINES` of a text.
        OSError: if the file cannot be opened.
        UnicodeError: if it is not of the encoding.
    """
    try:
        file = open(path, encoding=encoding)
    except LookupError:
        encoding = _STANDARD
        file = open(path, encoding=encoding)
    with file:
        run = 0  # lines since the last keyword
        lines = iter(lambda: file.readline(MAX_LINE_BYTES + 1), "")
        for number, line in enumerate(lines, start=1):
            run = 0 if _BEGINS.match(line) else run + bool(line.strip())
            if len(line) > MAX_LINE_BYTES:
                flaw = f"more than {MAX_LINE_BYTES} characters"
            elif run > MAX_TEXT_LINES:
                flaw = f"a text or comment of more than {MAX_TEXT_LINES} lines"
            else:
                flaw = po_line_error(line.removeprefix(_MARK) if number == 1 else line)
            if flaw:
                raise UserError(f"{path}:{number}: {flaw}; mend the file, or export it again")
    return encoding


def po_line_error(line: str) -> str:
    """Returns what is wrong with a line; empty if nothing is.

    Args:
        line: with or without its end.
    """
    line = line.strip()
    if not line or line.startswith("#"):
        return ""
    keyword = _KEYWORD.match(line)
    text = line[keyword.end() :] if keyword else line
    if not text.startswith('"'):
        if keyword:
            return f"no opening quote behind {keyword[0].strip()}"
        return "neither a comment, nor a keyword such as msgid, a blank and a text in quotes"
    quoted = _QUOTED.match(text)
    if quoted is None:
        return "no closing quote"
    return "" if quoted[0] == text else r"text behind the closing quote; a quote in a text is \""
