"""Several models behind one server: names, languages, and the model of a direction."""

from __future__ import annotations

import urllib.error

import deepl
import libretranslatepy
import pytest

from mnmt_jax.commands import serve
from mnmt_jax.errors import UserError
from mnmt_jax.serving import served_models
from mnmt_jax.serving.model_names import name_runs
from mnmt_jax.serving.settings import Settings
from mnmt_jax.vocabulary.language_codes import find_code
from mnmt_jax.vocabulary.languages import LANGUAGES, MITRE_LANGUAGES
from tests.unit.made_server import MadeJob, made_service, serving
from tests.unit.test_serving import call


@pytest.fixture
def address():
    """Serve three models: `made` (first), `made1` (second) and `made2` (third)."""
    jobs = [
        MadeJob(("en", "de", "pt"), "first "),
        MadeJob(("eng_Latn", "fr", "de"), "second "),
        MadeJob(("pt_BR", "en"), "third "),
    ]
    with serving(made_service(*jobs, wait_milliseconds=0)) as url:
        yield url


def translated(address: str, text: str, source: str, target: str, **fields: str):
    body = {"q": text, "source": source, "target": target, **fields}
    status, answer = call(address, "/translate", body)
    return answer["translatedText"] if status == 200 else (status, answer["error"])


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("en", "de", "[first de] Go."),
        ("en", "fr", "[second fr] Go."),
        ("fr", "en", "[second eng_Latn] Go."),
        ("pt", "en", "[first en] Go."),
        ("en", "pt-BR", "[third pt_BR] Go."),
        ("pt", "fr", (400, "no translation from pt to fr by made, made1, made2")),
    ],
)
def test_a_direction_goes_to_the_first_model_that_has_it(address, source, target, expected):
    assert translated(address, "Go.", source, target) == expected


def test_a_field_or_a_path_chooses_the_model(address):
    assert translated(address, "Go.", "en", "de", model="made1") == "[second de] Go."
    assert translated(f"{address}/models/made1", "Go.", "en", "de") == "[second de] Go."
    body = {"text": ["Go."], "source_lang": "EN", "target_lang": "DE", "model": "made1"}
    _, answer = call(address, "/v2/translate", body)
    assert answer["translations"][0]["text"] == "[second de] Go."
    refused = translated(address, "Go.", "en", "fr", model="made")
    assert refused == (400, "no translation from en to fr by made")


@pytest.mark.parametrize(
    ("path", "body", "form"),
    [
        ("/translate", {"q": "Go.", "target": "de", "model": "other"}, "error"),
        ("/models/other/translate", {"q": "Go.", "target": "de"}, "error"),
        ("/v2/translate", {"text": ["Go."], "target_lang": "DE", "model": "other"}, "message"),
        ("/models/other/v2/translate", {"text": ["Go."], "target_lang": "DE"}, "message"),
        ("/languages?model=other", None, "error"),
        ("/models/other/v2/languages", None, "message"),
    ],
)
def test_an_unknown_model_is_refused_in_the_form_of_the_protocol(address, path, body, form):
    message = "model: other is not served; the models are made, made1, made2"
    assert call(address, path, body) == (400, {form: message})


def test_paths_without_a_route_are_not_found(address):
    for path in ("/models/", "/models//", "/models/made/nowhere", "/models", "/models/no"):
        assert call(address, path)[0] == 404
    assert call(address, "/translate", {"q": "a", "target": "de", "model": 5}) == (
        400,
        {"error": "model must be text"},
    )


def test_languages_are_the_union_and_targets_those_of_some_model(address):
    _, languages = call(address, "/languages")
    assert {item["code"]: item["targets"] for item in languages} == {
        "en": ["en", "de", "pt", "fr", "pt-BR"],
        "de": ["en", "de", "pt", "fr", "pt-BR"],  # by the model with `pt`
        "pt": ["en", "de", "pt", "pt-BR"],
        "fr": ["en", "de", "fr"],
        "pt-BR": ["en", "de", "pt", "pt-BR"],
    }
    _, languages = call(address, "/models/made2/languages")
    assert [item["code"] for item in languages] == ["pt-BR", "en"]
    _, languages = call(address, "/v2/languages?type=source&model=made1")
    assert [item["language"] for item in languages] == ["EN", "FR", "DE"]


def test_a_code_is_found_once_per_model_and_language(monkeypatch):
    texts: list[str] = []

    def counted(text: str, codes: tuple[str, ...]) -> str | None:
        texts.append(text)
        return find_code(text, codes)

    languages = MITRE_LANGUAGES[:20]
    flores = tuple(code for code in (LANGUAGES[one].flores for one in languages) if code)
    monkeypatch.setattr(served_models, "find_code", counted)
    with serving(made_service(MadeJob(flores[:15]), MadeJob(languages))) as address:
        for path in ("/languages", "/v2/glossary-language-pairs"):
            assert call(address, path)[0] == 200
    assert 20 <= len(texts) <= 2 * 20


def test_texts_of_one_request_may_need_different_models(address):
    body = {
        "q": ["Das ist ein schöner Tag.", "Bonjour, comment allez-vous ?"],
        "source": "auto",
        "target": "en",
    }
    _, answer = call(address, "/translate", body)
    assert answer["translatedText"] == [
        "[first en] Das ist ein schöner Tag.",
        "[second eng_Latn] Bonjour, comment allez-vous ?",
    ]
    assert [item["language"] for item in answer["detectedLanguage"]] == ["de", "fr"]


def test_a_detected_language_that_the_model_lacks_has_no_confidence(address):
    body = {"q": "Bonjour, comment allez-vous ?", "source": "auto", "target": "pt"}
    _, answer = call(address, "/translate", {**body, "model": "made"})
    assert answer["translatedText"] == "[first pt] Bonjour, comment allez-vous ?"
    assert answer["detectedLanguage"] == {"confidence": 0.0, "language": "en"}


def test_an_ambiguous_code_is_refused():
    job = MadeJob(("en", "pt_BR", "pt_PT"))
    with serving(made_service(job, wait_milliseconds=0)) as url:
        status, message = translated(url, "Go.", "en", "pt")
        assert status == 400 and "ambiguous: name pt_BR or pt_PT" in message


def test_clients_choose_a_model_by_the_address(address):
    client = libretranslatepy.LibreTranslateAPI(f"{address}/models/made1")
    assert client.translate("Go.", "en", "de") == "[second de] Go."
    translator = deepl.Translator("key", server_url=f"{address}/models/made1/")
    answer = translator.translate_text("Go.", source_lang="EN", target_lang="DE")
    assert answer.text == "[second de] Go."
    with pytest.raises(urllib.error.HTTPError):
        libretranslatepy.LibreTranslateAPI(f"{address}/models/other").languages()


def test_models_are_named_after_their_folders_or_by_name():
    runs = ["runs/a/register", "small=runs/b/register", "./x=y", "gs://bucket/my model/"]
    assert name_runs(runs) == {
        "register": "runs/a/register",
        "small": "runs/b/register",
        "x-y": "./x=y",
        "my-model": "gs://bucket/my model/",
    }
    assert list(name_runs(["tests/../.."]))[0] not in ("", "..")


@pytest.mark.parametrize(
    ("settings", "engine"),
    [
        ({}, ""),
        ({"engine": "ctranslate2", "compute_type": "int8"}, " by ctranslate2 (int8)"),
        ({"replicas": 2}, " in 2 replicas"),
    ],
)
def test_start_up_lines_say_what_is_served(capsys, settings, engine):
    runs, jobs = {"a": "runs/a", "b": "runs/x"}, {"a": MadeJob(), "b": MadeJob(("en",))}
    serve._say_served(runs, jobs, Settings(**settings), "http://127.0.0.1:5000")
    assert capsys.readouterr().err.splitlines() == [
        f"serves runs/a as a{engine}, 5 languages, on http://127.0.0.1:5000",
        f"serves runs/x as b{engine}, 1 language, on http://127.0.0.1:5000",
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a/run", "b/run"], "--run=b/run: two models are named run; name one: --run NAME=RUN"),
        (["a b=run"], "--run=a b=run: the name 'a b' must consist of letters, digits"),
        (["=run"], "--run==run: the name '' must consist of letters, digits"),
    ],
)
def test_names_must_be_different_and_fit_in_a_path(values, message):
    with pytest.raises(UserError, match=message):
        name_runs(values)
