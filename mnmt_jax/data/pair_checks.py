"""Checks of sentence pairs that are kept but counted and reported."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W_]")


def has_words_on_one_side(source: str, target: str) -> bool:
    """Return whether exactly one of the sentences has a letter or digit.

    Published test sets contain such pairs (a sentence and a full stop). They do not shift other
    pairs, but are useless for training and evaluation.
    """
    return (_WORD.search(source) is None) != (_WORD.search(target) is None)
