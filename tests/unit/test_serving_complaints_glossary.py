"""What users of translation servers complain about: glossaries.

Numbers are those of issues in the public trackers of the servers named.
"""

from __future__ import annotations

import pytest

from mnmt_jax.decoding.text.sentence_job import SentenceJob
from mnmt_jax.serving.service import TranslationService
from mnmt_jax.serving.settings import Settings
from mnmt_jax.vocabulary.language_detectors import make_lid176
from tests.unit.made_server import MadeJob, made_service, serving
from tests.unit.made_translator import LINES, made_translator
from tests.unit.test_serving import call

WORD = LINES[0].split()[0].lower()
TEXT = f"{LINES[0]}. {LINES[0]}"


@pytest.fixture(scope="module")
def translate():
    """Return the answer of a server with a real model to a text with a glossary."""
    job = SentenceJob.create(made_translator())
    service = TranslationService({"made": job}, Settings(wait_milliseconds=0), make_lid176())
    with serving(service) as address:

        def answer(glossary: dict) -> dict:
            body = {"q": TEXT, "source": "en", "target": "de", "glossary": glossary}
            status, answered = call(address, "/translate", body)
            assert status == 200
            return answered

        yield answer


def test_deepl_node_20_and_libretranslate_820_terms_are_translated_whole_and_once(translate):
    """A term of several words came out by half, or was translated again."""
    answer = translate({WORD: "Haus und Fluss"})
    assert answer["translatedText"].lower().count("haus und fluss") >= 2  # one in each sentence
    assert "missingTerms" not in answer


def test_libretranslate_820_a_glossary_applied_by_half_is_visible(translate):
    answer = translate({WORD: "\u4e00"})  # no piece of the vocabulary
    assert answer["missingTerms"] == [WORD, WORD]


@pytest.fixture(scope="module")
def address():
    with serving(made_service(MadeJob(), wait_milliseconds=0)) as url:
        yield url


def test_libretranslate_775_an_unknown_glossary_is_not_ignored(address):
    deepl = {"text": ["a"], "source_lang": "EN", "target_lang": "DE"}
    status, answer = call(address, "/v2/translate", deepl | {"glossary_id": "no-such-glossary"})
    assert (status, answer["message"]) == (404, "there is no glossary 'no-such-glossary'")
    body = {"q": "a", "source": "en", "target": "de", "glossary": "no-such-glossary"}
    status, answer = call(address, "/translate", body)
    assert status == 400 and "glossary must be an object" in answer["error"]


def test_a_forbidden_translation_that_occurs_is_visible(address):
    body = {"q": ["a file", "a"], "source": "en", "target": "de", "glossary": {"": "!file"}}
    _, answer = call(address, "/translate", body)
    assert answer["translatedText"] == ["[de] a file", "[de] a"]
    assert answer["forbiddenTerms"] == [["file"], []] and "missingTerms" not in answer


def test_deepl_node_20_a_glossary_by_half_is_visible_in_deepls_form(address):
    """The made job leaves out terms whose translation is `odd`."""
    new = {
        "name": "n",
        "source_lang": "EN",
        "target_lang": "DE",
        "entries_format": "tsv",
        "entries": "one\teins\ntwo\todd",
    }
    _, glossary = call(address, "/v2/glossaries", new)
    body = {
        "text": ["one two", "one"],
        "source_lang": "EN",
        "target_lang": "DE",
        "glossary_id": glossary["glossary_id"],
    }
    _, answer = call(address, "/v2/translate", body)
    first, second = answer["translations"]
    assert first["text"] == "[de] eins two" and first["missing_terms"] == ["two"]
    assert second["text"] == "[de] eins" and "missing_terms" not in second
