"""Flags that name directions: lists, mixtures and files; the directions of imported models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from mnmt_jax.commands.analysis_inputs import (
    check_directions,
    parse_layers,
    trained_in_benchmark_codes,
)
from mnmt_jax.commands.benchmark_corpus import benchmark_corpus
from mnmt_jax.commands.common_flags import list_of
from mnmt_jax.commands.direction_flags import read_directions
from mnmt_jax.commands.evaluate import _listed, _with_training, make_parser
from mnmt_jax.config.loading import load_config
from mnmt_jax.data.parallel_corpora import ParallelFiles
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark, choose_directions, find_corpus
from mnmt_jax.evaluation.evaluated_model import EvaluatedModel, _warn_of_untrained_reverse
from mnmt_jax.papers.experiments import corpus_settings
from mnmt_jax.papers.tables import load_papers
from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES, fine_tuning_directions

CODES = ("en", "de", "fr")


def _read(text: str):
    return read_directions("--directions", text, CODES, "; or write all")


def _model(supervised=None) -> EvaluatedModel:
    return EvaluatedModel(
        "imported", lambda lines, pair: [], load_config([]), {}, supervised=supervised
    )


def test_a_list_a_mixture_and_a_file_name_directions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pairs.txt").write_text("\ufeffde-fr  # two\nfr-de\n\n# none\nde-fr, en-de\n", "utf-8")
    expected = (("de", "fr"), ("fr", "de"), ("en", "de"))
    assert _read("pairs.txt") == expected == _read("de-fr,fr-de,deu-fra,en-de")
    assert _read("flores_finetune_25") == fine_tuning_directions(25)
    benchmark = Benchmark("cldr_quickstart", find_corpus("cldr_quickstart")[0], limit=2)
    assert _listed(benchmark, "pairs.txt")[0].directions == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("de-fr\nde-xx\n", r"^--directions=pairs.txt:2: 'de-xx' has 'xx', which is not among"),
        ("de-fr\n\nfrench\n", r"^--directions=pairs.txt:3: 'french' must be SOURCE-TARGET"),
        ("# nothing\n", r"^--directions=pairs.txt: has no direction; write one per line"),
        (b"de-fr\xff\n", r"^--directions=pairs.txt: cannot be read"),
    ],
)
def test_files_with_errors_are_refused(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    Path("pairs.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        _read("pairs.txt")


def test_other_words_name_what_is_allowed():
    with pytest.raises(UserError, match="'some' must be .*; or write all; also a mixture's name"):
        _read("some")


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_a_list_without_an_item_is_refused(text):
    message = "names no direction; write a list such as de-fr"
    with pytest.raises(UserError, match=f"^--directions: {message}; or write all"):
        _read(text)
    with pytest.raises(UserError, match=f"^--trained_on: {message}"):
        _with_training(_model(), text, CODES, CODES)
    with pytest.raises(UserError, match=f"^--directions: {message}"):
        check_directions(text)
    with pytest.raises(UserError, match="^--languages: names nothing; write a list, or leave"):
        list_of("--languages", text)
    arguments = ["--run=x", "--output=y", "--task=cldr", f"--languages={text}"]
    with pytest.raises(UserError, match="^--languages: names nothing"):
        benchmark_corpus(make_parser().parse_args(arguments))


def test_an_item_of_a_list_that_is_named_twice_is_refused():
    with pytest.raises(UserError, match="^--roles: target is named twice; leave one of them out$"):
        list_of("--roles", "target, source,target")
    with pytest.raises(UserError, match="^--layers: 1 is named twice; leave one of them out$"):
        parse_layers("1,2,01")


def test_training_directions_of_an_imported_model_can_be_named():
    pairs = (("en", "de"), ("de", "fr"), ("de", "en"))
    with pytest.raises(UserError, match="name them with --trained_on"):
        choose_directions(pairs, "supervised", _model().supervised)
    named = _with_training(_model(), "en-de,de-en", CODES, CODES)
    assert choose_directions(pairs, "supervised", named.supervised) == (pairs[0], pairs[2])
    assert choose_directions(pairs, "zero_shot", named.supervised) == (pairs[1],)
    assert _with_training(_model(), None, CODES, CODES).supervised is None
    with pytest.raises(UserError, match="--trained_on: imported records its training directions"):
        _with_training(_model(frozenset(pairs)), "en-de", CODES, CODES)


def test_training_directions_have_the_codes_of_the_corpus(tmp_path):
    """Also those that the run records; a language that the corpus lacks keeps its code."""
    languages = ("eng", "deu", "por", "ita")
    named = _with_training(_model(), "eng-deu,deu-eng", languages, CODES)
    assert named.supervised == {("en", "de"), ("de", "en")}
    recorded = frozenset({("en", "deu"), ("eng", "por"), ("ita", "eng")})
    available = ("en", "de", "pt", "pt_BR")
    subject = _with_training(_model(recorded), None, languages, available)
    assert subject.supervised == {("en", "de"), ("en", "pt"), ("en", "pt_BR"), ("ita", "en")}
    for code in ("en", "de"):
        (tmp_path / f"test.{code}").write_text(f"text {code}\n", encoding="utf-8")
    corpus = ParallelFiles("mine", str(tmp_path / "{split}.{language}"), ("en", "de"))
    benchmark = Benchmark("mine", corpus)
    assert trained_in_benchmark_codes(benchmark, recorded, languages) >= {("en", "de")}
    assert trained_in_benchmark_codes(benchmark, None, languages) is None


@pytest.mark.parametrize("others", [(), ("fr",)])
def test_a_variety_is_labelled_alike_whatever_else_the_test_set_has(others):
    recorded = frozenset({("en", "fr"), ("fr", "en"), ("de", "fr")})
    subject = _with_training(_model(recorded), None, CODES, ("en", *others, "fr_CA"))
    varieties = (*others, "fr_CA")
    from_english = {("en", code) for code in varieties} | {(code, "en") for code in varieties}
    assert subject.supervised == from_english | {("de", code) for code in varieties}
    both = _with_training(_model(recorded), None, (*CODES, "fr_CA"), ("en", *others, "fr_CA"))
    assert ("en", "fr") in both.supervised and ("en", "fr_CA") not in both.supervised


@pytest.mark.parametrize("count", [5, 25, 100])
def test_rows_of_the_registers_table_4_evaluate_its_directions(count):
    data = corpus_settings(load_papers()["registers"], f"flores_finetune_{count}")
    flag, value = data.evaluate
    assert flag == "--directions"
    directions = read_directions(flag, value, MITRE_LANGUAGES)
    assert directions == fine_tuning_directions(count) and len(directions) == count


@pytest.mark.parametrize(
    ("codes", "pivot"), [("de en", None), ("deu eng", None), ("deu eng", "en")]
)
def test_directions_of_a_search_are_compared_in_any_form_of_codes(codes, pivot, capsys):
    job = SimpleNamespace(
        decode=SimpleNamespace(utility="backward"),
        pivot=pivot,
        pivot_prompt=False,
        pretrained=SimpleNamespace(languages=("de", "en", "fr")),
    )
    trained = frozenset({("de", "en"), ("en", "de")})
    source, target = codes.split()
    _warn_of_untrained_reverse(job, trained, [(source, target), (target, source)])
    assert not capsys.readouterr().err
    _warn_of_untrained_reverse(job, trained, [(source, "fra")])
    expected = "fr-en, which" if pivot else "fr-de, which"
    assert expected in capsys.readouterr().err


def test_two_varieties_of_one_language_of_a_test_set_are_refused():
    arguments = ["--run=x", "--output=y", "--task=cldr", "--languages=en,pt_BR,pt_PT"]
    message = "^--languages: 'pt_BR' and 'pt_PT' are both 'pt' of the text; name one of them$"
    with pytest.raises(UserError, match=message):
        benchmark_corpus(make_parser().parse_args(arguments))
