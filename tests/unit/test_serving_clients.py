"""Clients of LibreTranslate and DeepL, unchanged."""

from __future__ import annotations

import deepl
import libretranslatepy
import pytest
from deep_translator import LibreTranslator

from tests.unit.made_server import LANGUAGES, MadeJob, made_service, serving


@pytest.fixture
def address():
    with serving(made_service(MadeJob(), wait_milliseconds=0)) as url:
        yield url


def test_libretranslatepy(address):
    client = libretranslatepy.LibreTranslateAPI(address)
    assert client.translate("Hello. World!", "en", "de") == "[de] Hello. [de] World!"
    assert client.detect("Das ist ein schöner Tag.")[0]["language"] == "de"
    languages = client.languages()
    codes = [*LANGUAGES[:-1], "zh-Hans"]
    assert LANGUAGES[-1] == "zh" and [item["code"] for item in languages] == codes
    assert languages[0] == {"code": "en", "name": "English", "targets": codes}


def test_deep_translator(address):
    client = LibreTranslator(source="en", target="de", api_key="any", custom_url=f"{address}/")
    assert client.translate("Good morning") == "[de] Good morning"
    assert client.translate_batch(["One", "Two"]) == ["[de] One", "[de] Two"]


def test_deepl(address):
    client = deepl.Translator("key", server_url=address)
    first, second = client.translate_text(
        ["Das ist gut. Sehr gut.", "Good\n\n- morning"], target_lang="PT-BR"
    )
    assert (first.text, first.detected_source_lang) == ("[pt] Das ist gut. [pt] Sehr gut.", "DE")
    assert second.text == "[pt] Good\n\n- [pt] morning"
    one = client.translate_text("Hello", source_lang="EN", target_lang="DE")
    assert one.text == "[de] Hello"
    sources = [language.code for language in client.get_source_languages()]
    assert sources == ["EN", "DE", "FR", "PT", "ZH"]
    targets = [language.code for language in client.get_target_languages()]
    assert targets == ["EN-GB", "EN-US", "DE", "FR", "PT-BR", "PT-PT", "ZH"]
    assert client.get_usage().character.count == len("Das ist gut. Sehr gut.Good\n\n- morningHello")
    with pytest.raises(deepl.DeepLException, match="target_lang: XH is not supported"):
        client.translate_text("Hello", target_lang="XH")
    with pytest.raises(deepl.DeepLException, match="tag_handling: 'md' is not supported"):
        client.translate_text("**Hello**", target_lang="DE", tag_handling="md")


def test_deepl_with_tags():
    job = MadeJob()
    job.respond = str.upper
    with serving(made_service(job, wait_milliseconds=0)) as address:
        check_tags(deepl.Translator("key", server_url=address))


def check_tags(client):
    html = client.translate_text(
        "<p>Good <b>morning</b>\nall.</p>", target_lang="DE", tag_handling="html"
    )
    assert html.text == "<p>GOOD <b>MORNING</b> ALL.</p>"
    xml = client.translate_text(
        "<d><T>One</T><x>two</x> <b>three</b></d>",
        target_lang="DE",
        tag_handling="xml",
        splitting_tags=["T"],
        ignore_tags=["x", "y"],
    )
    assert xml.text == "<d><T>ONE</T><x>two</x> <b>THREE</b></d>"
