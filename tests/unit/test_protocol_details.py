"""Details of both protocols that the clients' own test suites ask for."""

from __future__ import annotations

import urllib.error
import urllib.request

import deepl
import pytest

from mnmt_jax.serving.document_store import StoredDocument
from tests.unit.made_server import MadeJob, made_service, serving
from tests.unit.test_serving import call

LANGUAGES = ("en", "de", "pt_BR", "pt_PT", "zh_Hant")
TEXT = "One line\nThen  another. And\n\na third."


@pytest.fixture
def job() -> MadeJob:
    return MadeJob(LANGUAGES)


@pytest.fixture
def address(job):
    with serving(made_service(job, wait_milliseconds=0)) as url:
        yield url


def translate(address: str, **fields: object) -> tuple[int, object]:
    body = {"text": ["Go."], "source_lang": "EN", "target_lang": "DE", **fields}
    status, answer = call(address, "/v2/translate", body)
    return status, answer["translations"][0] if status == 200 else answer["message"]


@pytest.mark.parametrize(
    ("value", "sentences"),
    [
        ("1", ["One line", "Then  another.", "And", "a third."]),
        ("nonewlines", ["One line Then  another.", "And a third."]),
        ("0", ["One line Then  another. And a third."]),
        (0, ["One line Then  another. And a third."]),
    ],
)
def test_deepl_split_sentences(address, job, value, sentences):
    status, answer = translate(address, text=[TEXT], split_sentences=value)
    assert status == 200 and sum(job.batches, []) == sentences
    assert [text.count("\n") for text in (answer["text"], TEXT)] == [3, 3]


@pytest.mark.parametrize(
    ("fields", "sentences"),
    [
        ({"tag_handling": "xml"}, ["Menu item", "File name"]),
        ({"tag_handling": "xml", "split_sentences": "nonewlines"}, ["Menu item File name"]),
        ({"tag_handling": "html"}, ["Menu item File name"]),
        ({"tag_handling": "html", "split_sentences": "1"}, ["Menu item", "File name"]),
    ],
)
def test_deepl_line_breaks_with_tags(address, job, fields, sentences):
    status, answer = translate(address, text=["Menu <x>item</x>\nFile name"], **fields)
    assert status == 200 and sum(job.batches, []) == sentences
    assert answer["text"].count("\n") == len(sentences) - 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"split_sentences": "2"}, "split_sentences: '2' must be 0, 1 or nonewlines"),
        ({"formality": "more"}, "formality: 'more' is not supported"),
        ({"model_type": "x"}, "model_type: 'x' is not supported"),
        ({"custom_instructions": ["Be brief."]}, "custom_instructions is not supported"),
        ({"style_id": "x"}, "style_id is not supported"),
        ({"target_lang": "PT"}, "target_lang: language 'PT' is ambiguous: name pt_BR or pt_PT"),
    ],
)
def test_deepl_options_that_would_change_the_translation_are_not_ignored(address, fields, message):
    assert translate(address, **fields) == (400, message)


def test_deepl_formality_that_is_preferred_may_be_without_effect(address):
    assert translate(address, formality="prefer_more")[0] == 200
    assert translate(address, context="Traffic lights", preserve_formatting=True)[0] == 200


def test_deepl_sources_have_no_region(address):
    status, answer = translate(address, source_lang="PT", text=["Vai."])
    assert (status, answer["text"]) == (200, "[de] Vai.")
    assert answer["detected_source_language"] == "PT"
    _, sources = call(address, "/v2/languages?type=source")
    assert sources == [
        {"language": "EN", "name": "English"},
        {"language": "DE", "name": "German"},
        {"language": "PT", "name": "Portuguese"},
        {"language": "ZH-HANT", "name": "Chinese (Traditional)"},
    ]
    _, targets = call(address, "/v2/languages?type=target")
    codes = ["EN-GB", "EN-US", "DE", "PT-BR", "PT-PT", "ZH-HANT"]
    assert [target["language"] for target in targets] == codes
    assert {target["supports_formality"] for target in targets} == {False}


@pytest.mark.parametrize("codes", [("en", "pt", "pt_BR"), ("pt_BR", "en", "pt")])
def test_deepl_targets_occur_once(codes):
    with serving(made_service(MadeJob(codes), wait_milliseconds=0)) as address:
        _, targets = call(address, "/v2/languages?type=target")
    names = {target["language"]: target["name"] for target in targets}
    assert len(targets) == len(names) == 4
    assert names["PT-BR"] == "Portuguese (Brazil)" and names["PT-PT"] == "Portuguese"


@pytest.mark.parametrize(
    "codes",
    [
        ("deu_Latn", "eng_Latn", "zho_Hans", "zho_Hant", "por_Latn"),
        ("de_DE", "en_XX", "zh_CN", "zh_TW", "pt_XX"),
    ],
)
def test_codes_of_any_spelling_are_listed_as_deepl_writes_them(codes):
    _, english, chinese, traditional, portuguese = codes
    with serving(made_service(MadeJob(codes), wait_milliseconds=0)) as address:
        client = deepl.Translator("key", server_url=address)
        targets = [language.code for language in client.get_target_languages()]
        assert targets == ["DE", "EN-GB", "EN-US", "ZH", "ZH-HANT", "PT-BR", "PT-PT"]
        texts = [
            client.translate_text("Los.", source_lang="DE", target_lang=t) for t in targets[1:]
        ]
        expected = [english, english, chinese, traditional, portuguese, portuguese]
        assert [text.text for text in texts] == [f"[{code}] Los." for code in expected]
        _, schema = call(address, "/openapi.json")
    body = schema["paths"]["/v2/translate"]["post"]["requestBody"]["content"]["application/json"]
    assert body["example"]["target_lang"] == "EN"


@pytest.mark.parametrize(("target", "end"), [("deu_Latn", "de"), ("zh_TW", "zh_Hant")])
def test_names_of_translated_documents_have_the_short_code(target, end):
    document = StoredDocument("report.docx", target, "user", None)
    assert document.translated_name == f"report.{end}.docx"


def test_deepl_model_type_is_stated_if_it_was_asked_for(address):
    client = deepl.Translator("key", server_url=address)
    answer = client.translate_text("Go.", target_lang="DE", model_type="prefer_quality_optimized")
    assert answer.model_type_used == "quality_optimized"
    assert "model_type_used" not in translate(address)[1]


def test_libretranslate_errors_have_its_words(address):
    body = {"q": "Go.", "source": "en", "target": "zz"}
    status, answer = call(address, "/translate", body)
    assert (status, answer["error"]) == (400, "zz is not supported")  # which its suite compares
    assert answer["hint"] == "target: the languages are en, de, pt_BR, pt_PT, zh_Hant"
    missing = (400, {"error": "Invalid request: missing q parameter"})
    assert call(address, "/translate", {"target": "de"}) == missing
    assert call(address, "/detect", {}) == missing


def test_libretranslate_source_may_be_without_region(address):
    body = {"q": "Vai.", "source": "pt", "target": "de"}
    assert call(address, "/translate", body) == (200, {"translatedText": "[de] Vai."})
    status, answer = call(address, "/translate", {**body, "source": "de", "target": "pt"})
    assert status == 400 and "ambiguous: name pt_BR or pt_PT" in answer["error"]


def test_libretranslate_spec_is_the_schema_of_the_routes(address):
    status, schema = call(address, "/spec")
    assert status == 200 and "/translate" in schema["paths"]


@pytest.mark.parametrize("path", ["/languages", "/spec", "/health", "/frontend/settings"])
def test_libretranslate_routes_of_get_refuse_post(address, path):
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{address}{path}", b"{}", timeout=60)
    assert caught.value.code == 405 and caught.value.headers["Allow"] == "GET"
