"""Checks of a vocabulary's language codes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mnmt_jax.errors import UserError, join_names
from mnmt_jax.files.path_checks import check_name
from mnmt_jax.vocabulary.language_codes import check_safe_codes


def check_languages(languages: Iterable[str]) -> tuple[str, ...]:
    """Check a list of language codes.

    Args:
        languages: codes in the order of their tags.

    Returns:
        The codes.

    Raises:
        UserError: if a code cannot be part of a file name, or occurs twice.
    """
    codes = tuple(languages)
    counts = Counter(codes)
    check_safe_codes(list(counts), "languages of the vocabulary")
    for code in counts:
        check_name(code, "language")
    if repeated := sorted(repr(code) for code, count in counts.items() if count > 1):
        raise UserError(
            f"languages {join_names(repeated)} are listed twice; list each language once"
        )
    return codes
