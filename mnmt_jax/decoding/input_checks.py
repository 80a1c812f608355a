"""Checks of lines and language codes before translation and scoring."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mnmt_jax.data.text_reader import MAX_LINE_BYTES
from mnmt_jax.errors import UserError, join_names, pluralize, warn_caller
from mnmt_jax.vocabulary.language_codes import match_code


def match_line_codes(
    codes: str | Sequence[str], flag: str, languages: Sequence[str]
) -> Iterator[str]:
    """Return an iterator of the model's language code of each line, after checking all codes.

    Args:
        codes: code of all lines, or one per line, in any form.
        flag: name of the argument, for errors.
        languages: languages of the model.

    Raises:
        UserError: if one is not a code, or the model does not have its language.
    """
    if isinstance(codes, bytes) or not isinstance(codes, str | Sequence):
        raise UserError(f"{flag}={codes!r}: must be a language code, or a list with one per line")
    matched: dict[str, str] = {}
    for number, code in enumerate([codes] if isinstance(codes, str) else codes, start=1):
        if not isinstance(code, str):
            raise UserError(f"{flag} of line {number} is {code!r}; give a language code")
        if code not in matched:
            matched[code] = match_code(code, languages, f"--{flag}")
    return (
        itertools.repeat(matched[codes])
        if isinstance(codes, str)
        else map(matched.__getitem__, codes)
    )


def check_is_list(texts: Any, name: str) -> None:
    """Check that an argument is a list of texts.

    Raises:
        UserError: if it is a single text, or not iterable.
    """
    if isinstance(texts, str):
        raise UserError(f"{name}: must be a list of lines, not one text; write [text]")
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        raise UserError(f"{name}: must be a list of texts, not {type(texts).__name__}")


def check_text(text: Any, name: str) -> None:
    """Check that a value is text that UTF-8 can encode, with at most `MAX_LINE_BYTES`.

    Raises:
        UserError: otherwise.
    """
    if not isinstance(text, str):
        remedy = "decode it" if isinstance(text, bytes) else "leave it out, or give ''"
        raise UserError(f"{name} must be a text, not {type(text).__name__}; {remedy}")
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise UserError(
            f"{name} has half a character (a surrogate, \\u{ord(text[error.start]):x}) at "
            f"{error.start + 1}; decode it anew from its bytes"
        ) from None
    if size > MAX_LINE_BYTES:
        raise UserError(f"{name} has {size} bytes, more than {MAX_LINE_BYTES}; split the line")


def warn_same_language(
    source: str | Sequence[str], target: str | Sequence[str], languages: Sequence[str]
) -> None:
    """Warn of lines whose source and target are the same language.

    Args:
        source: source code of all lines, or one per line, all checked by `match_line_codes`.
        target: target code of all lines, or one per line.
        languages: languages of the model.
    """
    sources = match_line_codes(source, "source", languages)
    targets = match_line_codes(target, "target", languages)
    if isinstance(source, str) and isinstance(target, str):
        if (code := next(sources)) == next(targets):
            text = f"source and target are both '{code}'; name the language of the translations"
            warn_caller(text)
        return
    same = [n for n, (a, b) in enumerate(zip(sources, targets, strict=False), 1) if a == b]
    if same:
        numbers = join_names([str(number) for number in same])
        text = (
            f"{pluralize(len(same), 'line')} whose source and target are one language ({numbers})"
        )
        warn_caller(text)
