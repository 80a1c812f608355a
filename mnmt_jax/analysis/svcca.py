"""SVCCA of states, and the target-language preference of source states.

SVCCA (Raghu et al. 2017) takes two sets of vectors for the same sentences, keeps the directions
that hold most of the variance of each, and returns the mean of the canonical correlations between
them. It is invariant to rotation and scaling of a set, and so can compare layers, languages and
checkpoints.

The preference (TDO paper, appendix A, Figures 1b and 4) of a pair x -> y compares the states of x
with the tag of y to those of x with the tag of x and of y with the tag of y. The authors' code
applies CCA to single vectors, which reduces to |Pearson correlation| over the features of two
vectors; so it is here. The share rho_y / (rho_x + rho_y) is our reading of the paper's text: above
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


def principal_basis(states: Matrix, variance_fraction: float = KEPT_VARIANCE) -> Basis:
    """Return an orthonormal basis of the directions of most variance, over sentences.

    Args:
        states: one row per sentence.
        variance_fraction: share of the variance to keep, with the fewest directions. States without
            variance have no directions.
    """
    centred = states - states.mean(axis=0)
    left, singular_values, _ = np.linalg.svd(centred, full_matrices=False)
    tolerance = max(states.shape) * np.finfo(np.float64).eps * np.abs(states).max(initial=0)
    variance = np.where(singular_values > tolerance * np.sqrt(len(states)), singular_values, 0) ** 2
    if not variance.any():
        return left[:, :0]
    shares = np.cumsum(variance) / variance.sum()
    count = int(np.searchsorted(shares, variance_fraction * (1 - 1e-12))) + 1
    return left[:, : min(count, np.count_nonzero(variance))]


def mean_canonical_correlation(first: Basis, second: Basis) -> float | None:
    """Return the mean canonical correlation of two subspaces; None if one has no directions."""
    if not first.shape[1] or not second.shape[1]:
        return None
    correlations = np.linalg.svd(first.T @ second, compute_uv=False)
    return float(np.minimum(correlations, 1).mean())


def svcca(first: Matrix, second: Matrix, variance_fraction: float = KEPT_VARIANCE) -> float | None:
    """Return the SVCCA similarity of states of the same sentences, 0 to 1.

    Args:
        first: one row per sentence.
        second: states of the same sentences; the number of features may differ.
        variance_fraction: as in `principal_basis`.
    """
    return mean_canonical_correlation(
        principal_basis(first, variance_fraction), principal_basis(second, variance_fraction)
    )


def language_svcca(
    pooled: PooledStates, pairs: Sequence[ParallelSentences], locations: StateLocations
) -> list[Any]:
    """Compare languages at each location.

    Args:
        pooled: from `sentence_states`.
        pairs: from `align_by_reference`.
        locations: locations of `pooled`.

    Returns:
        A JSON-ready dict per location of `SOURCE_SIDE_ROLES`: `pairs` of languages, each with the
        mean over target languages of `parallel` and of `others` (each sentence compared with the
        next one, the baseline for this number of sentences), `kept`, the maximum number of
        directions, and `sentences`, the minimum over target languages; the same over all pairs.
    """
    results = []
    for index, location in source_side_locations(locations):
        pair_results = [
            {
                "languages": list(names),
                **_summarize([_compare_pair(pair, pooled, index) for pair in items]),
            }
            for names, items in group_by_languages(pairs)
        ]
        means = _summarize(pair_results)
        results.append({**location_fields(location), **means, "pairs": pair_results})
    return results


def checkpoint_svcca(
    pooled: tuple[PooledStates, PooledStates],
    locations_by_model: tuple[StateLocations, StateLocations],
) -> list[dict[str, Any]]:
    """Compare two models at every location of one with every location of the other, role by role.

    Args:
        pooled: states of each model, for the same sentences in the same order.
        locations_by_model: locations of each model.

    Returns:
        A JSON-ready dict per two locations, `first` and `second`: the mean over directions of
        `svcca` and of `others` as in `language_svcca`; `kept`, the maximum number of directions of
        variance; `sentences`, the minimum number of sentences of a translation direction.
    """
    bases = [
        {
            location: [
                principal_basis(states[:, index].astype(np.float64))
                for states in model_states.values()
            ]
            for index, location in source_side_locations(locations)
        }
        for model_states, locations in zip(pooled, locations_by_model, strict=True)
    ]
    results = []
    for first, first_bases in bases[0].items():
        for second, second_bases in bases[1].items():
            if first.role != second.role:
                continue
            basis_pairs = list(zip(first_bases, second_bases, strict=True))
            results.append(
                {
                    "first": location_fields(first),
                    "second": location_fields(second),
                    "svcca": _known_mean(
                        [
                            mean_canonical_correlation(first_basis, second_basis)
                            for first_basis, second_basis in basis_pairs
                        ]
                    ),
                    "others": _known_mean(
                        [
                            mean_canonical_correlation(first_basis, np.roll(second_basis, 1, 0))
                            for first_basis, second_basis in basis_pairs
                        ]
                    ),
                    "kept": max(basis.shape[1] for bases in basis_pairs for basis in bases),
                    "sentences": min(len(first_basis) for first_basis, _ in basis_pairs),
                }
            )
    return results


def pearson(first: Matrix, second: Matrix) -> Float[np.ndarray, " sentences"]:
    """Return the Pearson correlation of rows over the features; 0 if a row is constant."""
    first_centred, second_centred = (
        states - states.mean(axis=1, keepdims=True) for states in (first, second)
    )
    lengths = np.linalg.norm(first_centred, axis=1) * np.linalg.norm(second_centred, axis=1)
    return (first_centred * second_centred).sum(axis=1) / np.where(lengths, lengths, 1)


def target_preference(
    pair: Matrix, source: Matrix, target: Matrix
) -> Float[np.ndarray, " sentences"]:
    """Return the preference of states for the target language, 0 to 1; 0.5 is neutral.

    Args:
        pair: states of sources, translated into the target language.
        source: states of the same sources, translated into their own language.
        target: states of the references, translated into their own language.
    """
    source_correlation, target_correlation = (
        np.abs(pearson(pair, other)) for other in (source, target)
    )
    total = source_correlation + target_correlation
    return np.where(total, target_correlation / np.where(total, total, 1), 0.5)


def preference_by_location(
    pooled: Sequence[tuple[tuple[str, str], Sequence[np.ndarray]]], locations: StateLocations
) -> list[dict[str, Any]]:
    """Return the target preference at each location.

    Args:
        pooled: for each direction the states [sentences, places, embed] of pairs, of sources
            translated into their own language, and of references translated into theirs.
        locations: locations of the states.

    Returns:
        A JSON-ready dict per location of `SOURCE_SIDE_ROLES`: `directions`, with the mean
        `preference` over sentences, and `mean`, `least` and `most` over directions.
    """
    results = []
    for index, location in source_side_locations(locations):
        scores = [
            float(
                target_preference(
                    *(states[:, index].astype(np.float64) for states in state_sets)
                ).mean()
            )
            for _, state_sets in pooled
        ]
        by_direction = [
            {"source": source, "target": target, "preference": score}
            for ((source, target), _), score in zip(pooled, scores, strict=True)
        ]
        means = {"mean": float(np.mean(scores)), "least": min(scores), "most": max(scores)}
        results.append({**location_fields(location), **means, "directions": by_direction})
    return results


def _compare_pair(pair: ParallelSentences, pooled: PooledStates, index: int) -> dict[str, Any]:
    first, second = map(principal_basis, pair.states(pooled, index))
    return {
        "parallel": mean_canonical_correlation(first, second),
        "others": mean_canonical_correlation(first, np.roll(second, 1, axis=0)),
        "kept": max(first.shape[1], second.shape[1]),
        "sentences": len(pair.first_rows),
    }


def _summarize(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        **{name: _known_mean([item[name] for item in items]) for name in ("parallel", "others")},
        "kept": max(item["kept"] for item in items),
        "sentences": min(item["sentences"] for item in items),
    }


def _known_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
