"""Statistics over seeds against SciPy's, and against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.seeds import difference, spread

FIRST, SECOND = [59.1, 55.0, 61.8, 60.2, 58.4], [64.0, 60.0, 70.5, 66.1, 62.0]


def test_the_spread_has_the_sample_variance():
    found = spread(FIRST)
    assert (found.count, found.low, found.high) == (5, 55.0, 61.8)
    assert found.mean == pytest.approx(np.mean(FIRST))
    assert found.variance == pytest.approx(np.var(FIRST, ddof=1))
    assert spread([1.0]).variance is None
    with pytest.raises(UserError, match="no score"):
        spread([])


def test_the_interval_is_welchs():
    """At whole degrees of freedom; between two, that of fewer, which is wider."""
    stats = pytest.importorskip("scipy.stats")
    found = difference(FIRST, SECOND)
    exact = stats.ttest_ind(FIRST, SECOND, equal_var=False)
    low, high = exact.confidence_interval(0.95)
    assert found.mean == pytest.approx(np.mean(FIRST) - np.mean(SECOND))
    standard = np.sqrt(np.var(FIRST, ddof=1) / 5 + np.var(SECOND, ddof=1) / 5)
    expected = stats.t.ppf(0.975, int(exact.df)) * standard
    assert found.high - found.mean == pytest.approx(expected, rel=1e-3)
    assert found.low <= low and found.high >= high


def test_p_counts_all_divisions_of_the_scores():
    stats = pytest.importorskip("scipy.stats")

    def gap(a, b):
        return np.mean(a) - np.mean(b)

    exact = stats.permutation_test((FIRST, SECOND), gap, n_resamples=np.inf)
    assert difference(FIRST, SECOND).p == pytest.approx(exact.pvalue)
    assert difference([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]).p == pytest.approx(0.1)
    assert difference([1.0, 2.0], [1.0, 2.0]).p == 1.0
    assert difference(range(30), range(30)).p is None


def test_one_seed_has_no_interval():
    found = difference([3.0], [1.0])
    assert (found.mean, found.low, found.high) == (2.0, None, None)
