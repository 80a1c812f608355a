"""Benchmarks: their sentences, the choice of directions, and the samples that reports show."""

import pytest

from mnmt_jax.commands.evaluate import _listed
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark, choose_directions, find_corpus
from mnmt_jax.evaluation.scoring import SAMPLE_DIRECTIONS, sampled_directions
from mnmt_jax.vocabulary.languages import (
    MITRE_LANGUAGES,
    english_centric_directions,
    many_to_many_directions,
)
from tests.unit.made_benchmark import LANGUAGES, SUPERVISED, make_corpus


@pytest.fixture(scope="module")
def corpus():
    return make_corpus()


def test_candidates_widen_the_exact_detector(corpus):
    benchmark = Benchmark("phrases", corpus, candidates=("en", "ja", "zu"))
    assert benchmark.nearest.languages == (*LANGUAGES, "ja")
    assert len(benchmark.directions) == 12


def test_choosing_directions():
    pairs = many_to_many_directions(LANGUAGES)
    assert choose_directions(pairs, "all", None) == pairs
    assert set(choose_directions(pairs, "supervised", SUPERVISED)) == SUPERVISED
    assert len(choose_directions(pairs, "zero_shot", SUPERVISED)) == 6
    with pytest.raises(UserError, match="does not record its training directions"):
        choose_directions(pairs, "supervised", None)
    with pytest.raises(UserError, match="must be one of all, supervised, zero_shot"):
        choose_directions(pairs, "some", SUPERVISED)
    with pytest.raises(UserError, match="no such direction"):
        choose_directions(pairs, "zero_shot", set(pairs))


def test_unknown_task_and_missing_languages(corpus):
    with pytest.raises(
        UserError,
        match="no such corpus or mixture; for files of your own add --parallel.* are cldr",
    ):
        find_corpus("nothing")
    actual, languages = find_corpus("cldr_quickstart")
    assert languages == LANGUAGES == actual.languages
    with pytest.raises(UserError, match="no direction has a test split"):
        Benchmark("phrases", corpus, languages=("en", "ja"))


def test_samples_come_from_few_directions_of_all_kinds():
    pairs = many_to_many_directions(MITRE_LANGUAGES)
    supervised = set(english_centric_directions(MITRE_LANGUAGES))
    chosen = sampled_directions(pairs, supervised)
    assert len(chosen) == SAMPLE_DIRECTIONS
    assert 0 < len(chosen & supervised) < len(chosen - supervised)
    assert sampled_directions(pairs[:5], None) == set(pairs[:5])


def test_directions_can_be_listed():
    benchmark = Benchmark("cldr_quickstart", find_corpus("cldr_quickstart")[0], limit=2)
    existing, which = _listed(benchmark, "fra-de,de-cs")
    assert existing.directions == (("fr", "de"), ("de", "cs")) and which == "all"
    assert _listed(benchmark, "zero_shot") == (benchmark, "zero_shot")
    with pytest.raises(UserError, match="'nl', which is not among en de fr cs; or write all, sup"):
        _listed(benchmark, "de-nl")
    with pytest.raises(UserError, match="task 'cldr_quickstart' has no fr-de; it has de-cs"):
        _listed(benchmark.only([("de", "cs"), ("fr", "cs"), ("de", "fr")]), "fr-de")
