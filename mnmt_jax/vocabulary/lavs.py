"""Language-aware vocabulary sharing (LAVS): languages that share a piece get copies of it.

A rule flags pieces for languages by how often the training text of each language has them:
`flag_by_threshold` is the authors' code's, `flag_by_sharing` the published one. What it flags gets
copies (`mnmt_jax.vocabulary.language_specific_pieces`). The last functions write text as the authors do, with a
copy as `piece_xx`; nothing here needs them, but they compare a split with one of theirs.

Source: Chen et al. 2023, On the Off-Target Problem of Zero-Shot Multilingual Neural Machine
Translation; PKUnlp-icler/Off-Target-MNMT 681ed01, LAVS/LAVS.py.
"""

from __future__ import annotations

import collections
import itertools
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_specific_pieces import LanguagePiece, language_piece_name
from mnmt_jax.vocabulary.vocabulary import Vocabulary

PieceCounts = Mapping[str, Mapping[str, int]]
"""How often each language's text has each piece; pieces that it does not have may be left out."""
PiecesByLanguage = Mapping[str, Collection[str]]
"""Pieces by language."""

_ENCODE_LINES = 1024
_TOKEN = re.compile(r"\S+")


def count_pieces(vocabulary: Vocabulary, text: Mapping[str, Iterable[str]]) -> PieceCounts:
    """Counts the pieces of each language's text; unknown characters are no pieces.

    Args:
        vocabulary: without copies or additions.
        text: lines by language.

    Returns:
        Counts by the vocabulary's codes in its order, which decides the order of copies.

    Raises:
        UserError: if the vocabulary has some, or no tag for a language.
    """
    if vocabulary.additions:
        raise UserError(
            "the vocabulary has languages with pieces of their own, which share none; give the one "
            "that they were added to"
        )
    if vocabulary.copies:
        raise UserError("the vocabulary has copies of pieces; give the one that it was made of")
    first, names = vocabulary.unk_id + 1, vocabulary.named_pieces
    counts = {}
    for language in sorted(text, key=vocabulary.language_index):
        found: collections.Counter[int] = collections.Counter()
        for block in _blocks(text[language]):
            found.update(itertools.chain.from_iterable(vocabulary.encode_lines(block)))
        counts[vocabulary.vocabulary_code_of(language)] = {
            names[i - first]: n for i, n in found.items() if i >= first
        }
    return counts


def flag_by_threshold(
    counts: PieceCounts, pieces: Iterable[str], threshold: int
) -> dict[str, tuple[str, ...]]:
    """Flags a piece for every language that has it more often than a threshold, if two have.

    The code's rule; its function's threshold is 50 by default, its script's is 20. It then leaves a
    piece shared that fails `is_splittable`.

    Args:
        counts: of the training text.
        pieces: that may be flagged.
        threshold: a piece must occur more often.

    Returns:
        Pieces by language, in the order given.
    """
    often = {
        language: {piece for piece, count in found.items() if count > threshold}
        for language, found in counts.items()
    }
    languages = collections.Counter(itertools.chain.from_iterable(often.values()))
    several = [piece for piece in pieces if languages[piece] > 1]
    return {language: tuple(p for p in several if p in mine) for language, mine in often.items()}


def flag_by_sharing(
    counts: PieceCounts, pieces: Sequence[str], number: int
) -> dict[str, tuple[str, ...]]:
    """Flags the pieces that pairs of languages share most.

    The published rule as we recollect it, not read again from the paper: a pair of languages shares
    a piece as often as the one of them that has it less often. Of all (piece, pair of languages),
    the order of a pair being indifferent, the `number` that are shared most are taken, and each
    flags its piece for both of its languages; several may flag the same piece for a language, so
    there are at most 2 `number` copies. Of equals the earlier piece is taken, then the earlier pair
    of languages. No piece is exempt for its characters: that is the code's alone.

    Args:
        counts: of the training text.
        pieces: that may be flagged.
        number: of (piece, pair of languages) to take; fewer if fewer are shared at all.

    Returns:
        Pieces by language, in the order given.
    """
    table = np.array([[c.get(p, 0) for p in pieces] for c in counts.values()], np.int64)
    # Rows: frequency, negative, and what decides between equals: piece, language, language.
    best, least = np.zeros((4, 0), np.int64), 1
    for one, other in itertools.combinations(range(len(table)), 2):
        shared = np.minimum(table[one], table[other])
        found = np.flatnonzero(shared >= least)
        pair = np.broadcast_to([[one], [other]], (2, found.size))
        best = np.concatenate([best, [-shared[found], found, *pair]], axis=1)
        if best.shape[1] > number:
            best = best[:, np.lexsort(best[::-1])[:number]]
            least = int(-best[0, -1])
    flagged = np.zeros(table.shape, bool)
    flagged[best[2], best[1]] = flagged[best[3], best[1]] = True
    return {
        language: tuple(itertools.compress(pieces, row.tolist()))
        for language, row in zip(counts, flagged, strict=True)
    }


def is_splittable(piece: str) -> bool:
    """Returns whether the code splits a piece that it has flagged.

    A piece of one character is not split, nor one whose second character (the first after the mark
    of a space) is Unicode punctuation, `_` included, or a digit by `str.isdigit`.
    """
    return len(piece) > 1 and not (
        unicodedata.category(piece[1]).startswith("P") or piece[1].isdigit()
    )


def splittable_pieces(flagged: PiecesByLanguage) -> dict[str, tuple[str, ...]]:
    """Returns the flagged pieces that `is_splittable`."""
    return {code: tuple(p for p in pieces if is_splittable(p)) for code, pieces in flagged.items()}


def count_used_pieces(counts: PieceCounts, split: PiecesByLanguage) -> int:
    """Returns how many pieces and copies the text that was counted has once pieces are split."""
    own = {language: set(pieces) for language, pieces in split.items()}
    found = {
        (piece, language if piece in own[language] else None)
        for language, pieces in counts.items()
        for piece in pieces
    }
    return len(found)


def language_copies(flagged: PiecesByLanguage) -> tuple[LanguagePiece, ...]:
    """Lists the copies of flagged pieces, language by language."""
    return tuple((piece, language) for language, pieces in flagged.items() for piece in pieces)


def count_tokens(lines: Iterable[str]) -> collections.Counter[str]:
    """Counts the tokens of segmented text, in the order in which they first appear."""
    return collections.Counter(token for line in lines for token in _TOKEN.findall(line))


def mark_copies(lines: Iterable[str], language: str, split: Collection[str]) -> list[str]:
    """Writes segmented text of a language as the authors do: `piece_xx` for its copies.

    Args:
        lines: tokens with spaces between them, which stay as they are.
        language: its code.
        split: pieces that have a copy for the language.
    """
    own = {piece: language_piece_name(piece, language) for piece in split}
    return [_TOKEN.sub(lambda token: own.get(token[0], token[0]), line) for line in lines]


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yields lines, many at a time."""
    remaining = iter(lines)
    while block := list(itertools.islice(remaining, _ENCODE_LINES)):
        yield block
