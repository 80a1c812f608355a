"""Language-specific copies of pieces: additional ids of a piece, each for one language's text.

A copy stands for the same characters as its piece. The text itself carries no suffix, so decoding
removes none, and text that looks like a suffix is unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from mnmt_jax.errors import UserError, join_names

LanguagePiece = tuple[str, str]
"""A piece, and the language whose text uses this copy of it."""


def language_piece_name(piece: str, language: str) -> str:
    """Return the readable name of a copy, the token of LAVS's authors: `piece_xx`."""
    return f"{piece}_{language}"


def check_language_pieces(
    copies: Iterable[Sequence[str]], languages: Sequence[str]
) -> tuple[LanguagePiece, ...]:
    """Return the copies as pairs.

    Raises:
        UserError: if a language is not among `languages` or has two copies of a piece.
    """
    pairs: dict[LanguagePiece, None] = {}
    known = set(languages)
    for piece, language in copies:
        if language not in known:
            raise UserError(
                f"a copy of piece '{piece}' is for language '{language}', which has no tag; it "
                f"must be one of {join_names(languages)}"
            )
        if (piece, language) in pairs:
            raise UserError(f"piece '{piece}' has two copies for '{language}'; list each once")
        pairs[piece, language] = None
    return tuple(pairs)


def refuse_byte_copies(copies: Iterable[Sequence[str]], byte_pieces: Collection[str]) -> None:
    """Check that no copy is of a byte piece: languages share the bytes of unknown characters.

    Raises:
        UserError: if one is.
    """
    if copied := [piece for piece, _ in copies if piece in byte_pieces]:
        raise UserError(f"'{copied[0]}' has a copy but is a piece of byte fallback; leave it out")


def copy_ids_by_language(
    copies: Sequence[LanguagePiece], pieces: Sequence[int], languages: Sequence[str], first_id: int
) -> list[dict[int, int]]:
    """Return the ids of the copies by SentencePiece id, one mapping for each language.

    Args:
        copies: the copies, in the order of their ids.
        pieces: SentencePiece id of each copy.
        languages: languages of the result.
        first_id: id of the first copy.
    """
    ids: dict[str, dict[int, int]] = {language: {} for language in languages}
    for number, ((_, language), piece) in enumerate(zip(copies, pieces, strict=True)):
        ids[language][piece] = first_id + number
    return list(ids.values())
