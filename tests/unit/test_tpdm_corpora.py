"""TPDM's corpora: MultiUN and English-centric Europarl in their file formats."""

import itertools

import pytest

from mnmt_jax.data import corpus as corpus_module
from mnmt_jax.data.mixtures import MIXTURES, cache_task_sources, zero_shot_directions
from mnmt_jax.data.parallel_corpora import get_corpus
from mnmt_jax.data.published_corpora import PUBLISHED
from tests.unit import made_text
from tests.unit.test_published import lines, numbered, numbers, shuffled, write

UN, PARLIAMENT = ("en", "ar", "ru", "zh"), ("en", "de", "fr")
# OPUS orders the codes of a pair by the alphabet, and so does the UN's own release.
UN_FORMS = (
    "multiun/MultiUN.{pair}",
    "multiun/{pair}/MultiUN.{pair}",
    "multiun/{pair}/UNv1.0.{pair}",
)
PARLIAMENT_FORMS = (("", "", ""), ("training/", "dev/", "dev/"), ("", "wmt07/devtest/", ""))


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """The folder that MNMT_JAX_DATA names."""
    monkeypatch.setenv("MNMT_JAX_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def requested_counts(monkeypatch):
    """Record the numbers of pairs that corpora draw; they get three."""
    actual, draw = [], corpus_module._draw
    monkeypatch.setattr(
        corpus_module, "_draw", lambda count, drawn: actual.append(drawn) or draw(count, 3)
    )
    return actual


def united_nations(data, form, pairs=("ar-en", "en-ru", "en-zh")):
    for pair in pairs:
        numbered(data, ".", form.format(pair=pair), 12, pair.split("-"))
    for split, count in (("dev", 1003), ("test", 1002)):
        name = f"multiun/testsets/{split}set/UNv1.0.{split}set"
        numbered(data, ".", name, count, (*UN, "fr"))


@pytest.mark.parametrize("form", UN_FORMS)
def test_multiun_draws_two_million_pairs_for_both_directions(data, requested_counts, form):
    united_nations(data, form)
    corpus, mixture = get_corpus("multiun"), MIXTURES["multiun"]
    centric = {pair for code in UN[1:] for pair in (("en", code), (code, "en"))}
    assert set(mixture.directions) == centric == set(corpus.directions("train"))
    assert mixture.temperature == 1.0
    for code in UN[1:]:
        assert numbers(corpus, ("en", code)) == numbers(corpus, (code, "en"))
        assert numbers(corpus, (code, "en")) == sorted(shuffled(12, 3))
    assert set(requested_counts) == {2_000_000}


def test_multiun_holds_out_shared_lines_of_all_directions(data):
    united_nations(data, UN_FORMS[0])
    corpus, row = get_corpus("multiun"), PUBLISHED["multiun"]
    every = set(itertools.permutations(UN, 2))
    for split, count in (("validation", 1000), ("test", 1002)):
        assert set(corpus.directions(split)) == every
        assert {corpus.size(split, pair) for pair in every} == {count}
        others = zero_shot_directions(corpus, row.supervised, split)
        assert set(others) == set(itertools.permutations(UN[1:], 2)) == set(row.zero_shot)
    assert list(corpus.pairs("validation", ("zh", "ar")))[-1] == ("zh 999", "ar 999")
    sources = cache_task_sources(corpus, row.supervised, made_text.vocabulary())
    splits = {(task.source_lang, task.target_lang): len(task.splits) for task in sources}
    assert splits == {pair: 2 if "en" in pair else 1 for pair in every}


def test_opus_files_of_multiun_are_preferred(data):
    united_nations(data, UN_FORMS[2])
    united_nations(data, UN_FORMS[0], pairs=("en-zh",))
    files = get_corpus("multiun").files("train", ("zh", "en"))
    assert [file.rpartition("/")[2] for file in files] == ["MultiUN.en-zh.zh", "MultiUN.en-zh.en"]


@pytest.mark.parametrize("places", PARLIAMENT_FORMS)
def test_europarl_with_english_in_the_centre(data, places):
    train, validation, test = (f"europarl/{prefix}" for prefix in places)
    for pair in ("de-en", "fr-en"):
        numbered(data, train, f"europarl-v7.{pair}", 5, pair.split("-"))
    numbered(data, validation, "devtest2006", 2001, (*PARLIAMENT, "es"))
    numbered(data, test, "test2006", 2002, (*PARLIAMENT, "es"))
    corpus, row = get_corpus("europarl_centric"), PUBLISHED["europarl_centric"]
    centric = {("de", "en"), ("en", "de"), ("fr", "en"), ("en", "fr")}
    assert set(row.supervised) == centric == set(corpus.directions("train"))
    assert set(row.zero_shot) == {("de", "fr"), ("fr", "de")}
    assert {corpus.size("train", pair) for pair in centric} == {5}  # all of it
    for split in ("validation", "test"):
        assert set(corpus.directions(split)) == centric | set(row.zero_shot)
        assert {corpus.size(split, pair) for pair in corpus.directions(split)} == {2000}
    assert list(corpus.pairs("test", ("fr", "de")))[-1] == ("fr 1999", "de 1999")


def test_the_europarl_corpora_of_both_papers_share_a_folder(data):
    """The files of MMCR4NLP and of statmt.org are not confused."""
    write(data, europarl__train_dot_de=lines("Ja"), europarl__train_dot_it=lines("Sì"))
    numbered(data, "europarl", "europarl-v7.de-en", 5, ("de", "en"))
    assert list(get_corpus("europarl_triangle").pairs("train", ("de", "it"))) == [("Ja", "Sì")]
    corpus = get_corpus("europarl_centric")
    assert corpus.splits() == ("train",) and corpus.size("train", ("de", "en")) == 5
