"""Bootstrap over sentences, against sacreBLEU's own interval and known dependences."""

from __future__ import annotations

import random

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from mnmt_jax.evaluation import benchmark
from mnmt_jax.evaluation.metrics import score_and_statistics
from mnmt_jax.evaluation.sentence_bootstrap import (
    confidence_interval,
    resample_scores,
    shared_sentences,
)
from mnmt_jax.evaluation.sentence_statistics import (
    DirectionStatistics,
    mean_statistics,
    scores_of_sums,
)
from tests.unit.test_paired_bootstrap import WORDS, damaged

METRICS = {"bleu": BLEU(tokenize="13a", force=True), "chrf": CHRF(word_order=2)}
EN_DE, FR_DE = ("en", "de"), ("fr", "de")


def made_lines(seed: int, count: int = 80) -> list[str]:
    """Return lines of 12 random words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=12)) for _ in range(count)]


def statistics_of(
    hypotheses: list[str], references: list[str], sources: list[str] | None = None
) -> DirectionStatistics:
    """Return the statistics of hypotheses by BLEU and chrF++."""
    metrics = {
        name: score_and_statistics(metric, hypotheses, references)[1]
        for name, metric in METRICS.items()
    }
    return DirectionStatistics.create(benchmark.TestSet(sources or references, references), metrics)


def counts_of(metric: str, draw: np.random.Generator) -> list[int]:
    """Return sums of statistics: few n-grams, some orders without any or without matches."""
    if metric == "bleu":
        total = sorted(draw.integers(0, 12, 4), reverse=True)
        matches = sorted(draw.integers(-6, 8, 4).clip(0), reverse=True)
        lengths = draw.integers(0, 15, 2)
        return [*lengths, *np.minimum(matches, total), *total]
    counts = draw.integers(-4, 9, (8, 3)).clip(0)
    counts[:, 2] = counts.min(axis=1)
    return counts.flatten().tolist()


@pytest.mark.parametrize("metric", METRICS)
def test_scores_of_sums_are_those_of_sacrebleu(metric):
    draw = np.random.default_rng(1)
    sums = [counts_of(metric, draw) for _ in range(2000)]
    sums.append([0] * len(sums[0]))
    expected = [
        METRICS[metric]._compute_score_from_stats(list(map(int, row))).score for row in sums
    ]
    assert 20 < expected.count(0.0) < 1500
    actual = scores_of_sums(metric, np.array(sums, np.float64))
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_one_direction_has_the_interval_of_sacrebleu(metric):
    references = made_lines(0)
    hypotheses = damaged(references, 0.3, 1)
    draws = resample_scores({EN_DE: statistics_of(hypotheses, references)}, metric)[EN_DE]
    low, high = confidence_interval(draws)
    expected = METRICS[metric].corpus_score(hypotheses, [references], n_bootstrap=1000)
    assert draws.shape == (1000,)
    assert (high - low) / 2 == pytest.approx(float(expected._ci), rel=0.1)
    assert draws.mean() == pytest.approx(float(expected._mean), abs=1e-3)


@pytest.mark.parametrize("metric", METRICS)
def test_samples_of_equal_sentences_have_the_score_of_the_test_set(metric):
    references = ["The first, and the last, of nine words."] * 6
    hypotheses = ["The first, or the last, of ten words!"] * 6
    draws = resample_scores({EN_DE: statistics_of(hypotheses, references)}, metric, 5)[EN_DE]
    expected = METRICS[metric].corpus_score(hypotheses, [references]).score
    assert draws == pytest.approx([expected] * 5, rel=1e-5)


def _half_width(draws) -> float:
    low, high = confidence_interval(sum(draws.values()) / len(draws))
    return (high - low) / 2


def test_directions_of_the_same_sentences_are_resampled_together():
    """The mean of two copies varies as one of them, of two independent sets by sqrt(2) less."""
    references, others = made_lines(0), made_lines(5)
    first = statistics_of(damaged(references, 0.3, 1), references)
    same = resample_scores({EN_DE: first, FR_DE: first}, "bleu")
    assert np.array_equal(same[EN_DE], same[FR_DE])
    second = statistics_of(damaged(others, 0.3, 2), others)
    other = resample_scores({EN_DE: first, FR_DE: second}, "bleu")
    assert abs(np.corrcoef(other[EN_DE], other[FR_DE])[0, 1]) < 0.15
    assert _half_width(other) == pytest.approx(_half_width(same) / 2**0.5, rel=0.2)


def test_clusters_are_connected_by_any_common_text():
    digests = {
        ("en", "de"): ("1", "2"),
        ("cs", "fr"): ("3", "4"),
        ("de", "fr"): ("2", "3"),
        ("fr", "cs"): ("3", "4"),  # the French text of de-fr
        ("en", "nl"): ("1", "4"),  # the English text of en-de
    }
    clusters = shared_sentences(digests)
    assert clusters["en", "de"] == clusters["de", "fr"] == clusters["fr", "cs"]
    assert clusters["en", "nl"] == clusters["en", "de"]
    assert clusters["cs", "fr"] != clusters["en", "de"]  # three is Czech there


def test_ratios_of_sentences_are_binomial():
    lines = made_lines(0, 400)
    ratios = {"off_target_lid": mean_statistics([100.0 * (n % 4 == 0) for n in range(400)])}
    item = DirectionStatistics.create(benchmark.TestSet(lines, lines), ratios)
    draws = resample_scores({EN_DE: item}, "off_target_lid")[EN_DE]
    assert draws.mean() == pytest.approx(25, abs=0.3)
    assert draws.std() == pytest.approx(100 * (0.25 * 0.75 / 400) ** 0.5, rel=0.1)


def test_directions_without_the_metric_are_left_out():
    lines = ["a b c d"]
    without = DirectionStatistics.create(benchmark.TestSet(lines, lines), {})
    draws = resample_scores({EN_DE: statistics_of(lines, lines), FR_DE: without}, "bleu", 10)
    assert list(draws) == [EN_DE]
