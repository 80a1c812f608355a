"""Languages that differ in region or script alone, of one model and of several."""

from __future__ import annotations

import pytest
import requests

from tests.unit.made_server import MadeJob, made_service, serving
from tests.unit.test_serving import call
from tests.unit.test_serving_documents import send

TRADITIONAL, SIMPLIFIED = "這是一個繁體中文的句子，請翻譯。", "这是一个简体中文的句子，请翻译。"
LATIN = "Ovo je rečenica na srpskom jeziku, molim prevedite."
CYRILLIC = "Ово је реченица на српском језику."
PORTUGUESE = "Esta é uma frase em português, por favor traduza."
FRENCH = "Ceci est une phrase en français, traduisez s'il vous plaît."
ENGLISH = "This is a sentence in English, please translate it."
ENTRIES = {"entries": "frase\tSatz", "entries_format": "tsv"}


@pytest.fixture(scope="module")
def regions():
    """Serve `made` with Brazilian and `made1` with European Portuguese; German is in the second."""
    jobs = MadeJob(("en", "pt_BR"), "A "), MadeJob(("en", "de", "pt_PT"), "B ")
    with serving(made_service(*jobs, wait_milliseconds=0)) as url:
        yield url


@pytest.fixture(scope="module")
def scripts():
    """Serve a model with two languages in two scripts each."""
    codes = ("en", "zh", "zh_Hant", "sr", "sr_Latn")
    with serving(made_service(MadeJob(codes), wait_milliseconds=0)) as url:
        yield url


def translated(address: str, text: str, source: str, target: str) -> object:
    _, answer = call(address, "/translate", {"q": text, "source": source, "target": target})
    return answer.get("translatedText") or answer["error"]


def translated_by_deepl(address: str, text: str, target: str, **fields: str) -> object:
    _, answer = call(address, "/v2/translate", {"text": [text], "target_lang": target, **fields})
    return answer["translations"][0]["text"] if "translations" in answer else answer["message"]


# Codes without a region


@pytest.mark.parametrize(
    ("path", "source", "target", "expected"),
    [
        ("/models/made1", "pt", "de", "[B de] Vai."),
        ("/models/made1", "en", "pt", "[B pt_PT] Vai."),
        ("/models/made", "en", "pt", "[A pt_BR] Vai."),
        ("", "pt", "de", "[B de] Vai."),
        ("", "pt", "en", "[A en] Vai."),
        ("", "pt", "pt-BR", "Vai."),  # nothing else is translated into it
        ("", "en", "pt", "language {!r} is ambiguous: name pt_BR or pt_PT"),
    ],
)
def test_a_code_without_region_is_of_the_models_that_translate_it(
    regions, path, source, target, expected
):
    address = f"{regions}{path}"
    assert translated(address, "Vai.", source, target) == expected.format(target)
    answer = translated_by_deepl(address, "Vai.", target.upper(), source_lang=source.upper())
    assert answer.removeprefix("target_lang: ") == expected.format(target.upper())


def test_a_code_without_region_means_the_other_region_of_the_target():
    with serving(made_service(MadeJob(("pt_BR", "pt_PT")), wait_milliseconds=0)) as address:
        assert translated(address, "Vai.", "pt", "pt_BR") == "[pt_BR] Vai."
        assert translated(address, "Vai.", "pt", "pt_PT") == "[pt_PT] Vai."


def test_a_glossary_may_be_of_every_listed_pair(regions):
    _, answer = call(regions, "/v2/glossary-language-pairs")
    pairs = [(pair["source_lang"], pair["target_lang"]) for pair in answer["supported_languages"]]
    assert ("pt", "de") in pairs and ("de", "pt") in pairs
    for source, target in pairs:
        languages = {"source_lang": source, "target_lang": target}
        status, answer = call(regions, "/v2/glossaries", {"name": "x", **languages, **ENTRIES})
        assert status == 201 and {**answer, **languages} == answer
    pair = {"source_lang": "pt", "target_lang": "pt", "name": "x", **ENTRIES}
    assert call(regions, "/v2/glossaries", pair)[0] == 400


# Detection


@pytest.mark.parametrize(
    ("text", "code", "others"),
    [
        (TRADITIONAL, "zh-Hant", ["zh-Hans", "sr", "en"]),
        (SIMPLIFIED, "zh-Hans", ["zh-Hant", "sr", "en"]),
        (LATIN, "sr-Latn", ["sr", "zh-Hans", "en"]),
        (CYRILLIC, "sr", ["sr-Latn", "zh-Hans", "en"]),
    ],
)
def test_a_text_is_detected_in_its_script(scripts, text, code, others):
    assert call(scripts, "/detect", {"q": text})[1][0]["language"] == code
    for target in [code, *others]:
        body = {"q": text, "source": "auto", "target": target}
        _, answer = call(scripts, "/translate", body)
        assert answer["detectedLanguage"]["language"] == code
        assert answer["detectedLanguage"]["confidence"] > 50
        assert (answer["translatedText"] == text) == (target == code)


def test_characters_of_both_scripts_are_translated_into_either(scripts):
    for target in ("zh", "zh_Hant"):
        assert translated(scripts, "中文", "auto", target) == f"[{target}] 中文"


@pytest.mark.parametrize(
    ("path", "target", "expected", "code"),
    [
        ("/models/made1", "en", "[B en]", "pt-PT"),
        ("/models/made1", "de", "[B de]", "pt-PT"),
        ("/models/made", "en", "[A en]", "pt-BR"),
        ("", "de", "[B de]", "pt-PT"),
        ("", "en", "[A en]", "pt-BR"),
    ],
)
def test_a_detected_language_is_of_the_models_that_translate_it(
    regions, path, target, expected, code
):
    body = {"q": PORTUGUESE, "source": "auto", "target": target}
    _, answer = call(f"{regions}{path}", "/translate", body)
    assert answer["translatedText"] == f"{expected} {PORTUGUESE}"
    assert answer["detectedLanguage"]["language"] == code
    assert answer["detectedLanguage"]["confidence"] > 50
    assert translated_by_deepl(f"{regions}{path}", PORTUGUESE, target) == answer["translatedText"]


@pytest.mark.parametrize(
    ("codes", "text", "target", "code"),
    [
        (("en", "fr", "fr_CA"), FRENCH, "fr", "fr"),
        (("en", "fr", "fr_CA"), FRENCH, "fr-CA", "fr-CA"),
        (("en", "en_GB", "de"), ENGLISH, "en-US", "en"),
        (("en", "en_GB", "de"), ENGLISH, "en-GB", "en-GB"),
        (("pt_BR", "pt_PT"), PORTUGUESE, "pt-PT", "pt-PT"),
    ],
)
def test_detected_text_in_the_target_is_not_taken_for_another_region(codes, text, target, code):
    """Only a request that names the language without region asks for such a translation."""
    with serving(made_service(MadeJob(codes), wait_milliseconds=0)) as address:
        body = {"q": text, "source": "auto", "target": target}
        _, answer = call(address, "/translate", body)
        assert answer["translatedText"] == text
        assert answer["detectedLanguage"]["language"] == code
        assert translated_by_deepl(address, text, target.upper()) == text
        document = send(address, text.encode(), source="auto", target=target)
        assert document.status_code == 400 and "are equal" in document.json()["error"]


def test_documents_are_detected_for_their_target(regions, scripts):
    for address, text, target in (
        (regions, PORTUGUESE, "de"),
        (scripts, TRADITIONAL, "zh-Hans"),
        (scripts, LATIN, "sr"),
    ):
        response = send(address, text.encode(), source="auto", target=target)
        translation = requests.get(response.json()["translatedFileUrl"], timeout=60)
        assert translation.content.decode().endswith(f"] {text}")


def test_a_model_with_one_of_the_scripts_translates_both():
    jobs = MadeJob(("en", "zh"), "A "), MadeJob(("en", "zh_Hant"), "B ")
    with serving(made_service(*jobs, wait_milliseconds=0)) as address:
        for text, first in ((TRADITIONAL, "B"), (SIMPLIFIED, "A")):
            assert translated(address, text, "auto", "en") == f"[{first} en] {text}"
            for path, name in (("/models/made", "A"), ("/models/made1", "B")):
                answer = translated(f"{address}{path}", text, "auto", "en")
                assert answer == f"[{name} en] {text}"
