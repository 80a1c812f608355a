"""Cosine similarity of sentence states, layer by layer: between languages and between roles.

Between languages: the similarity of one sentence in two languages, beside that of different
sentences. Between roles: source, registers and target of one translation (registers paper,
Figure 6, section 6.2).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from mnmt_jax.analysis.layer_states import StateLocations, location_fields, source_side_locations
from mnmt_jax.analysis.parallel_sentences import ParallelSentences, group_by_languages
from mnmt_jax.analysis.teacher_forcing import ForcedSentences

PooledStates = Mapping[ForcedSentences, Float[np.ndarray, "sentences places embed"]]
Matrix = Float[np.ndarray, "sentences embed"]


def normalize_rows(states: Matrix) -> Matrix:
    """Return the rows scaled to length 1; rows of zeros stay unchanged."""
    lengths = np.linalg.norm(states, axis=1, keepdims=True)
    return states / np.where(lengths, lengths, 1)


def mean_cosines(first: Matrix, second: Matrix) -> tuple[float, float]:
    """Return the mean cosine of rows with the same number, and that of all other pairs of rows.

    Args:
        first: two or more states.
        second: as many states.
    """
    first_unit, second_unit = normalize_rows(first), normalize_rows(second)
    same_sum = float(np.einsum("nm,nm->", first_unit, second_unit))
    total = float(first_unit.sum(axis=0) @ second_unit.sum(axis=0))
    count = len(first_unit)
    return same_sum / count, (total - same_sum) / (count * (count - 1))


def language_similarity(
    pooled: PooledStates, pairs: Sequence[ParallelSentences], locations: StateLocations
) -> list[Any]:
    """Compare languages at each location.

    Args:
        pooled: from `sentence_states`.
        pairs: from `align_by_reference`.
        locations: locations of `pooled`.

    Returns:
        A JSON-ready dict per location of `SOURCE_SIDE_ROLES`: `pairs` of languages, each with the
        mean over target languages of `parallel` and `others`, and `sentences`, the minimum over
        target languages; and the means of `parallel` and `others` over pairs.
    """
    results = []
    for index, location in source_side_locations(locations):
        pair_results = []
        for names, items in group_by_languages(pairs):
            cosines = np.array([mean_cosines(*pair.states(pooled, index)) for pair in items])
            parallel, others = cosines.mean(axis=0).tolist()
            pair_results.append(
                {
                    "languages": list(names),
                    "parallel": parallel,
                    "others": others,
                    "sentences": min(len(pair.first_rows) for pair in items),
                }
            )
        means = {
            k: float(np.mean([result[k] for result in pair_results]))
            for k in ("parallel", "others")
        }
        results.append({**location_fields(location), **means, "pairs": pair_results})
    return results


def role_similarity(pooled: PooledStates, locations: StateLocations) -> list[dict[str, Any]]:
    """Compare the roles of one translation at the layers that two of them pass.

    Args:
        pooled: from `sentence_states`.
        locations: locations of `pooled`.

    Returns:
        A JSON-ready dict per layer and two roles: the mean `cosine` over sentences of all
        directions.
    """
    results = []
    for (first_index, first), (second_index, second) in _same_layer_pairs(locations):
        cosines = np.concatenate(
            [
                (
                    normalize_rows(states[:, first_index]) * normalize_rows(states[:, second_index])
                ).sum(axis=1)
                for states in (
                    np.asarray(sentence_means, np.float64) for sentence_means in pooled.values()
                )
            ]
        )
        roles = [first.role, second.role]
        results.append({"layer": first.layer, "roles": roles, "cosine": float(cosines.mean())})
    return results


def _same_layer_pairs(locations: StateLocations) -> Iterator[tuple[Any, Any]]:
    in_stage = [(index, location) for index, location in enumerate(locations) if not location.ended]
    for first, second in itertools.combinations(in_stage, 2):
        if first[1].layer == second[1].layer:
            yield first, second
