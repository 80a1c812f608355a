"""What is checked of lines and languages before a model reads them."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mnmt_jax.data.text_lines import MAX_LINE_BYTES
from mnmt_jax.errors import UserError
from mnmt_jax.languages import LANGUAGES


def codes_of_lines(
    codes: str | Sequence[str], flag: str, languages: Sequence[str]
) -> Iterator[str]:
    """Returns the code of each line after checking them all.

    Args:
        codes: of all lines, or one per line.
        flag: what they are given by.
        languages: of the model.

    Raises:
        UserError: if one is no code, or of a language that the model does not have.
    """
    if isinstance(codes, bytes) or not isinstance(codes, str | Sequence):
        raise UserError(f"{flag}={codes!r}: must be a language's code, or a list of one per line")
    for number, code in enumerate([codes] if isinstance(codes, str) else codes, start=1):
        if not isinstance(code, str):
            raise UserError(f"{flag} of line {number} is {code!r}; give a language's code")
        if code not in languages:
            raise UserError(unknown_language(code, flag, languages))
    return itertools.repeat(codes) if isinstance(codes, str) else iter(codes)


def check_list(texts: Any, name: str) -> None:
    """Checks that texts are several.

    Raises:
        UserError: if they are one, or none.
    """
    if isinstance(texts, str):
        raise UserError(f"{name}: one text where a list of lines belongs; write [text]")
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        raise UserError(f"{name}: a list of texts belongs here, not {type(texts).__name__}")


def check_text(text: Any, name: str) -> None:
    """Checks that something is text that has a form in UTF-8, of `MAX_LINE_BYTES` at most.

    Raises:
        UserError: otherwise.
    """
    if not isinstance(text, str):
        remedy = "decode it" if isinstance(text, bytes) else "leave it out, or give ''"
        raise UserError(f"{name} is no text but {type(text).__name__}; {remedy}")
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise UserError(
            f"{name} has half a character (a surrogate, \\u{ord(text[error.start]):x}) at "
            f"{error.start + 1}; decode it anew from its bytes"
        ) from None
    if size > MAX_LINE_BYTES:
        raise UserError(f"{name} has {size} bytes, more than {MAX_LINE_BYTES}; split the line")


def unknown_language(code: str, flag: str, languages: Sequence[str]) -> str:
    """Says that the model lacks a language, and which ones were perhaps meant."""
    aliases = {known: known for known in languages}
    for known in languages:
        if known in LANGUAGES:
            facts = LANGUAGES[known]
            aliases |= {name.lower(): known for name in (facts.name, facts.flores) if name}
    near = difflib.get_close_matches(code.lower(), aliases, n=3, cutoff=0.6)
    meant = list(dict.fromkeys(aliases[alias] for alias in near))
    hint = f"did you mean {' or '.join(meant)}? " if meant else ""
    return f"--{flag}={code}: the model has no such language; {hint}it has {', '.join(languages)}"
