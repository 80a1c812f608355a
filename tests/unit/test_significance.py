"""Intervals and paired tests against sacreBLEU's, on generated translations."""

from __future__ import annotations

import dataclasses
import random
import re

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest, Result

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import TestSet
from mnmt_jax.evaluation.comparison import direction_groups
from mnmt_jax.evaluation.metrics import corpus_scores
from mnmt_jax.evaluation.report import report_page
from mnmt_jax.evaluation.result import DirectionResult, read_result, write_result
from mnmt_jax.evaluation.result_tables import comparison_table, result_page
from mnmt_jax.evaluation.sentence_statistics import (
    DirectionStatistics,
    check_statistics,
    mean_statistics,
    read_statistics,
    score_of,
    write_statistics,
)
from mnmt_jax.evaluation.significance import (
    SentenceSignificance,
    direction_difference,
    direction_intervals,
)
from mnmt_jax.evaluation.significance_tables import difference_table
from tests.unit.made_results import made_result
from tests.unit.test_paired_bootstrap import WORDS, damaged

DRAW = random.Random(0)
REFERENCES = [" ".join(DRAW.choices(WORDS, k=12)) for _ in range(60)]
PAIRS = (("en", "de"), ("fr", "de"))
SAMPLES = 200
METRICS = {"bleu": BLEU(force=True), "chrf": CHRF(word_order=2)}


def scored(hypotheses, references=REFERENCES, sources=None):
    """Return the scores and statistics of hypotheses in German."""
    scores = corpus_scores(hypotheses, references, "de")
    texts = TestSet(sources or references, references)
    exact = mean_statistics([100 * (h == r) for h, r in zip(hypotheses, references, strict=True)])
    statistics = {**scores.statistics, "exact_match": exact}
    return scores, DirectionStatistics.create(texts, statistics)


def made(name, hypotheses_by_pair):
    """Return a result with the scores of hypotheses, and their statistics."""
    base, directions, statistics = made_result(name, ("en", "de", "fr"), seed=1), [], {}
    for pair, hypotheses in hypotheses_by_pair.items():
        scores, statistics[pair] = scored(hypotheses)
        directions.append(
            DirectionResult(
                *pair,
                supervised=True,
                sentences=60,
                bleu=scores.bleu,
                chrf=scores.chrf,
                exact_match=scores.exact_match,
                off_target_nearest=None,
                off_target_lid=1.0,
                off_target_lid_reference=None,
            )
        )
    return dataclasses.replace(base, directions=tuple(directions)), statistics


@pytest.fixture(scope="module")
def systems():
    worse = {pair: damaged(REFERENCES, 0.5, n) for n, pair in enumerate(PAIRS)}
    better = {pair: damaged(REFERENCES, 0.45, n + 5) for n, pair in enumerate(PAIRS)}
    return made("worse", worse), made("better", better), worse, better


def test_scores_of_sums_are_those_of_the_corpus(systems):
    (result, statistics), *_ = systems
    for item in result.directions:
        for metric in ("bleu", "chrf", "exact_match"):
            values = statistics[item.direction].metrics[metric]
            assert score_of(metric, values) == pytest.approx(getattr(item, metric), abs=1e-9)


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_tests_of_one_direction_are_those_of_sacrebleu(systems, metric):
    (first, one), (second, other), worse, better = systems
    pair = PAIRS[0]
    results = [dataclasses.replace(r, directions=r.directions[:1]) for r in (first, second)]
    significance = SentenceSignificance(results, [one, other], SAMPLES)
    (group,) = direction_groups(results)
    difference = significance.difference(group, 1, metric)
    texts = [("Baseline: first", worse[pair]), ("second", better[pair])]
    expected = []
    for kind in ("bs", "ar"):
        test = PairedTest(
            texts, {metric: METRICS[metric]}, [REFERENCES], test_type=kind, n_samples=SAMPLES
        )
        _, scores = test()
        (column,) = [value for key, value in scores.items() if key != "System"]
        expected.append([score for score in column if isinstance(score, Result)])
    assert difference.mean == pytest.approx(expected[0][1].score - expected[0][0].score)
    assert difference.p_bootstrap == pytest.approx(expected[0][1].p_value)
    assert difference.p_randomization == pytest.approx(expected[1][1].p_value)
    assert 0 < difference.p_randomization < 0.5  # neither certain nor impossible
    assert difference.interval[0] < difference.mean < difference.interval[1]
    low, high = significance.interval(group, 1, metric)
    assert (high - low) / 2 == pytest.approx(expected[0][1].ci, rel=0.1)
    assert direction_intervals(other[pair], SAMPLES)[metric] == pytest.approx((low, high))


def test_directions_that_share_sentences_are_resampled_together(systems):
    """The mean of two copies of a direction varies as the direction, not by a factor less."""
    (_, one), _, worse, _ = systems
    result, copies = made("copies", dict.fromkeys(PAIRS, worse[PAIRS[0]]))
    (group,) = direction_groups([result])
    together = SentenceSignificance([result], [copies], SAMPLES).interval(group, 0, "chrf")
    assert together == pytest.approx(direction_intervals(one[PAIRS[0]], SAMPLES)["chrf"])
    apart = {
        pair: dataclasses.replace(item, source_hash=str(n), reference_hash=str(n))
        for n, (pair, item) in enumerate(copies.items())
    }
    alone = SentenceSignificance([result], [apart], SAMPLES).interval(group, 0, "chrf")
    assert alone[1] - alone[0] == pytest.approx((together[1] - together[0]) / 2**0.5, rel=0.2)


def test_equal_systems_do_not_differ(systems):
    (first, one), *_ = systems
    (group,) = direction_groups([first, first])
    difference = SentenceSignificance([first, first], [one, one], SAMPLES).difference(
        group, 1, "bleu"
    )
    assert (difference.mean, difference.interval) == (0, (0, 0))
    assert (difference.p_bootstrap, difference.p_randomization) == (1, 1)


def test_a_ratio_of_two_sentences_is_no_evidence():
    """Both are exact in one system alone: half of the exchanges are as extreme."""
    one = {PAIRS[0]: scored([*REFERENCES[:2], *["x"] * 58])[1]}
    other = {PAIRS[0]: scored(["x"] * 60)[1]}
    (first, _), (second, _) = (made(name, {PAIRS[0]: ["x"] * 60}) for name in ("one", "other"))
    significance = SentenceSignificance([first, second], [one, other], 1000)
    (group,) = direction_groups([first, second])
    difference = significance.difference(group, 1, "exact_match")
    assert difference.mean == pytest.approx(-100 / 30)
    assert difference.p_randomization == pytest.approx(0.5, abs=0.05)


def test_exact_matches_have_the_binomial_interval():
    hypotheses = [*REFERENCES[:30], *["x"] * 30]
    _, statistics = scored(hypotheses)
    low, high = direction_intervals(statistics)["exact_match"]
    half = 1.96 * 100 * np.sqrt(0.25 / 60)
    assert (low, high) == pytest.approx((50 - half, 50 + half), abs=2)


def test_tables_and_pages_have_intervals_and_tests(systems, tmp_path):
    (first, one), (second, other), *_ = systems
    results = [first, second]
    significance = SentenceSignificance(results, [one, other], SAMPLES)
    (group,) = direction_groups(results)
    low, high = significance.interval(group, 0, "bleu")
    cell = f"{group.mean(0, 'bleu').mean:.1f} ±{(high - low) / 2:.1f}"
    assert cell in comparison_table(results, significance=significance)
    difference = significance.difference(group, 1, "chrf")
    table = difference_table(results, ["chrf"], significance)
    *_, last, _, explanation = table.splitlines()
    assert "p are at least 0." in explanation and "not corrected" in explanation
    assert "200 resamples of the sentences, seed 12345." in explanation
    row = [text.strip() for text in last.strip("|").split("|")]
    low_change, high_change = difference.interval
    change = f"{difference.mean:+.1f} ({low_change:+.1f} to {high_change:+.1f})"
    assert row[:4] == ["better", "supervised", "chrF++ ↑", change]
    assert row[-2:] == [f"{difference.p_bootstrap:.3f}", f"{difference.p_randomization:.3f}"]
    page = report_page(results, significance=significance)
    assert f"±{(high - low) / 2:.1f}</span>" in page and "Differences to worse" in page
    assert "Differences to" not in report_page(results)
    assert difference_table(results, ["chrf"], significance, [1]) == ""
    assert difference_table(results, ["chrf"], significance, [0]) == ""
    assert "Differences to" not in report_page(results, significance=significance, compared=[1])
    item = dataclasses.replace(first.directions[0], intervals={"bleu": (low, high)})
    write_result(dataclasses.replace(first, directions=(item,)), tmp_path / "scores.json")
    read = read_result(tmp_path)
    assert read.directions[0].intervals == {"bleu": (low, high)}
    assert f"±{(high - low) / 2:.1f}" in result_page(read)


def test_differences_that_round_to_zero_have_a_plus(systems, monkeypatch):
    results, statistics = zip(*systems[:2], strict=True)
    significance = SentenceSignificance(results, statistics, SAMPLES)
    (group,) = direction_groups(results)
    difference = significance.difference(group, 1, "chrf")
    small = dataclasses.replace(difference, mean=-0.01, interval=(-0.04, -0.0))
    monkeypatch.setattr(significance, "difference", lambda *_: small)
    table = difference_table(results, ["chrf"], significance)
    assert "| +0.0 (+0.0 to +0.0) |" in " ".join(table.split())


def test_the_best_systems_are_those_not_shown_to_be_worse():
    systems = [
        made(name, {pair: damaged(REFERENCES, noise, 10 * n + m) for m, pair in enumerate(PAIRS)})
        for n, (name, noise) in enumerate((("worse", 0.5), ("good", 0.2), ("as_good", 0.2)))
    ]
    results = [result for result, _ in systems]
    significance = SentenceSignificance(results, [one for _, one in systems], SAMPLES)
    (group,) = direction_groups(results)
    worse, *good = (f"{group.mean(number, 'bleu').mean:.1f}" for number in range(3))
    assert good[0] != good[1]
    assert significance.is_tie(group, "bleu", (1, 2)) and not significance.is_tie(
        group, "bleu", (0, 1)
    )
    apart = dataclasses.replace(group, comparable=False)
    assert not significance.is_tie(apart, "bleu", (1, 2))
    bold = re.compile(r'<td class="best">([\d.]+)')
    best = bold.findall(report_page(results, significance=significance))
    assert {*good} <= {*best} and worse not in best
    assert len({*good} & {*bold.findall(report_page(results))}) == 1


def test_statistics_are_kept_with_the_evaluation(systems, tmp_path):
    (first, one), (second, other), *_ = systems
    write_statistics(tmp_path, one)
    kept = read_statistics(tmp_path, first.directions)
    for pair, item in one.items():
        assert kept[pair].source_hash == item.source_hash
        for metric, values in item.metrics.items():
            np.testing.assert_array_equal(kept[pair].metrics[metric], values)
    assert set(read_statistics(tmp_path, second.directions)[PAIRS[0]].metrics) == {"exact_match"}
    check_statistics(tmp_path)
    write_statistics(tmp_path, {PAIRS[1]: one[PAIRS[1]]})
    assert set(read_statistics(tmp_path, first.directions)) == {PAIRS[1]}
    results = [first, second]
    significance = SentenceSignificance.read(results, [tmp_path, tmp_path / "none"], SAMPLES)
    assert "No intervals and tests of worse, better: the folder lacks" in significance.notes[0]
    assert difference_table(results, [], significance) == ""
    (tmp_path / "statistics" / "x.npz").write_bytes(b"x")
    with pytest.raises(UserError, match="x.npz: already exists and was not written by"):
        check_statistics(tmp_path)


def test_exchanges_of_a_group_are_those_of_its_mean():
    """Directions with the same sentences are exchanged together, others by themselves."""
    (first, one), (second, other) = (
        made(name, dict.fromkeys(PAIRS, damaged(REFERENCES, noise, seed)))
        for name, noise, seed in (("one", 0.5, 0), ("other", 0.45, 5))
    )
    (group,) = direction_groups([first, second])
    of_one = direction_difference(
        "chrf", *(of[PAIRS[0]].metrics["chrf"] for of in (one, other)), SAMPLES
    )
    together = SentenceSignificance([first, second], [one, other], SAMPLES)
    difference = together.difference(group, 1, "chrf")
    assert difference.p_randomization == pytest.approx(of_one.p_randomization)
    apart = [
        {
            pair: dataclasses.replace(item, source_hash=str(n), reference_hash=str(n))
            for n, (pair, item) in enumerate(statistics.items())
        }
        for statistics in (one, other)
    ]
    separate = SentenceSignificance([first, second], apart, SAMPLES)
    wide, narrow = (np.std(of._exchanged(1, PAIRS, "chrf")) for of in (together, separate))
    assert narrow == pytest.approx(wide / len(PAIRS) ** 0.5, rel=0.2)


def test_directions_of_one_system_alone_do_not_unpair_the_samples():
    pair, alone = PAIRS[0], ("de", "en")
    texts = {pair: damaged(REFERENCES, 0.5, 0)}
    first, one = made("first", texts)
    second, other = made("second", {pair: damaged(REFERENCES, 0.45, 5)})
    more, of_more = made("first", {alone: damaged(REFERENCES, 0.5, 3)} | texts)
    of_more[alone] = dataclasses.replace(of_more[alone], source_hash="x", reference_hash="y")
    differences = []
    for result, statistics in ((first, one), (more, of_more)):
        (group,) = direction_groups([result, second])
        significance = SentenceSignificance([result, second], [statistics, other], SAMPLES)
        differences.append(significance.difference(group, 1, "chrf"))
    assert differences[0] == differences[1]
