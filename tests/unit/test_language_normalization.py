"""Means over target languages on one scale, by references with injected errors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mnmt_jax.evaluation.benchmark import Benchmark, TestSet
from mnmt_jax.evaluation.comparison import direction_groups
from mnmt_jax.evaluation.evaluate import evaluate
from mnmt_jax.evaluation.evaluated_model import EvaluatedModel
from mnmt_jax.evaluation.language_normalization import (
    LanguageCalibrations,
    damage,
    normalized_mean,
    normalized_table,
)
from mnmt_jax.evaluation.metrics import corpus_scores
from mnmt_jax.evaluation.report import report_page
from mnmt_jax.evaluation.result_tables import leading_metrics
from mnmt_jax.evaluation.translations import TranslatedSentence
from tests.unit.made_benchmark import make_corpus
from tests.unit.made_results import made_result

WORDS = "der die das Hund Katze läuft schläft schnell langsam Haus Garten und oder heute".split()
REFERENCES = [" ".join(np.random.default_rng(n).choice(WORDS, 12)) for n in range(40)]
CHINESE = ["三小时前五公里半的路程很远", "德国希腊或埃及都是美丽的国家"] * 20


def test_more_errors_have_lower_scores():
    for references, target in ((REFERENCES, "de"), (CHINESE, "zh")):
        levels = [damage(references, target, errors) for errors in range(6)]
        assert levels[0] == list(references) and levels == [
            damage(references, target, errors) for errors in range(6)
        ]
        scores = [corpus_scores(level, references, target) for level in levels]
        for metric in ("bleu", "chrf"):
            values = [getattr(score, metric) for score in scores]
            assert values == sorted(values, reverse=True) and values[0] > values[5] + 15
    words = [text.split() for text in damage(REFERENCES, "de", 1)]
    assert {len(text) for text in words} == {11, 12, 13}  # omitted, replaced and added
    assert damage([""], "de", 3) == [""]


def test_errors_have_one_share_in_languages_of_long_and_of_short_words():
    short, long = (
        [" ".join(WORDS[n % 9 : n % 9 + 5] * repeats) for n in range(2000)] for repeats in (1, 4)
    )
    omitted = []
    for references, words in ((short, 5), (long, 20)):
        lengths = [len(text.split()) for text in damage(references, "de", 1)]
        omitted.append(np.mean([max(words - length, 0) for length in lengths]) / words)
    # A third of the errors are omissions; those at the end of a sentence are shorter.
    assert omitted == pytest.approx([0.06 / 3 * 5 / 6, 0.06 / 3 * 19.9 / 21], rel=0.2)


def test_calibrations_are_mean_and_deviation_and_computed_once():
    calls = []

    def score(texts, hypotheses):
        calls.append(hypotheses)
        return {"chrf": corpus_scores(hypotheses, texts.references, "de").chrf, "bleu": 7.0}

    texts, calibrations = TestSet(REFERENCES, REFERENCES), LanguageCalibrations()
    (metric,) = calibrations.of(("en", "de"), texts, score).items()
    scores = [
        corpus_scores(damage(REFERENCES, "de", errors), REFERENCES, "de").chrf
        for errors in range(6)
    ]
    assert metric == ("chrf", pytest.approx((np.mean(scores), np.std(scores))))
    assert calibrations.of(("fr", "de"), texts, score) == dict([metric]) and len(calls) == 6


def with_calibration(run, calibrate):
    items = [
        dataclasses.replace(item, calibration={"chrf": calibrate(item)}) for item in run.directions
    ]
    return dataclasses.replace(run, directions=tuple(items))


@pytest.fixture
def run():
    return made_result("run", ("en", "de", "fr"), seed=1)


def test_one_scale_for_all_languages_gives_the_raw_mean(run):
    (group, _) = direction_groups([with_calibration(run, lambda item: (50.0, 20.0))])
    assert normalized_mean(group, 0, "chrf") == pytest.approx(group.mean(0, "chrf").mean)
    assert normalized_mean(group, 0, "bleu") is None


def test_the_scale_of_a_language_does_not_matter(run):
    """Scores to German on another scale, with its calibration, give the same z."""
    means = {"en": 40.0, "de": 50.0, "fr": 60.0}

    def rescaled(item):
        chrf = item.chrf / 2 + 30 if item.target == "de" else item.chrf
        return dataclasses.replace(item, chrf=chrf)

    plain = with_calibration(run, lambda item: (means[item.target], 20.0))
    moved = dataclasses.replace(run, directions=tuple(map(rescaled, run.directions)))
    moved = with_calibration(
        moved,
        lambda item: (55.0, 10.0) if item.target == "de" else (means[item.target], 20.0),
    )
    values = []
    for result in (plain, moved):
        group = direction_groups([result])[1]
        items = list(group.items[0].values())
        centre, width = (np.mean([item.calibration["chrf"][n] for item in items]) for n in (0, 1))
        values.append((normalized_mean(group, 0, "chrf") - centre) / width)
    assert values[0] == pytest.approx(values[1])


def test_evaluations_that_are_compared_share_a_calibration(run):
    """The sentences that calibrate a language depend on the other directions of an evaluation."""
    first = with_calibration(run, lambda item: (40.0, 20.0 if item.target == "de" else 30.0))
    second = with_calibration(run, lambda item: (55.0, 10.0 if item.target == "de" else 25.0))
    for results in ((first, second), (run, first, second)):
        for group in direction_groups(results):
            means = [normalized_mean(group, number, "chrf") for number in range(len(results))]
            alone = direction_groups([first])
            assert set(means) == {
                normalized_mean(item, 0, "chrf") for item in alone if item.title == group.title
            }
            assert None not in means


def test_tables_have_raw_and_normalized_means(run):
    calibrated = with_calibration(run, lambda item: (50.0, 20.0))
    lines = normalized_table([calibrated], leading_metrics([calibrated])).splitlines()
    header = [cell.strip() for cell in lines[0].strip("|").split("|")]
    assert header[2:] == ["BLEU", "BLEU, normalized", "chrF++", "chrF++, normalized"]
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells[:2] == ["run", "supervised"] and cells[4] == cells[5] and cells[3] == "–"
    assert len(lines) == 4 and "Means across languages" in report_page([calibrated])
    assert normalized_table([run], leading_metrics([run])) == ""
    to_english = [item for item in calibrated.directions if item.target == "en"]
    single = dataclasses.replace(calibrated, directions=tuple(to_english))
    assert normalized_table([single], leading_metrics([single])) == ""
    assert "Means across languages" not in report_page([single])


def test_only_evaluations_of_several_target_languages_are_calibrated(tmp_path):
    def copies(lines, direction):
        return [TranslatedSentence(line) for line in lines]

    benchmark = Benchmark("phrases", make_corpus(), limit=3)
    model = EvaluatedModel("made", copies, None, {})
    for name, targets in (("one", {"en"}), ("two", {"en", "de"})):
        directions = [pair for pair in benchmark.directions if pair[1] in targets]
        result = evaluate(model, benchmark.only(directions), tmp_path / name)
        assert {item.target for item in result.directions} == targets
        assert all(bool(item.calibration) == (len(targets) > 1) for item in result.directions)
