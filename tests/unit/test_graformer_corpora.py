"""Graformer's corpora: talks in 30 languages, WMT14, News-Crawl, and the mixtures of its tables."""

import gzip

import pytest

from mnmt_jax.data.mixtures import MIXTURES, cache_task_sources, check_training_text
from mnmt_jax.data.parallel_corpora import get_corpus
from mnmt_jax.data.published_corpora import PUBLISHED
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.languages import NEWSCRAWL_LANGUAGES
from tests.made_pages import TED_HEADER, talk
from tests.run_commands import command
from tests.unit import made_text
from tests.unit.test_published import lines, numbered, write


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """The folder that MNMT_JAX_DATA names."""
    monkeypatch.setenv("MNMT_JAX_DATA", str(tmp_path))
    return tmp_path


# Table 11 of Graformer's appendix, in the order of its columns.
TED30 = "bg bn bs cs de el es et fa fi fr hi hr hu it ja kk lt mk mr nl pl pt ro ru sr ta tr uk zh"


def test_ted30_has_sixty_directions_and_european_portuguese(data):
    rows = [
        talk(en="Of Portugal .", pt="De Portugal .", kk="Португалия ."),
        talk(en="Of Brazil .", **{"pt-br": "Do Brasil .", "zh-tw": "巴西 。"}),
        talk(en="Of China .", zh="中国 。"),
    ]
    for split in ("train", "dev", "test"):
        write(data, **{f"ted19__all_talks_{split}_dot_tsv": lines("\t".join(TED_HEADER), *rows)})
    corpus, mixture = get_corpus("ted30"), MIXTURES["ted30"]
    others = TED30.split()
    assert set(mixture.directions) == {p for c in others for p in (("en", c), (c, "en"))}
    assert (mixture.temperature, mixture.zero_shot) == (5.0, ())
    assert list(corpus.pairs("train", ("pt", "en"))) == [("De Portugal .", "Of Portugal .")]
    assert list(corpus.pairs("test", ("en", "zh"))) == [("Of China .", "中国 。")]
    assert corpus.size("validation", ("kk", "pt")) == 1
    assert PUBLISHED["ted30"].zero_shot == ()


def test_wmt14_has_a_folder_for_each_pair(data):
    for pair, words in (("en-de", ("newstest2013", "newstest2014")), ("fr-en", ("valid", "test"))):
        for name, count in zip(("train", *words), (5, 2, 3), strict=True):
            numbered(data, f"wmt14/{pair}", name, count, pair.split("-"))
    corpus = get_corpus("wmt14")
    both = {("en", "de"), ("de", "en"), ("en", "fr"), ("fr", "en")}
    for split, count in zip(("train", "validation", "test"), (5, 2, 3), strict=True):
        assert set(corpus.directions(split)) == both
        assert {corpus.size(split, direction) for direction in both} == {count}
    assert list(corpus.pairs("test", ("en", "de")))[2] == ("en 2", "de 2")


@pytest.mark.parametrize(
    ("name", "trained", "tested"),
    [
        ("wmt14_en_de", "en-de", ""),
        ("wmt14_en_fr", "en-fr", ""),
        ("wmt14_transfer_de", "de-en", "fr-en"),
        ("wmt14_transfer_fr", "fr-en", "de-en"),
        ("ted30_transfer_de", "de-en", "fr-en"),
        ("ted30_transfer_fr", "fr-en", "de-en"),
    ],
)
def test_mixtures_of_one_direction(data, name, trained, tested):
    rows = [talk(en="One .", de="Eins .", fr="Un ."), talk(en="Two .", de="Zwei .", fr="Deux .")]
    table = lines("\t".join(TED_HEADER), *rows)
    for split in ("train", "dev", "test"):
        write(data, **{f"ted19__all_talks_{split}_dot_tsv": table})
        for code in ("de", "fr"):
            numbered(data, f"wmt14/en-{code}", split, 2, ["en", code])
    mixture = MIXTURES[name]
    corpus = get_corpus(mixture.corpus)
    vocabulary = made_text.vocabulary()
    tasks = list(
        cache_task_sources(corpus, mixture.directions, vocabulary, zero_shot=mixture.zero_shot)
    )
    actual = {f"{task.source_lang}-{task.target_lang}": tuple(task.splits) for task in tasks}
    assert actual == {trained: ("train", "validation")} | (
        {tested: ("validation",)} if tested else {}
    )


@pytest.mark.parametrize("folders", [False, True])
def test_newscrawl_is_monolingual_text_of_several_years(data, folders):
    for year, code, texts in (
        (2019, "de", ["Neues von 2019.", ""]),
        (2020, "de", ["Neues von 2020."]),
        (2020, "iu", ["ᐃᓄᒃᑎᑐᑦ"]),
    ):
        path = data / "newscrawl" / (code if folders else "")
        path.mkdir(parents=True, exist_ok=True)
        with gzip.open(path / f"news.{year}.{code}.shuffled.deduped.gz", "wt") as file:
            file.write(lines(*texts))
    (data / "newscrawl" / "news-docs.2020.de.filtered.gz").write_bytes(b"documents")
    corpus, mixture = get_corpus("newscrawl"), MIXTURES["newscrawl"]
    assert corpus.languages == NEWSCRAWL_LANGUAGES
    assert mixture.directions == tuple((code, code) for code in NEWSCRAWL_LANGUAGES)
    assert corpus.splits() == ("train",)
    assert corpus.directions("train") == (("de", "de"), ("iu", "iu"))
    assert list(corpus.pairs("train", ("de", "de"))) == [
        ("", "Neues von 2019."),
        ("", "Neues von 2020."),
    ]
    file = r"newscrawl/\*\*/news\.\*\.am\.shuffled\.deduped or \.gz"
    message = rf"for am-am \(no file .*{file}\); it has de-de, iu-iu; .*with --directions or left_"
    with pytest.raises(UserError, match=message):
        check_training_text(corpus, mixture.directions)
    assert corpus.missing_files("train", ("de", "de")) == ()


def test_a_language_without_training_text_needs_a_vocabulary(data):
    for code in ("de", "fr"):
        for split in ("train", "newstest2013"):
            numbered(data, f"wmt14/en-{code}", split, 2, ["en", code])
    flags = "--mixture=wmt14_transfer_de", "--output", data / "cache"
    with pytest.raises(UserError, match="wmt14_transfer_de.*has no training text in fr.*--vocab"):
        command("cache_tasks", *flags)


def test_directions_without_validation_text_have_no_task(data):
    numbered(data, "wmt14/en-de", "train", 2, ["en", "de"])
    numbered(data, "wmt14/en-de", "newstest2013", 2, ["en", "de"])
    mixture = MIXTURES["wmt14_transfer_de"]
    tasks = cache_task_sources(
        get_corpus("wmt14"),
        mixture.directions,
        made_text.vocabulary(),
        zero_shot=mixture.zero_shot,
    )
    assert [task.name for task in tasks] == ["wmt14_de_en"]
