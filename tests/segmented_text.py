"""Segmented text in the form of LAVS's authors."""

from __future__ import annotations

import collections
import re
from collections.abc import Collection, Iterable

from mnmt_jax.vocabulary.language_specific_pieces import language_piece_name

_TOKEN = re.compile(r"\S+")


def count_tokens(lines: Iterable[str]) -> collections.Counter[str]:
    """Count the tokens of segmented text, in the order of their first occurrence."""
    return collections.Counter(token for line in lines for token in _TOKEN.findall(line))


def mark_copies(lines: Iterable[str], language: str, split: Collection[str]) -> list[str]:
    """Write segmented text of a language as the authors do, with `piece_xx` for its copies.

    Args:
        lines: tokens separated by spaces; the spaces do not change.
        language: language code.
        split: pieces that have a copy for the language.
    """
    copy_names = {piece: language_piece_name(piece, language) for piece in split}
    return [_TOKEN.sub(lambda token: copy_names.get(token[0], token[0]), line) for line in lines]
