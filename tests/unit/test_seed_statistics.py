"""Statistics over seeds against formulas and counts written out."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.result_tables import group_mean
from mnmt_jax.evaluation.seed_statistics import (
    compare_means,
    explain_seeds,
    group_by_seed,
    seed_notes,
    seed_table,
    summarize_scores,
)
from tests.unit.made_results import made_result

FIRST, SECOND = [59.1, 55.0, 61.8, 60.2, 58.4], [64.0, 60.0, 70.5, 66.1, 62.0]


def test_the_spread_has_the_sample_variance():
    actual = summarize_scores(FIRST)
    assert (actual.count, actual.low, actual.high) == (5, 55.0, 61.8)
    assert actual.mean == pytest.approx(np.mean(FIRST))
    assert actual.variance == pytest.approx(np.var(FIRST, ddof=1))
    assert summarize_scores([1.0]).variance is None
    with pytest.raises(UserError, match="no score"):
        summarize_scores([])


def test_the_interval_is_welchs():
    """Of equal variances and sizes: 8 degrees of freedom, whose quantile is 2.306."""
    shifted = [score + 4.0 for score in FIRST]
    actual = compare_means(FIRST, shifted)
    half = 2.306 * np.sqrt(2 * np.var(FIRST, ddof=1) / 5)
    assert actual.mean == pytest.approx(-4.0)
    assert (actual.low, actual.high) == pytest.approx((-4.0 - half, -4.0 + half), abs=1e-3)
    unequal = compare_means(FIRST, SECOND)
    assert unequal.high - unequal.mean > half and unequal.low < -10 < unequal.high < 0
    assert compare_means([1.0, 1.0], [3.0, 3.0]).low == -2.0


def test_p_counts_all_divisions_of_the_scores():
    pooled, size = [*FIRST, *SECOND], 5
    sums = [sum(chosen) for chosen in itertools.combinations(pooled, size)]
    middle = sum(pooled) / 2
    extreme = [abs(total - middle) >= abs(sum(FIRST) - middle) - 1e-9 for total in sums]
    assert compare_means(FIRST, SECOND).p == pytest.approx(np.mean(extreme))
    assert compare_means([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]).p == pytest.approx(0.1)
    assert compare_means([1.0, 2.0], [1.0, 2.0]).p == 1.0
    assert compare_means(list(range(30)), list(range(30))).p is None


@pytest.mark.filterwarnings("error")
def test_constant_scores_have_an_interval_of_the_others_spread():
    """With one constant system the degrees of freedom are those of the other: 4, 2.776."""
    actual = compare_means([57.3] * 3, FIRST)
    half = 2.776 * np.sqrt(np.var(FIRST, ddof=1) / 5)
    assert actual.high - actual.mean == pytest.approx(half, rel=1e-3)
    assert actual.mean - actual.low == pytest.approx(half, rel=1e-3)
    equal = compare_means([57.3] * 3, [57.3] * 3)
    assert (equal.mean, equal.low, equal.high, equal.p) == (0.0, 0.0, 0.0, 1.0)


def test_p_of_unequal_numbers_of_seeds_is_of_the_absolute_difference():
    """Of the 56 divisions of 3 and 5 scores; the smaller tail doubled would be another number."""
    first, second = FIRST[:3], SECOND
    pooled, extreme = [*first, *second], 0
    for numbers in itertools.combinations(range(8), 3):
        others = [pooled[n] for n in range(8) if n not in numbers]
        gap = np.mean([pooled[n] for n in numbers]) - np.mean(others)
        extreme += abs(gap) >= abs(np.mean(first) - np.mean(second)) - 1e-9
    assert compare_means(first, second).p == pytest.approx(extreme / 56)
    assert compare_means(second, first).p == pytest.approx(extreme / 56)
    assert compare_means([10.0, 10.1, 10.2], [0, 1, 1, 1, 1]).p == pytest.approx(1 / 56)

    groups = {"base": ["base"] * 3, "cut": ["cut"] * 5}
    assert "at least 0.018 with" in explain_seeds(groups)
    groups["cut"] = ["cut"] * 3
    assert "at least 0.1 with" in explain_seeds(groups)


def test_one_seed_has_no_interval():
    actual = compare_means([3.0], [1.0])
    assert (actual.mean, actual.low, actual.high, actual.p) == (2.0, None, None, None)


def seed_result(name, seed, dropout=0.1, level=60.0):
    result = made_result(name, ("en", "de", "fr"), seed=seed, zero_shot=level)
    config = {"model": {"dropout": dropout}, "train": {"steps": 10, "seed": seed}}
    return dataclasses.replace(result, config=config)


def test_runs_with_different_seeds_are_one_system():
    results = [
        seed_result("base_2", 2),
        seed_result("cut_1", 1, 0.3),
        seed_result("base_1", 1),
        seed_result("cut_12", 12, 0.3),
    ]
    groups = group_by_seed(results)
    names = {name: [result.name for result in group] for name, group in groups.items()}
    assert names == {"base": ["base_1", "base_2"], "cut": ["cut_1", "cut_12"]}
    with pytest.raises(UserError, match="base_1, again: evaluations of one configuration and seed"):
        group_by_seed([seed_result("base_1", 1), seed_result("again", 1)])


def test_imported_models_are_systems_of_their_own():
    """Their configuration has the default seed, which says nothing about their training."""
    results = [with_cache(seed_result(name, 1), "") for name in ("released_1", "released_2")]
    groups = group_by_seed([*results, seed_result("base_1", 1), seed_result("base_2", 2)])
    assert [*groups] == ["released_1", "released_2", "base"]


def with_cache(result, path):
    config = {**result.config, "data": {"cache": path, "shards": 4}}
    return dataclasses.replace(result, config=config)


def test_seeds_may_have_a_cache_each():
    """A student's cache is that of its teacher, often of the same seed."""
    base = [with_cache(seed_result(f"base_{n}", n), "runs/v1/cache") for n in (1, 2)]
    students = [with_cache(seed_result(f"student_{n}", n), f"d/seed{n}/cache") for n in (1, 2, 12)]
    groups = group_by_seed([*base, *students])
    assert {name: len(group) for name, group in groups.items()} == {"base": 2, "student": 3}
    assert seed_notes(groups) == []
    other = [
        with_cache(seed_result(f"other_{n}", n), f"d/{name}") for n, name in ((1, "a"), (2, "b"))
    ]
    groups = group_by_seed([*base, *other])
    assert [*groups] == ["base", "other_1", "other_2"]
    assert seed_notes(groups) == [
        "other_1, other_2 are not seeds of one system: they differ in data.cache."
    ]
    rows = {"first": [seed_result("seed1", 1)], "second": [seed_result("seed1", 1, 0.3)]}
    assert seed_notes(rows) == []  # other names than those of runs
    twice = [*base, seed_result("third", 3), seed_result("base_9", 2)]
    twice[-1] = with_cache(twice[-1], "runs/v1/cache")
    with pytest.raises(UserError, match="^base_2, base_9: evaluations of one configuration"):
        group_by_seed(twice)


def test_a_digit_of_a_path_that_is_a_seed_separates_nothing():
    """The 1 of `v1` is the seed of the first run alone."""
    runs = [with_cache(seed_result(f"one_{n}", n), f"runs/v1/d/seed{n}/cache") for n in (1, 2, 3)]
    assert {name: len(group) for name, group in group_by_seed(runs).items()} == {"one": 3}
    other = with_cache(seed_result("one_4", 4), "runs/v4/d/seed4/cache")
    assert len(group_by_seed([*runs[1:], other])) == 2


def with_checkpoint(result, checkpoint):
    decoding = {**result.decoding, "checkpoint": checkpoint}
    return dataclasses.replace(result, decoding=decoding)


def test_choices_of_a_checkpoint_are_not_mixed():
    best, average = (
        [with_checkpoint(seed_result(f"base_{n}", n), f"{choice}, step {n}000") for n in (1, 2)]
        for choice in ("best", "average")
    )
    groups = group_by_seed([*best, *average])
    assert groups == {"base": best, "base (average)": average}
    apart = group_by_seed([best[0], average[1]])
    assert seed_notes(apart) == [
        "base_1, base_2 are not seeds of one system: they differ in checkpoint."
    ]


def test_other_numbers_of_updates_are_noted():
    steps = [with_checkpoint(seed_result(f"base_{n}", n), f"step {n}000") for n in (1, 2)]
    groups = group_by_seed(steps)
    assert [*groups] == ["base"]
    assert seed_notes(groups) == [
        "base: the seeds have different numbers of updates (step 1000, step 2000)."
    ]
    equal = [with_checkpoint(result, "step 9") for result in steps]
    assert seed_notes(group_by_seed(equal)) == []
    twice = [steps[0], with_checkpoint(steps[0], "step 9")]
    with pytest.raises(UserError, match="once, or compare step 1000, step 9 without --by_seed$"):
        group_by_seed(twice)


def with_settings(result, overrides, **settings):
    config = {**result.config, "data": {"tasks": ("a", "b")}, "decode": settings}
    return dataclasses.replace(result, config=config, decoding_overrides=overrides)


def test_the_batch_of_the_search_separates_nothing():
    runs = [
        with_settings(seed_result("base_1", 1), {"batch": 16}, batch=16, beam_size=5),
        with_settings(seed_result("base_2", 2), {}, batch=32, beam_size=5),
        with_settings(seed_result("base_3", 3), {"beam_size": 4}, batch=8, beam_size=4),
    ]
    groups = group_by_seed(runs)
    assert [len(group) for group in groups.values()] == [2, 1]
    assert seed_notes(group_by_seed([runs[0], runs[2]])) == [
        "base_1, base_3 are not seeds of one system: they differ in decode.beam_size."
    ]


def test_translations_of_other_systems_stand_beside_seeds():
    """They have neither a configuration nor known training directions."""
    seeds = [seed_result(f"base_{seed}", seed) for seed in (1, 2, 3)]
    outside = [
        dataclasses.replace(made_outside(name, level), config={})
        for name, level in (("gpt", 90.0), ("nllb", 80.0))
    ]
    groups = group_by_seed([*seeds, *outside])
    assert [*groups] == ["base", "gpt", "nllb"]
    rows = cells(seed_table(groups))
    (base, gpt, nllb) = [row for row in rows if row[1:3] == ["zero-shot", "BLEU"]]
    assert base[3] == "3" and gpt[3] == nllb[3] == "1"
    assert gpt[7].startswith("+") and gpt[8] == "–"
    assert gpt[5] == "–" and " to " in base[5]


def made_outside(name, level):
    result = made_result(name, ("en", "de", "fr"), seed=7, zero_shot=level)
    items = tuple(dataclasses.replace(item, supervised=None) for item in result.directions)
    return dataclasses.replace(result, directions=items)


def cells(table):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def test_all_means_are_over_the_same_directions_and_sentences():
    """A system that was evaluated on fewer directions, and with another limit in one of them."""
    base = [seed_result(f"base_{seed}", seed) for seed in (1, 2)]
    cut = [seed_result(f"cut_{seed}", seed, 0.3, 90.0) for seed in (1, 2)]
    cut = [
        dataclasses.replace(
            result,
            directions=tuple(
                dataclasses.replace(item, sentences=50 if item.target == "fr" else 200)
                for item in result.directions
                if item.direction != ("de", "en")
            ),
        )
        for result in cut
    ]
    rows = cells(seed_table(group_by_seed([*base, *cut])))
    supervised = [row for row in rows if row[1:3] == ["supervised", "BLEU"]]
    pairs = [("en", "de"), ("fr", "en")]
    expected = [[mean_of(result, pairs) for result in group] for group in (base, cut)]
    assert [row[4] for row in supervised] == [f"{np.mean(values):.2f}" for values in expected]
    assert supervised[1][7].startswith(f"{compare_means(expected[1], expected[0]).mean:+.2f}")


def mean_of(result, pairs):
    return np.mean([item.bleu for item in result.directions if item.direction in pairs])


def test_without_common_sentences_there_are_no_differences():
    base = [seed_result(f"base_{seed}", seed) for seed in (1, 2)]
    other = [
        dataclasses.replace(
            result,
            directions=tuple(dataclasses.replace(i, sentences=9) for i in result.directions),
        )
        for result in (seed_result(f"cut_{seed}", seed, 0.3, 90.0) for seed in (1, 2))
    ]
    rows = cells(seed_table(group_by_seed([*base, *other])))[2:]
    assert len(rows) == 16 and all(row[7:] == ["–", "–"] for row in rows)


def test_directions_of_unknown_training_are_one_group():
    unknown = [
        dataclasses.replace(
            made_outside(f"imported_{seed}", 60.0 + seed), config={"train": {"seed": seed}}
        )
        for seed in (1, 2)
    ]
    rows = cells(seed_table(group_by_seed(unknown)))[2:]
    assert rows and {row[1] for row in rows} == {"all"} and rows[0][3] == "2"


def test_the_table_compares_each_system_with_the_first():
    base = [seed_result(f"base_{seed}", seed) for seed in (1, 2, 3)]
    better = [seed_result(f"cut_{seed}", seed, 0.3, 90.0) for seed in (1, 2, 3)]
    lines = seed_table(group_by_seed([*base, *better])).splitlines()
    (first, second) = (
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in lines
        if "zero-shot" in line and " BLEU " in line
    )
    means = [[group_mean(r, "bleu", "zero_shot").mean for r in group] for group in (base, better)]
    assert first[:5] == ["base", "zero-shot", "BLEU", "3", f"{np.mean(means[0]):.2f}"]
    assert first[7:] == ["–", "–"]
    gap = compare_means(means[1], means[0])
    assert second[6] == f"{np.var(means[1], ddof=1):.3f}"
    assert second[7] == f"{gap.mean:+.2f} ({gap.low:+.1f} to {gap.high:+.1f})"
    assert second[8] == f"{gap.p:.3f}"
