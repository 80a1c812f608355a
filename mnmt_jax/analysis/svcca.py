"""SVCCA of states, and which language the states of a source prefer.

SVCCA (Raghu et al. 2017): of two sets of vectors for the same sentences keep the directions that
hold most of the variance, then take the mean of the canonical correlations between them. It does
not change when one set is rotated or scaled, and so compares layers, languages and checkpoints.

The preference (TDO paper, appendix A, Figures 1b and 4): of a pair x -> y it holds the states of x
with the tag of y against those of x with the tag of x and of y with the tag of y. The authors' code
gives its CCA single vectors, which leaves |Pearson correlation| over the features of two vectors;
so it is here. That the share is rho_y / (rho_x + rho_y) is our reading of the paper's text: above
0.5 the states are nearer to those of the target language.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from mnmt_jax.analysis.layer_states import StateLocations, location_fields, source_side_locations
from mnmt_jax.analysis.parallel_sentences import ParallelSentences, group_by_languages
from mnmt_jax.analysis.similarity import Matrix, PooledStates

KEPT_VARIANCE = 0.99  # share of the variance (Raghu et al. 2017)

Basis = Float[np.ndarray, "sentences kept"]


def principal_basis(states: Matrix, kept: float = KEPT_VARIANCE) -> Basis:
    """Returns an orthonormal basis of the directions of most variance, over sentences.

    Args:
        states: one row a sentence.
        kept: share of the variance that they hold; the fewest that do are taken. States that do
            not vary have none.
    """
    centred = states - states.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    floor = max(states.shape) * np.finfo(np.float64).eps * np.abs(states).max(initial=0)
    variance = np.where(sizes > floor * np.sqrt(len(states)), sizes, 0) ** 2
    if not variance.any():
        return left[:, :0]
    shares = np.cumsum(variance) / variance.sum()
    count = int(np.searchsorted(shares, kept * (1 - 1e-12))) + 1
    return left[:, : min(count, np.count_nonzero(variance))]


def mean_canonical_correlation(first: Basis, second: Basis) -> float | None:
    """Returns the mean canonical correlation of two subspaces; None if one has no directions."""
    if not first.shape[1] or not second.shape[1]:
        return None
    found = np.linalg.svd(first.T @ second, compute_uv=False)
    return float(np.minimum(found, 1).mean())


def svcca(first: Matrix, second: Matrix, kept: float = KEPT_VARIANCE) -> float | None:
    """Returns the SVCCA similarity of states of the same sentences, 0 to 1.

    Args:
        first: one row a sentence.
        second: the same sentences, as many features or not.
        kept: as in `principal_basis`.
    """
    return mean_canonical_correlation(principal_basis(first, kept), principal_basis(second, kept))


def language_svcca(
    pooled: PooledStates, pairs: Sequence[ParallelSentences], places: StateLocations
) -> list[Any]:
    """Compares languages at each place.

    Args:
        pooled: from `sentence_states`.
        pairs: from `align_by_reference`.
        places: those of `pooled`.

    Returns:
        Facts of each place of `SOURCE_SIDE_ROLES`: `pairs` of languages, each with the mean over target
        languages of `parallel`, of `others` (each sentence held against the next one: what so few
        sentences give by themselves), `kept` directions at most, and `sentences`, the least that
        one target language has; the same of all pairs.
    """
    found = []
    for number, place in source_side_locations(places):
        own = [
            {"languages": list(names), **_mean([_compared(each, pooled, number) for each in items])}
            for names, items in group_by_languages(pairs)
        ]
        means = _mean(own)
        found.append({**location_fields(place), **means, "pairs": own})
    return found


def checkpoint_svcca(
    pooled: tuple[PooledStates, PooledStates], places: tuple[StateLocations, StateLocations]
) -> list[dict[str, Any]]:
    """Compares two models at every place of one with every place of the other, role by role.

    Args:
        pooled: of each, the same sentences in the same order.
        places: of each.

    Returns:
        Facts of each two places, `first` and `second`: the mean over directions of `svcca`, and of
        `others` as in `language_svcca`; the `kept` directions of variance at most, and the
        `sentences` of a direction at least.
    """
    bases = [
        {
            place: [principal_basis(each[:, number].astype(np.float64)) for each in states.values()]
            for number, place in source_side_locations(own)
        }
        for states, own in zip(pooled, places, strict=True)
    ]
    found = []
    for one, firsts in bases[0].items():
        for two, seconds in bases[1].items():
            if one.role != two.role:
                continue
            both = list(zip(firsts, seconds, strict=True))
            found.append(
                {
                    "first": location_fields(one),
                    "second": location_fields(two),
                    "svcca": _known_mean([mean_canonical_correlation(a, b) for a, b in both]),
                    "others": _known_mean(
                        [mean_canonical_correlation(a, np.roll(b, 1, 0)) for a, b in both]
                    ),
                    "kept": max(basis.shape[1] for bases in both for basis in bases),
                    "sentences": min(len(a) for a, _ in both),
                }
            )
    return found


def pearson(first: Matrix, second: Matrix) -> Float[np.ndarray, " sentences"]:
    """Returns the correlation over the features of rows of the same number; 0 where one is flat."""
    one, other = (each - each.mean(axis=1, keepdims=True) for each in (first, second))
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return (one * other).sum(axis=1) / np.where(lengths, lengths, 1)


def target_preference(
    pair: Matrix, source: Matrix, target: Matrix
) -> Float[np.ndarray, " sentences"]:
    """Returns how far states are those of the target language, 0 to 1; 0.5 is neither.

    Args:
        pair: states of sources, translated into the target language.
        source: of the same sources, translated into their own language.
        target: of the references, translated into their own language.
    """
    of_source, of_target = (np.abs(pearson(pair, each)) for each in (source, target))
    both = of_source + of_target
    return np.where(both, of_target / np.where(both, both, 1), 0.5)


def preference_by_location(
    pooled: Sequence[tuple[tuple[str, str], Sequence[np.ndarray]]], places: StateLocations
) -> list[dict[str, Any]]:
    """Returns the preference at each place.

    Args:
        pooled: of each direction the states [sentences, places, embed] of pairs, of sources in
            their own language, and of references in theirs.
        places: those of the states.

    Returns:
        Facts of each place of `SOURCE_SIDE_ROLES`: the mean over sentences of each direction, and `mean`,
        `least` and `most` over directions.
    """
    found = []
    for number, place in source_side_locations(places):
        scores = [
            float(target_preference(*(each[:, number].astype(np.float64) for each in three)).mean())
            for _, three in pooled
        ]
        own = [
            {"source": source, "target": target, "preference": score}
            for ((source, target), _), score in zip(pooled, scores, strict=True)
        ]
        means = {"mean": float(np.mean(scores)), "least": min(scores), "most": max(scores)}
        found.append({**location_fields(place), **means, "directions": own})
    return found


def _compared(each: ParallelSentences, pooled: PooledStates, number: int) -> dict[str, Any]:
    first, second = map(principal_basis, each.states(pooled, number))
    return {
        "parallel": mean_canonical_correlation(first, second),
        "others": mean_canonical_correlation(first, np.roll(second, 1, axis=0)),
        "kept": max(first.shape[1], second.shape[1]),
        "sentences": len(each.rows),
    }


def _mean(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        **{name: _known_mean([each[name] for each in items]) for name in ("parallel", "others")},
        "kept": max(each["kept"] for each in items),
        "sentences": min(each["sentences"] for each in items),
    }


def _known_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
