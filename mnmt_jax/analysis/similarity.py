"""Cosine similarity of sentence states, layer by layer: of languages, and of roles.

Of languages: how near what the model makes of one sentence in two languages is, beside how near
different sentences are. Of roles: source, registers and target of one translation (registers paper,
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
    """Returns states of length 1; those of zeros stay."""
    lengths = np.linalg.norm(states, axis=1, keepdims=True)
    return states / np.where(lengths, lengths, 1)


def mean_cosines(first: Matrix, second: Matrix) -> tuple[float, float]:
    """Returns the mean cosine of rows of the same number, and that of all others.

    Args:
        first: states, two or more.
        second: as many.
    """
    one, other = normalize_rows(first), normalize_rows(second)
    same = float(np.einsum("nm,nm->", one, other))
    every = float(one.sum(axis=0) @ other.sum(axis=0))
    count = len(one)
    return same / count, (every - same) / (count * (count - 1))


def language_similarity(
    pooled: PooledStates, pairs: Sequence[ParallelSentences], places: StateLocations
) -> list[Any]:
    """Compares languages at each place.

    Args:
        pooled: from `sentence_states`.
        pairs: from `align_by_reference`.
        places: those of `pooled`.

    Returns:
        Facts of each place of `SOURCE_SIDE_ROLES`: `pairs` of languages, each with the mean over target
        languages of `parallel` and `others`, and `sentences`, the least that one target language
        has; and the means of both over pairs.
    """
    found = []
    for number, place in source_side_locations(places):
        own = []
        for names, items in group_by_languages(pairs):
            cosines = np.array([mean_cosines(*each.states(pooled, number)) for each in items])
            parallel, others = cosines.mean(axis=0).tolist()
            own.append(
                {
                    "languages": list(names),
                    "parallel": parallel,
                    "others": others,
                    "sentences": min(len(each.rows) for each in items),
                }
            )
        means = {k: float(np.mean([each[k] for each in own])) for k in ("parallel", "others")}
        found.append({**location_fields(place), **means, "pairs": own})
    return found


def role_similarity(pooled: PooledStates, places: StateLocations) -> list[dict[str, Any]]:
    """Compares the roles of one translation where two pass a layer.

    Args:
        pooled: from `sentence_states`.
        places: those of `pooled`.

    Returns:
        Facts of each layer and two roles: the mean `cosine` over sentences of all directions.
    """
    found = []
    for (one, first), (two, second) in _met(places):
        cosines = np.concatenate(
            [
                (normalize_rows(states[:, one]) * normalize_rows(states[:, two])).sum(axis=1)
                for states in (np.asarray(each, np.float64) for each in pooled.values())
            ]
        )
        roles = [first.role, second.role]
        found.append({"layer": first.layer, "roles": roles, "cosine": float(cosines.mean())})
    return found


def _met(places: StateLocations) -> Iterator[tuple[Any, Any]]:
    plain = [(number, place) for number, place in enumerate(places) if not place.ended]
    for one, two in itertools.combinations(plain, 2):
        if one[1].layer == two[1].layer:
            yield one, two
