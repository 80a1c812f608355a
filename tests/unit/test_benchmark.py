"""Benchmarks: their sentences, the choice of directions, and the samples that reports show."""

import itertools
from pathlib import Path

import pytest

from mnmt_jax.commands.evaluate import _listed
from mnmt_jax.data.parallel_corpora import ParallelFiles
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


def _write_pairs(folder: Path, code: str, pairs: list[tuple[str, str]]) -> None:
    for language, column in zip(("en", code), zip(*pairs, strict=True), strict=True):
        (folder / f"test.en-{code}.{language}").write_text("".join(f"{t}\n" for t in column))


def test_common_sentences_are_aligned_by_their_english(tmp_path):
    """As the sentences of Figures 1b and 4 of the two-stage paper."""
    _write_pairs(tmp_path, "de", [("A", "a1"), ("B", "b1"), ("C", "c1"), ("A", "a2")])
    _write_pairs(tmp_path, "fr", [("C", "c3"), ("X", "x3"), ("A", "a3")])
    _write_pairs(tmp_path, "it", [("A", "a4"), ("C", "c4"), ("B", "b4")])
    corpus = ParallelFiles(
        "made", f"{tmp_path}/{{split}}.{{pair}}.{{language}}", ("en", "de", "fr", "it")
    )
    benchmark = Benchmark("made", corpus, limit=1)
    common = benchmark.common_to(("de", "fr", "it"))
    assert common.directions == tuple(itertools.permutations(("de", "fr", "it"), 2))
    assert common.texts(("fr", "it")).sources == ["a3"]  # the limit is of common sentences
    every = Benchmark("made", corpus).common_to(("it", "de", "fr"))
    texts = every.texts(("de", "fr"))
    assert list(zip(texts.sources, texts.references, strict=True)) == [("a1", "a3"), ("c1", "c3")]
    assert [every.number(pair) for pair in every.directions] == list(range(6))
    two = Benchmark("made", corpus).common_to(("de", "it"))
    assert two.texts(("it", "de")).references == ["a1", "b1", "c1"]
    with pytest.raises(UserError, match="'nl' has no test sentences with English"):
        benchmark.common_to(("de", "nl"))
    _write_pairs(tmp_path, "it", [("Y", "y4")])
    with pytest.raises(UserError, match="no test sentence is common to de, it"):
        benchmark.common_to(("de", "it"))


def test_common_sentences_are_aligned_by_a_variety_of_english(tmp_path):
    for code in ("en_GB", "de", "fr"):
        (tmp_path / f"test.{code}").write_text(f"A {code}\n")
    corpus = ParallelFiles("made", f"{tmp_path}/{{split}}.{{language}}", ("en_GB", "de", "fr"))
    british = Benchmark("made", corpus).common_to(("de", "fr"))
    assert british.texts(("fr", "de")).sources == ["A fr"]
