"""Cross-lingual sentence retrieval by the cosine similarity of states, layer by layer.

Source: none of the five papers. It is the similarity search by which mRASP2's paper (Pan et al.
2021) evaluates its encoder, here at every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mnmt_jax.analysis.layer_states import StateLocations, location_fields, source_side_locations
from mnmt_jax.analysis.parallel_sentences import ParallelSentences, group_by_languages
from mnmt_jax.analysis.similarity import Matrix, PooledStates, normalize_rows


def retrieval_accuracy(first: Matrix, second: Matrix) -> tuple[float, float]:
    """Return the share of rows whose nearest row in the other matrix has the same number.

    Args:
        first: states of sentences.
        second: states of the same sentences in another language. Ties go to the first row.

    Returns:
        Accuracy of retrieving from `second` by `first`, and from `first` by `second`.
    """
    cosines = normalize_rows(first) @ normalize_rows(second).T
    row_numbers = np.arange(len(cosines))
    forward_hits = cosines.argmax(axis=1) == row_numbers
    backward_hits = cosines.argmax(axis=0) == row_numbers
    return float(forward_hits.mean()), float(backward_hits.mean())


def language_retrieval(
    pooled: PooledStates, pairs: Sequence[ParallelSentences], locations: StateLocations
) -> list[dict[str, Any]]:
    """Compute the retrieval accuracy between every two languages at each location.

    Args:
        pooled: from `sentence_states`.
        pairs: from `align_by_reference`.
        locations: locations of `pooled`.

    Returns:
        A JSON-ready dict per location of `SOURCE_SIDE_ROLES`: `pairs`, with `accuracy` of each
        `from` language `to` another, the mean over target languages; and `accuracy`, the mean over
        `pairs`.
    """
    results = []
    for index, location in source_side_locations(locations):
        pair_results = []
        for names, items in group_by_languages(pairs):
            accuracies = np.mean(
                [retrieval_accuracy(*pair.states(pooled, index)) for pair in items], axis=0
            )
            for (language, other), pair_accuracy in zip(
                (names, names[::-1]), accuracies.tolist(), strict=True
            ):
                pair_results.append({"from": language, "to": other, "accuracy": pair_accuracy})
        accuracy = float(np.mean([pair["accuracy"] for pair in pair_results]))
        results.append({**location_fields(location), "accuracy": accuracy, "pairs": pair_results})
    return results


def chance_accuracy(pairs: Sequence[ParallelSentences]) -> float:
    """Return the accuracy of guessing, the mean over all comparisons."""
    return float(np.mean([1 / len(pair.first_rows) for pair in pairs]))
