"""Arrays of terms from plain lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnmt_jax.decoding.search_terms import SearchTerms


def search_terms(rows: Sequence[tuple[Sequence, Sequence]]) -> SearchTerms:
    """Return the terms of sentences: required ones (alternatives, count), and forbidden ones."""
    terms = max(len(required) for required, _ in rows) or 1
    every = [a for required, _ in rows for a, _ in required] or [[]]
    alternatives = max(map(len, every)) or 1
    sequences = [s for a in every for s in a] + [s for _, forbidden in rows for s in forbidden]
    length = max(map(len, sequences), default=1)
    width = terms * alternatives + max(len(forbidden) for _, forbidden in rows)
    tokens = np.zeros((len(rows), width, length), np.int32)
    counts = np.zeros((len(rows), terms), np.int32)
    for row, (required, forbidden) in enumerate(rows):
        placed = [
            (term * alternatives + i, one)
            for term, (options, _) in enumerate(required)
            for i, one in enumerate(options)
        ]
        placed += [(terms * alternatives + i, one) for i, one in enumerate(forbidden)]
        for index, one in placed:
            tokens[row, index, : len(one)] = one
        counts[row, : len(required)] = [count for _, count in required]
    return SearchTerms(tokens, counts, alternatives)
