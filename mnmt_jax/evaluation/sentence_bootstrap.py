"""Bootstrap over the sentences of an evaluation, with sacreBLEU's resampling.

Source: Koehn 2004, "Statistical significance tests for machine translation evaluation".

The score of a group is a mean over directions. Directions that share sentences (the same German
text in de-en and de-fr) are resampled together, since their errors are not independent; directions
of other sentences are resampled independently.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from mnmt_jax.evaluation.sentence_statistics import DirectionStatistics, scores_of_sums
from mnmt_jax.vocabulary.language_codes import Direction

SAMPLES = 1000
SEED = 12345  # sacreBLEU's
_CACHED = 4  # number of cached matrices of resamples, 4 megabytes each for 1,000 sentences

Draws = Mapping[Direction, np.ndarray]
"""Scores of the resampled test sets, [samples], by direction."""


def resample_scores(
    statistics: Mapping[Direction, DirectionStatistics], metric: str, samples: int = SAMPLES
) -> Draws:
    """Return the scores of resampled test sets, for each direction that has statistics.

    Args:
        statistics: statistics of the sentences by direction.
        metric: field of `DirectionResult`.
        samples: number of resampled test sets.

    Returns:
        The scores. Sample i of two directions with common sentences, or of two evaluations of the
        same directions, has the same sentences.
    """
    clusters = sentence_clusters(statistics)
    return {
        pair: resample(metric, item.metrics[metric], clusters[pair], samples)
        for pair, item in statistics.items()
        if metric in item.metrics
    }


def resample(metric: str, statistics: np.ndarray, cluster: int, samples: int) -> np.ndarray:
    """Return the scores of resampled test sets of one direction, [samples].

    Args:
        metric: field of `DirectionResult`.
        statistics: those of its sentences, [sentences, statistics].
        cluster: number of its cluster.
        samples: number of resampled test sets.
    """
    return scores_of_sums(metric, _counts(len(statistics), cluster, samples) @ statistics)


def confidence_interval(draws: np.ndarray) -> tuple[float, float]:
    """Return the 95 % percentile interval of resampled scores, [samples]."""
    low, high = np.percentile(draws, (2.5, 97.5))
    return float(low), float(high)


def sentence_clusters(statistics: Mapping[Direction, DirectionStatistics]) -> dict[Direction, int]:
    """Number the clusters of directions with common sentences, from 0."""
    ordered = sorted(statistics.items())
    hashes = {pair: (item.source_hash, item.reference_hash) for pair, item in ordered}
    numbers = shared_sentences(hashes)
    ranks = {number: rank for rank, number in enumerate(sorted(set(numbers.values())))}
    return {pair: ranks[number] for pair, number in numbers.items()}


def shared_sentences(digests: Mapping[Direction, tuple[str, str]]) -> dict[Direction, int]:
    """Return the number of each direction's cluster; directions with a common text share it.

    Args:
        digests: hashes of sources and references by direction.
    """
    clusters: dict[Direction, int] = {}
    keys_of: dict[int, set[tuple[str, str]]] = {}
    for number, (pair, hashes) in enumerate(digests.items()):
        keys = set(zip(pair, hashes, strict=True))
        for other in [other for other in keys_of if keys & keys_of[other]]:
            keys |= keys_of.pop(other)
            clusters = {pair: number if c == other else c for pair, c in clusters.items()}
        keys_of[number] = keys
        clusters[pair] = number
    return clusters


@functools.lru_cache(_CACHED)
def _counts(sentences: int, cluster: int, samples: int) -> np.ndarray:
    """Return how often each sentence is in each resampled test set, [samples, sentences]."""
    lines = cluster_rng(cluster).choice(sentences, size=(samples, sentences), replace=True)
    return np.stack([np.bincount(row, minlength=sentences) for row in lines]).astype(np.float32)


def cluster_rng(cluster: int) -> np.random.Generator:
    """Return the random generator of a cluster's draws; that of the first is sacreBLEU's."""
    return np.random.default_rng((SEED, cluster) if cluster else SEED)
