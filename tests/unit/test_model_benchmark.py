"""Benchmarks in the languages of a model: varieties, absent and ambiguous languages."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from mnmt_jax.commands import evaluate
from mnmt_jax.commands.benchmark_corpus import benchmark_corpus
from mnmt_jax.commands.direction_flags import parse_directions, restrict
from mnmt_jax.commands.model_benchmark import model_benchmark
from mnmt_jax.data.document_ids import DocumentIds
from mnmt_jax.data.parallel_corpora import CldrPhrases, Corpus, ParallelFiles
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark
from mnmt_jax.vocabulary.language_codes import find_code

CODES = ("en", "de", "fr")
BOTH = ("en", "pt_BR", "pt_PT")
FORMS = ("parallel", "tsv", "bitext")


def _files(folder: Path, languages: tuple[str, ...]) -> ParallelFiles:
    for code in languages:
        (folder / f"test.{code}").write_text(f"text {code}\n", encoding="utf-8")
    return ParallelFiles("mine", str(folder / "{split}.{language}"), languages)


def _of_model(corpus: Corpus, languages: tuple[str, ...], text=None, **options) -> Benchmark:
    flags = SimpleNamespace(task="mine", languages=text)
    return model_benchmark(flags, corpus, corpus.languages, languages, **options)


def test_varieties_of_one_language_of_the_model_are_not_translated_into_each_other(
    tmp_path, capsys
):
    corpus = _files(tmp_path, ("en", "fr", "fr_CA"))
    benchmark = _of_model(corpus, CODES)
    assert set(benchmark.directions) == {
        *(("en", "fr"), ("en", "fr_CA"), ("fr", "en"), ("fr_CA", "en")),
    }
    warning = "skipped fr-fr_CA, fr_CA-fr: source and target are one language of the model"
    assert warning in capsys.readouterr().err
    assert _of_model(corpus, CODES, quiet=True).directions == benchmark.directions
    assert len(_of_model(corpus, (*CODES, "fr_CA")).directions) == 6
    assert not capsys.readouterr().err
    message = "^--task=mine: fr-fr_CA, fr_CA-fr: source and target are one language of the model"
    with pytest.raises(UserError, match=message):
        _of_model(corpus, ("fr", "de"))


def test_a_language_that_is_two_of_the_model_is_skipped(tmp_path, capsys):
    corpus = _files(tmp_path, ("en", "de", "pt"))
    languages = (*CODES, *BOTH[1:])
    assert set(_of_model(corpus, languages).directions) == {("en", "de"), ("de", "en")}
    warning = (
        "warning: skipped pt: language 'pt' is ambiguous: name pt_BR or pt_PT with --languages"
    )
    assert capsys.readouterr().err == f"{warning}\n"
    with pytest.raises(UserError, match="no direction has a test split between languages"):
        _of_model(corpus, BOTH)
    expected = f"warning: skipped languages that the model does not have: de\n{warning}\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("en,pt", "^--languages=pt: language 'pt' is ambiguous: name pt_BR or pt_PT$"),
        ("en,pt_MZ", "^--languages=pt_MZ: language 'pt' is ambiguous: name pt_BR or pt_PT$"),
    ],
)
def test_a_requested_language_that_is_two_of_the_model_is_refused(tmp_path, text, message):
    _files(tmp_path, ("en", "pt"))
    with pytest.raises(UserError, match=message):
        _of_flags(BOTH, f"--parallel={tmp_path}", f"--languages={text}")


def _write_text(folder: Path, form: str, *tags: str) -> str:
    """Write one sentence in each language, and return the flag that reads it."""
    texts = [f"text {tag}" for tag in tags]
    if form == "parallel":
        for tag, text in zip(tags, texts, strict=True):
            (folder / f"test.{tag}").write_text(f"{text}\n", encoding="utf-8")
        return f"--parallel={folder}"
    path = folder / f"t.{'tsv' if form == 'tsv' else 'tmx'}"
    content = "\t".join(tags) + "\n" + "\t".join(texts) + "\n"
    if form == "bitext":
        sides = zip(tags, texts, strict=True)
        segments = (f'<tuv xml:lang="{tag}"><seg>{text}</seg></tuv>' for tag, text in sides)
        content = f"<tmx><body><tu>{''.join(segments)}</tu></body></tmx>"
    path.write_text(content, encoding="utf-8")
    return f"--{form}={path}"


def _of_flags(languages: tuple[str, ...], *arguments: str) -> Benchmark:
    command_line = ["--run=x", "--output=y", "--task=mine", *arguments]
    flags = evaluate.make_parser().parse_args(command_line)
    return model_benchmark(flags, *benchmark_corpus(flags), languages)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("languages", [BOTH, ("en", "pt", "pt_BR")])
def test_a_requested_language_has_the_code_of_the_model(tmp_path, capsys, languages, form):
    text = _write_text(tmp_path, form, "en", "pt")
    benchmark = _of_flags(languages, text, "--languages=en,pt-BR")
    assert set(benchmark.directions) == {("en", "pt_BR"), ("pt_BR", "en")}
    texts = restrict(benchmark, "en-pt_BR").texts(("en", "pt_BR"))
    assert (list(texts.sources), list(texts.references)) == (["text en"], ["text pt"])
    assert [benchmark.number(pair) for pair in benchmark.directions] == [0, 1]
    assert set(_of_flags(("en", "pt_BR"), text, "--languages=en,pt_BR").directions) == {
        *(("en", "pt"), ("pt", "en")),
    }
    assert not capsys.readouterr().err


@pytest.mark.parametrize("form", FORMS)
def test_a_requested_region_is_read_if_there_is_text_of_it(tmp_path, form):
    text = _write_text(tmp_path, form, "en", "pt", "pt-BR", "pt-PT")
    benchmark = _of_flags(BOTH, text, "--languages=en,pt_BR")
    assert list(benchmark.texts(("en", "pt_BR")).references) == ["text pt-BR"]


@pytest.mark.parametrize("form", FORMS)
def test_another_region_does_not_stand_for_a_requested_one(tmp_path, form):
    text = _write_text(tmp_path, form, "en", "pt-PT")
    with pytest.raises(UserError, match="(?i)no texts? in '?pt.br|for languages en pt_BR$"):
        _of_flags(BOTH, text, "--languages=en,pt_BR")


@pytest.mark.parametrize("form", FORMS[:2])
def test_two_regions_do_not_share_the_text_without_region(tmp_path, form):
    text = _write_text(tmp_path, form, "en", "de", "pt")
    with pytest.raises(UserError, match="^--languages: .* has no text in 'pt_BR'"):
        _of_flags(BOTH, text, "--languages=en,de,pt_BR,pt_PT")


@pytest.mark.parametrize("languages", [BOTH, ("en", "pt", "pt_BR")])
def test_phrases_with_the_code_of_the_model_keep_the_exact_off_target_detector(languages):
    corpus = CldrPhrases(("en", "de", "pt"), sizes={"test": 5}, name="phrases")
    benchmark = _of_model(corpus, languages, "en,pt_BR", quiet=True)
    texts, original = benchmark.texts(("en", "pt_BR")), Benchmark("phrases", corpus)
    assert texts == original.texts(("en", "pt"))
    assert benchmark.nearest.languages == ("en", "de", "pt_BR")
    assert benchmark.nearest.off_target(texts.references, "pt_BR").ratio == 0
    assert "pt_BR" in benchmark.nearest.off_target(texts.references, "en").detected


def test_documents_are_found_by_the_code_of_the_corpus(tmp_path):
    corpus = _files(tmp_path, ("en", "pt"))
    (tmp_path / "test.en-pt.docs").write_text("1\n", encoding="utf-8")
    corpus.document_ids = DocumentIds.of_splits(f"{tmp_path}/test.{{pair}}.docs", {"test": ""})
    assert _of_model(corpus, BOTH, "en,pt_BR").document_sizes(("pt_BR", "en")) == [1]


def test_ambiguous_languages_of_flags_name_the_flag():
    with pytest.raises(UserError, match="^--trained_on: 'en-pt': language 'pt' is ambiguous: name"):
        parse_directions("en-pt", BOTH, flag="--trained_on")
    with pytest.raises(UserError, match="^--pool=pt: language 'pt' is ambiguous: name pt_BR or"):
        find_code("pt", BOTH, "--pool")
