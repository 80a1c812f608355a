"""Statistics over seeds: mean, range, sample variance, and a test of two systems.

Seeds are the unit of observation: a score is that of one training run. Translations of one run are
compared by sentences instead (`mnmt compare --bootstrap`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence

from mnmt_jax.errors import UserError

# Two-sided 97.5 % quantiles of Student's t by degrees of freedom, 1 to 30; NIST e-Handbook 1.3.6.7.2.
_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL = 1.960
_MOST_PERMUTATIONS = 200_000


@dataclasses.dataclass(frozen=True)
class Spread:
    """Scores of one system over seeds.

    Attributes:
        count: number of seeds.
        mean: arithmetic mean.
        low: smallest score.
        high: largest score.
        variance: sample variance, with n - 1; None of one seed.
    """

    count: int
    mean: float
    low: float
    high: float
    variance: float | None


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of two systems' mean scores.

    Attributes:
        mean: first minus second.
        low: lower end of the 95 % confidence interval; None if a system has one seed.
        high: upper end of it.
        p: two-sided p of the exact permutation test; None if there are too many permutations.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None


def spread(scores: Sequence[float]) -> Spread:
    """Describe the scores of one system.

    Args:
        scores: one per seed.

    Raises:
        UserError: if there is none.
    """
    if not scores:
        raise UserError("no score: evaluate at least one seed")
    variance = statistics.variance(scores) if len(scores) > 1 else None
    return Spread(len(scores), statistics.fmean(scores), min(scores), max(scores), variance)


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Compare the scores of two systems, trained independently.

    Args:
        first: one per seed.
        second: one per seed; as many or not.

    Returns:
        The difference of the means; Welch's interval, which lets variances differ; and p of the
        permutation test, the share of all divisions of the scores into groups of these sizes whose
        means differ at least as much. Its least value is 2 / (n + m choose n): 0.1 with three
        seeds each, 0.008 with five.

    Raises:
        UserError: if a system has no score.
    """
    one, other = spread(first), spread(second)
    mean = one.mean - other.mean
    half = _half_width(one, other)
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return Difference(mean, low, high, _permutation_p(first, second))


def _half_width(one: Spread, other: Spread) -> float | None:
    """Return half of Welch's 95 % interval of a difference of means."""
    if one.variance is None or other.variance is None:
        return None
    shares = one.variance / one.count, other.variance / other.count
    total = sum(shares)
    if not total:
        return 0.0
    parts = zip(shares, (one.count, other.count), strict=True)
    freedom = total**2 / sum(share**2 / (count - 1) for share, count in parts)
    whole = math.floor(freedom)  # fewer degrees of freedom widen the interval
    quantile = _QUANTILES[max(whole, 1) - 1] if whole <= len(_QUANTILES) else _NORMAL
    return quantile * math.sqrt(total)


def _permutation_p(first: Sequence[float], second: Sequence[float]) -> float | None:
    pooled, size = (*first, *second), len(first)
    if math.comb(len(pooled), size) > _MOST_PERMUTATIONS:
        return None
    total = math.fsum(pooled)

    def gap(chosen: Sequence[float]) -> float:
        own = math.fsum(chosen)
        return abs(own / size - (total - own) / (len(pooled) - size))

    observed = gap(first) - 1e-9  # sums differ in rounding
    gaps = [gap(chosen) for chosen in itertools.combinations(pooled, size)]
    return sum(value >= observed for value in gaps) / len(gaps)
