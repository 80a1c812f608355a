"""Confidence intervals of means over directions, and paired tests of two systems.

Intervals are from the bootstrap over sentences (Koehn 2004). Two systems on the same sentences are
compared by the paired bootstrap and by approximate randomization (Riezler and Maxwell 2005), as in
sacreBLEU's `PairedTest`; of one direction both p are those of sacreBLEU, except that draws equal to
the difference count. sacreBLEU's p are too small where few sentences differ: 0.001 by randomization
for one.

The score of a group is a mean over directions. Directions that share sentences (the same German
text in de-en and de-fr) are resampled and exchanged together, since their errors are not
independent; others independently.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mnmt_jax.evaluation.comparison import DirectionGroup, common_directions
from mnmt_jax.evaluation.result import RunResult
from mnmt_jax.evaluation.sentence_bootstrap import (
    SAMPLES,
    SEED,
    cluster_rng,
    confidence_interval,
    resample,
    sentence_clusters,
)
from mnmt_jax.evaluation.sentence_statistics import (
    DirectionStatistics,
    read_statistics,
    score_of,
    scores_of_sums,
)
from mnmt_jax.vocabulary.language_codes import Direction

_ROUNDING = 1e-9
_CACHED = 4  # number of cached matrices of exchanges, 4 megabytes each for 1,000 sentences

Interval = tuple[float, float]


@dataclass(frozen=True)
class PairedDifference:
    """Difference of a system to the first one, of a metric in a group of directions.

    Attributes:
        mean: mean of the system minus that of the first.
        interval: 95 % interval of the difference, by the paired bootstrap.
        p_bootstrap: p of the paired bootstrap. sacreBLEU subtracts the mean of the absolute
            differences of the samples, which makes it one-sided in effect.
        p_randomization: two-sided p of approximate randomization.
    """

    mean: float
    interval: Interval
    p_bootstrap: float
    p_randomization: float


class SentenceSignificance:
    """Intervals and tests of evaluations of one task, computed when asked for.

    Args:
        results: the evaluations.
        statistics: statistics of their sentences, by direction, in the same order.
        samples: number of resampled test sets, and of random exchanges.

    Attributes:
        samples: the argument.
    """

    def __init__(
        self,
        results: Sequence[RunResult],
        statistics: Sequence[Mapping[Direction, DirectionStatistics]],
        samples: int = SAMPLES,
    ) -> None:
        self.samples = samples
        self._statistics = statistics
        self._draws: dict[tuple[int, Direction, str], np.ndarray] = {}
        self._clusters = [sentence_clusters(one) for one in statistics]
        if common := common_directions(results):  # whose sentences are those of all
            joined = {pair: one[pair] for one in statistics for pair in one if pair in common}
            self._clusters = [sentence_clusters(joined)] * len(results)
        self._results = results

    @staticmethod
    def read(
        results: Sequence[RunResult], folders: Sequence[Path], samples: int = SAMPLES
    ) -> SentenceSignificance:
        """Read the statistics in the folders of evaluations.

        Args:
            results: the evaluations.
            folders: their folders, in the same order.
            samples: as in the constructor.
        """
        statistics = [
            read_statistics(folder, result.directions)
            for result, folder in zip(results, folders, strict=True)
        ]
        return SentenceSignificance(results, statistics, samples)

    @property
    def notes(self) -> list[str]:
        """Remarks for readers: evaluations without intervals."""
        without = [
            result.name
            for result, one in zip(self._results, self._statistics, strict=True)
            if len(one) < len(result.directions)
        ]
        if not without:
            return []
        return [
            f"No intervals and tests of {', '.join(without)}: the folder lacks statistics of "
            "sentences; run 'mnmt evaluate' again."
        ]

    def interval(self, group: DirectionGroup, number: int, metric: str) -> Interval | None:
        """Return the 95 % interval of a system's mean in a group.

        Args:
            group: the group of directions.
            number: index of the evaluation.
            metric: field of `DirectionResult`.

        Returns:
            The interval; None without statistics of all scored directions.
        """
        directions = group.scored(number, metric)
        if not directions or not self._has(number, directions, metric):
            return None
        return confidence_interval(self._mean_draws(number, directions, metric))

    def difference(
        self, group: DirectionGroup, number: int, metric: str
    ) -> PairedDifference | None:
        """Compare a system with the first one.

        Args:
            group: the group of directions.
            number: index of the evaluation.
            metric: field of `DirectionResult`.

        Returns:
            The difference; None without statistics of both, or if the group is not comparable.
        """
        directions = group.scored(number, metric)
        compared = group.comparable and directions and group.scored(0, metric)
        if not compared or not all(self._has(n, directions, metric) for n in (0, number)):
            return None
        scores = [
            np.mean([score_of(metric, self._of(n, pair, metric)) for pair in directions])
            for n in (0, number)
        ]
        mean = float(scores[1] - scores[0])
        draws = [self._mean_draws(n, directions, metric) for n in (number, 0)]
        exchanged = self._exchanged(number, directions, metric)
        return _paired_difference(mean, draws[0] - draws[1], exchanged)

    def is_tie(self, group: DirectionGroup, metric: str, numbers: tuple[int, int]) -> bool:
        """Return whether the 95 % interval of the difference of two systems includes 0.

        Args:
            group: the group of directions.
            metric: field of `DirectionResult`.
            numbers: indices of the evaluations.

        Returns:
            False also without statistics of both, or if the group is not comparable.
        """
        directions = group.scored(numbers[0], metric) if group.comparable else []
        if not directions or not all(self._has(n, directions, metric) for n in numbers):
            return False
        first, second = (self._mean_draws(n, directions, metric) for n in numbers)
        low, high = confidence_interval(first - second)
        return low <= 0 <= high

    def _of(self, number: int, direction: Direction, metric: str) -> np.ndarray:
        return self._statistics[number][direction].metrics[metric]

    def _has(self, number: int, directions: Sequence[Direction], metric: str) -> bool:
        statistics = self._statistics[number]
        return all(pair in statistics and metric in statistics[pair].metrics for pair in directions)

    def _mean_draws(self, number: int, directions: Sequence[Direction], metric: str) -> np.ndarray:
        """Return the means over directions of resampled scores, [samples]."""
        for pair in directions:
            if (number, pair, metric) not in self._draws:
                statistics, cluster = self._of(number, pair, metric), self._clusters[number][pair]
                draws = resample(metric, statistics, cluster, self.samples)
                self._draws[number, pair, metric] = draws
        return np.mean([self._draws[number, pair, metric] for pair in directions], axis=0)

    def _exchanged(self, number: int, directions: Sequence[Direction], metric: str) -> np.ndarray:
        """Return differences of the means after random exchanges of sentences, [samples]."""
        differences = np.zeros(self.samples)
        for pair in directions:
            first, second = (self._of(n, pair, metric) for n in (0, number))
            chosen = _exchanges(len(first), self._clusters[number][pair], self.samples)
            differences += _exchanged_differences(metric, first, second, chosen)
        return differences / len(directions)


def limits_of_p(samples: int) -> str:
    """Return sentences for readers: what p of a number of samples do not say."""
    return (
        f"p are at least {1 / (samples + 1):.1g} and not corrected for the number of rows. They "
        "say whether other sentences would give another result, not whether another seed would."
    )


def direction_difference(
    metric: str, first: np.ndarray, second: np.ndarray, samples: int = SAMPLES
) -> PairedDifference:
    """Compare two systems in one direction.

    Args:
        metric: field of `DirectionResult`.
        first: statistics of the first system's sentences, [sentences, statistics].
        second: those of the other system.
        samples: number of resampled test sets, and of random exchanges.
    """
    mean = score_of(metric, second) - score_of(metric, first)
    draws = [resample(metric, statistics, 0, samples) for statistics in (second, first)]
    exchanged = _exchanged_differences(metric, first, second, _exchanges(len(first), 0, samples))
    return _paired_difference(mean, draws[0] - draws[1], exchanged)


def direction_intervals(
    statistics: DirectionStatistics, samples: int = SAMPLES
) -> dict[str, Interval]:
    """Return the 95 % intervals of the scores of one direction, as sacreBLEU's `--confidence`."""
    intervals = {}
    for metric, values in statistics.metrics.items():
        intervals[metric] = confidence_interval(resample(metric, values, 0, samples))
    return intervals


def interval_signature(samples: int = SAMPLES) -> str:
    """Return the signature of intervals and tests."""
    return f"bootstrap over sentences|resamples:{samples}|seed:{SEED}|percentiles:2.5,97.5"


def _paired_difference(mean: float, changes: np.ndarray, exchanged: np.ndarray) -> PairedDifference:
    """Return a difference with its interval and p.

    Args:
        mean: the observed difference.
        changes: differences in resampled test sets, [samples].
        exchanged: differences after random exchanges, [samples].
    """
    shifted = np.abs(changes) - np.abs(changes).mean()
    p_values = (_p_value(draws, abs(mean)) for draws in (shifted, np.abs(exchanged)))
    return PairedDifference(mean, confidence_interval(changes), *p_values)


def _exchanged_differences(
    metric: str, first: np.ndarray, second: np.ndarray, chosen: np.ndarray
) -> np.ndarray:
    """Return the differences of two systems after exchanges of sentences, [samples]."""
    swapped = chosen @ (first - second)  # sums of the exchanged sentences
    one, other = swapped + second.sum(axis=0), first.sum(axis=0) - swapped
    return scores_of_sums(metric, one) - scores_of_sums(metric, other)


def _p_value(draws: np.ndarray, difference: float) -> float:
    """Return the share of draws that are at least as large as the observed difference.

    sacreBLEU counts only larger ones. Those that are equal matter for ratios of few sentences and
    for equal systems, whose p is 1 here and the smallest possible there.
    """
    extreme = np.sum(draws >= difference - _ROUNDING)
    return float((extreme + 1) / (len(draws) + 1))


@functools.lru_cache(_CACHED)
def _exchanges(sentences: int, cluster: int, samples: int) -> np.ndarray:
    """Return which sentences are exchanged in each trial, [samples, sentences] of 0 and 1."""
    chosen = cluster_rng(cluster).integers(2, size=(samples, sentences), dtype=bool)
    return chosen.astype(np.float32)
