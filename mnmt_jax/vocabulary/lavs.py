"""Language-aware vocabulary sharing (LAVS): copies of pieces that languages share.

A rule flags pieces for languages by how often the training text of each language contains them.
`flag_by_threshold` is the rule of the authors' code, with the threshold that `threshold_for`
chooses for a number of copies; `flag_by_sharing` is the published rule. Flagged pieces get copies
(`mnmt_jax.vocabulary.language_specific_pieces`). The last functions write text as the authors do,
with a copy as `piece_xx`. Nothing here depends on them; they serve to compare a split with the
authors'.

Source: Chen et al. 2023, On the Off-Target Problem of Zero-Shot Multilingual Neural Machine
Translation; PKUnlp-icler/Off-Target-MNMT 681ed01, LAVS/LAVS.py.
"""

from __future__ import annotations

import collections
import itertools
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_specific_pieces import LanguagePiece
from mnmt_jax.vocabulary.vocabulary import Vocabulary

PieceCounts = Mapping[str, Mapping[str, int]]
"""Piece counts by language; pieces with count zero may be missing."""
PiecesByLanguage = Mapping[str, Collection[str]]
"""Pieces by language."""

_ENCODE_LINES = 1024


def count_pieces(vocabulary: Vocabulary, text: Mapping[str, Iterable[str]]) -> PieceCounts:
    """Count the pieces of each language's text, without unknown characters.

    Args:
        vocabulary: without copies or additions.
        text: lines by language.

    Returns:
        Counts by the vocabulary's codes in its order, which determines the order of copies.

    Raises:
        UserError: if the vocabulary has copies or additions, or no tag for a language.
    """
    if vocabulary.additions:
        raise UserError(
            "the vocabulary has languages with pieces of their own, which share none; give the one "
            "that they were added to"
        )
    if vocabulary.copies:
        raise UserError("the vocabulary has copies of pieces; give the one that it was made of")
    first_piece_id, names = vocabulary.unk_id + 1, vocabulary.named_pieces
    counts = {}
    for language in sorted(text, key=vocabulary.language_index):
        id_counts: collections.Counter[int] = collections.Counter()
        for block in _blocks(text[language]):
            id_counts.update(itertools.chain.from_iterable(vocabulary.encode_lines(block)))
        counts[vocabulary.vocabulary_code_of(language)] = {
            names[i - first_piece_id]: count
            for i, count in id_counts.items()
            if i >= first_piece_id
        }
    return counts


def candidate_pieces(vocabulary: Vocabulary) -> tuple[str, ...]:
    """Return the pieces that may have copies: all but those of byte fallback."""
    first_piece_id, bytes_of = vocabulary.unk_id + 1, vocabulary.byte_values
    pieces = enumerate(vocabulary.named_pieces, start=first_piece_id)
    return tuple(piece for i, piece in pieces if i not in bytes_of)


def flag_by_threshold(
    counts: PieceCounts, pieces: Iterable[str], threshold: int
) -> dict[str, tuple[str, ...]]:
    """Flag a piece for every language that has it more often than a threshold, if at least two do.

    This is the rule of the code, whose function's default threshold is 50 and whose script's is 20.
    The code then keeps a flagged piece shared if it fails `is_splittable`.

    Args:
        counts: counts in the training text.
        pieces: candidate pieces.
        threshold: count that a piece must exceed.

    Returns:
        Pieces by language, in the order of `pieces`.
    """
    frequent = {
        language: {piece for piece, count in piece_counts.items() if count > threshold}
        for language, piece_counts in counts.items()
    }
    languages = collections.Counter(itertools.chain.from_iterable(frequent.values()))
    shared = [piece for piece in pieces if languages[piece] > 1]
    return {
        language: tuple(piece for piece in shared if piece in language_pieces)
        for language, language_pieces in frequent.items()
    }


def threshold_for(counts: PieceCounts, pieces: Iterable[str], max_copies: int) -> int:
    """Return the smallest threshold of `flag_by_threshold` that makes at most some copies.

    The authors set the threshold by hand; Qu et al. state the number of copies instead.

    Args:
        counts: counts in the training text.
        pieces: candidate pieces.
        max_copies: maximum number of copies of pieces that are `is_splittable`.

    Returns:
        The threshold, at least 1.
    """
    values: list[int] = []  # thresholds below which a copy is made
    for piece in filter(is_splittable, pieces):
        by_language = sorted(
            (counts_of[piece] for counts_of in counts.values() if piece in counts_of), reverse=True
        )
        if len(by_language) > 1:
            # The first language gets a copy only if the second does.
            values += (by_language[1], *by_language[1:])
    values.sort(reverse=True)
    return max(values[max_copies], 1) if len(values) > max_copies else 1


def flag_by_sharing(
    counts: PieceCounts, pieces: Sequence[str], number: int
) -> dict[str, tuple[str, ...]]:
    """Flag the pieces that pairs of languages share most.

    The sharing count of a piece and an unordered pair of languages is the smaller of the two
    languages' counts. The `number` items (piece, pair of languages) with the highest counts are
    selected. Each flags its piece for both languages. Several items may flag the same piece for a
    language, so there are at most 2 `number` copies. Ties are resolved by the order of pieces, then
    by the order of languages. No piece is exempt because of its characters; that exemption exists
    only in the code.

    Uncertain: this is the rule of Chen et al. 2023 from memory, not checked with its text. The
    smaller count, the selection over all pairs together and the ties may be different there. The
    authors' code has another rule (`flag_by_threshold`), which MITRE's paper used as well.

    Args:
        counts: counts in the training text.
        pieces: candidate pieces.
        number: number of items (piece, pair of languages) to select; fewer if fewer are shared.

    Returns:
        Pieces by language, in the order of `pieces`.
    """
    table = np.array(
        [
            [language_counts.get(piece, 0) for piece in pieces]
            for language_counts in counts.values()
        ],
        np.int64,
    )
    # Rows: negative sharing count, and the tie breakers piece, first language, second language.
    best, min_shared = np.zeros((4, 0), np.int64), 1
    for first, second in itertools.combinations(range(len(table)), 2):
        shared = np.minimum(table[first], table[second])
        candidates = np.flatnonzero(shared >= min_shared)
        pair = np.broadcast_to([[first], [second]], (2, candidates.size))
        best = np.concatenate([best, [-shared[candidates], candidates, *pair]], axis=1)
        if best.shape[1] > number:
            best = best[:, np.lexsort(best[::-1])[:number]]
            min_shared = int(-best[0, -1])
    flagged = np.zeros(table.shape, bool)
    flagged[best[2], best[1]] = flagged[best[3], best[1]] = True
    return {
        language: tuple(itertools.compress(pieces, row.tolist()))
        for language, row in zip(counts, flagged, strict=True)
    }


def is_splittable(piece: str) -> bool:
    """Return whether the authors' code splits a flagged piece.

    It does not split a piece of one character, nor one whose second character (the first after the
    space mark) is Unicode punctuation, including `_`, or a digit by `str.isdigit`.
    """
    return len(piece) > 1 and not (
        unicodedata.category(piece[1]).startswith("P") or piece[1].isdigit()
    )


def splittable_pieces(flagged: PiecesByLanguage) -> dict[str, tuple[str, ...]]:
    """Return the flagged pieces that are splittable by `is_splittable`."""
    return {
        code: tuple(piece for piece in pieces if is_splittable(piece))
        for code, pieces in flagged.items()
    }


def count_used_pieces(counts: PieceCounts, split: PiecesByLanguage) -> int:
    """Return the number of pieces and copies that the counted text has after the split."""
    split_sets = {language: set(pieces) for language, pieces in split.items()}
    used = {
        (piece, language if piece in split_sets[language] else None)
        for language, pieces in counts.items()
        for piece in pieces
    }
    return len(used)


def language_copies(flagged: PiecesByLanguage) -> tuple[LanguagePiece, ...]:
    """List the copies of flagged pieces, language by language."""
    return tuple((piece, language) for language, pieces in flagged.items() for piece in pieces)


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield lines in blocks of at most `_ENCODE_LINES`."""
    remaining = iter(lines)
    while block := list(itertools.islice(remaining, _ENCODE_LINES)):
        yield block
