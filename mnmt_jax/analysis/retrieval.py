"""Whether the nearest sentence of another language, by the cosine of states, is the right one.

Source: none of the five papers has it; it is the similarity search that mRASP2's paper (Pan et al.
2021) judges its encoder by, here at every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mnmt_jax.analysis.layer_states import StateLocations, location_fields, source_side_locations
from mnmt_jax.analysis.parallel_sentences import ParallelSentences, group_by_languages
from mnmt_jax.analysis.similarity import Matrix, PooledStates, normalize_rows


def retrieval_accuracy(first: Matrix, second: Matrix) -> tuple[float, float]:
    """Returns the share of rows whose nearest row of the other has the same number, both ways.

    Args:
        first: states of sentences.
        second: of the same sentences in another language. Of equally near ones the first counts.

    Returns:
        Of the first's rows among the second's, and of the second's among the first's.
    """
    cosines = normalize_rows(first) @ normalize_rows(second).T
    numbers = np.arange(len(cosines))
    there, back = cosines.argmax(axis=1) == numbers, cosines.argmax(axis=0) == numbers
    return float(there.mean()), float(back.mean())


def language_retrieval(
    pooled: PooledStates, pairs: Sequence[ParallelSentences], places: StateLocations
) -> list[dict[str, Any]]:
    """Searches sentences of each language among those of each other, at each place.

    Args:
        pooled: from `sentence_states`.
        pairs: from `align_by_reference`.
        places: those of `pooled`.

    Returns:
        Facts of each place of `SOURCE_SIDE_ROLES`: `accuracy` of each `from` one language `to` another,
        the mean over target languages; their mean; `chance_accuracy`, what guessing would reach.
    """
    found = []
    for number, place in source_side_locations(places):
        own = []
        for names, items in group_by_languages(pairs):
            shares = np.mean(
                [retrieval_accuracy(*each.states(pooled, number)) for each in items], axis=0
            )
            for (one, other), share in zip((names, names[::-1]), shares.tolist(), strict=True):
                own.append({"from": one, "to": other, "accuracy": share})
        accuracy = float(np.mean([each["accuracy"] for each in own]))
        found.append({**location_fields(place), "accuracy": accuracy, "pairs": own})
    return found


def chance_accuracy(pairs: Sequence[ParallelSentences]) -> float:
    """Returns the accuracy of guessing, the mean over what is compared."""
    return float(np.mean([1 / len(each.rows) for each in pairs]))
