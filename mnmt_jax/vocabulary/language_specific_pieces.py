"""Copies of pieces: further ids of a piece, each for text of one language alone.

A copy stands for the same characters as its piece. No suffix is written into text, so none has to
be taken out again, and text that looks like one stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mnmt_jax.errors import UserError, join_names

LanguagePiece = tuple[str, str]
"""A piece, and the language whose text has this copy of it."""


def language_piece_name(piece: str, language: str) -> str:
    """Returns a copy's readable name, which is the token of LAVS's authors: `piece_xx`."""
    return f"{piece}_{language}"


def check_language_pieces(
    copies: Iterable[Sequence[str]], languages: Sequence[str]
) -> tuple[LanguagePiece, ...]:
    """Returns the copies as pairs.

    Raises:
        UserError: if a language is not among `languages` or has two copies of a piece.
    """
    found: dict[LanguagePiece, None] = {}
    known = set(languages)
    for piece, language in copies:
        if language not in known:
            raise UserError(
                f"a copy of piece '{piece}' is for language '{language}', which has no tag; it "
                f"must be one of {join_names(languages)}"
            )
        if (piece, language) in found:
            raise UserError(f"piece '{piece}' has two copies for '{language}'; list each once")
        found[piece, language] = None
    return tuple(found)
