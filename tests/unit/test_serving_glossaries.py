"""Glossaries of the server: DeepL's routes with its client, and LibreTranslate's field."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import deepl
import pytest

from mnmt_jax.config.sections import Decode
from mnmt_jax.serving import glossary_store
from mnmt_jax.serving.api_keys import ApiKeys
from mnmt_jax.serving.database import Database
from mnmt_jax.serving.glossary_store import GlossaryStore, TooManyGlossaries
from tests.unit.made_server import LANGUAGES, MadeJob, made_service, serving
from tests.unit.test_serving import call

NEW = {
    "name": "Parts",
    "source_lang": "en",
    "target_lang": "de",
    "entries": "file\tDatei",
    "entries_format": "tsv",
}


@pytest.fixture(scope="module")
def job() -> MadeJob:
    return MadeJob()


@pytest.fixture(scope="module")
def address(job):
    with serving(made_service(job, wait_milliseconds=0)) as url:
        yield url


def _request(address, path, method):
    request = urllib.request.Request(f"{address}{path}", method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.status, response.headers["content-type"], response.read().decode()


def test_the_client_of_deepl_makes_lists_uses_and_deletes_a_glossary(address):
    client = deepl.Translator("key", server_url=address)
    terms = {"file": "Datei", "print | preview": "Druckansicht|!x"}
    made = client.create_glossary("Parts", source_lang="EN", target_lang="DE", entries=terms)
    assert made.ready and made.entry_count == 2 and made.name == "Parts"
    assert (made.source_lang, made.target_lang) == ("EN", "DE")
    assert made.glossary_id in [one.glossary_id for one in client.list_glossaries()]
    stored = client.get_glossary(made.glossary_id)
    assert stored.creation_time == made.creation_time
    assert client.get_glossary_entries(made) == terms
    result = client.translate_text_with_glossary("A file. Files: file", made)
    assert result.text == "[de] A Datei. [de] Files: Datei"
    literal = client.translate_text(
        "print | preview", source_lang="EN", target_lang="DE", glossary=made
    )
    assert literal.text == "[de] Druckansicht|!x"
    client.delete_glossary(made)
    assert made.glossary_id not in [one.glossary_id for one in client.list_glossaries()]
    with pytest.raises(deepl.exceptions.GlossaryNotFoundException):
        client.get_glossary(made.glossary_id)
    with pytest.raises(deepl.exceptions.GlossaryNotFoundException):
        client.delete_glossary(made)
    with pytest.raises(deepl.DeepLException, match="there is no glossary"):
        client.translate_text("file", source_lang="EN", target_lang="DE", glossary=made)


def test_the_client_makes_a_glossary_of_a_csv_file(address):
    client = deepl.Translator("key", server_url=address)
    text = 'file,Datei,en,pt-BR\n"one, two","eins, zwei"\n'
    made = client.create_glossary_from_csv("CSV", source_lang="EN", target_lang="PT", csv_data=text)
    assert client.get_glossary_entries(made) == {"file": "Datei", "one, two": "eins, zwei"}
    result = client.translate_text("one, two", source_lang="EN", target_lang="PT-BR", glossary=made)
    assert result.text == "[pt] eins, zwei"


def test_pairs_are_the_directions_of_the_models(address):
    pairs = deepl.Translator("key", server_url=address).get_glossary_languages()
    expected = {(a.upper(), b.upper()) for a in LANGUAGES for b in LANGUAGES if a != b}
    actual = [(pair.source_lang.upper(), pair.target_lang.upper()) for pair in pairs]
    assert set(actual) == expected and len(actual) == len(expected)


def test_status_and_form_of_the_routes(address):
    status, made = call(address, "/v2/glossaries", NEW)
    assert status == 201
    path = f"/v2/glossaries/{made['glossary_id']}"
    assert _request(address, f"{path}/entries", "GET") == (
        200,
        "text/tab-separated-values; charset=utf-8",
        "file\tDatei",
    )
    assert json.loads(_request(address, path, "GET")[2]) == made
    status, _, body = _request(address, path, "DELETE")
    assert (status, body) == (204, "")
    assert call(address, path)[0] == 404


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "missing name parameter"),
        ({"name": 3}, "name must be text"),
        ({"source_lang": None}, "missing source_lang parameter"),
        ({"source_lang": "xh"}, "source_lang: xh is not supported"),
        ({"target_lang": "en"}, "no translation from EN to EN"),
        ({"entries": ""}, "missing entries parameter"),
        ({"entries": "\n"}, "the glossary has no terms"),
        ({"entries": ["a"]}, "entries must be text"),
        ({"entries_format": "xml"}, "entries_format: 'xml' must be tsv or csv"),
        ({"entries": "a\tb\n\nc"}, "entries, line 3: 1 columns instead of 2"),
        ({"entries": "a\tb\tc"}, "entries, line 1: 3 columns instead of 2"),
        ({"entries": "a\tb\nc\t"}, "entries, line 2: a term or its translation is empty"),
        ({"entries": "a\tb\na\tc"}, "entries, line 2: the term occurs twice"),
        ({"entries": "caf\u00e9\tb\ncafe\u0301\tc"}, "entries, line 2: the term occurs twice"),
        ({"entries": "a,b\r\n \r\nc", "entries_format": "csv"}, "entries, line 3: 1 columns"),
        ({"entries": "a\tb\x07"}, "entries, line 1: a control character"),
        ({"entries": 'a,"b', "entries_format": "csv"}, "entries, line 1: unexpected end"),
        ({"entries": "a,b,c", "entries_format": "csv"}, "entries, line 1: 3 columns"),
        (
            {"entries": "a,b\nc,d,fr,es", "entries_format": "csv"},
            "entries, line 2: fr to es instead",
        ),
        ({"entries": "a,b,en,?", "entries_format": "csv"}, "line 1: en to ? instead of EN to DE"),
        ({"entries": '"a\nb",c', "entries_format": "csv"}, "entries, line 2: a control character"),
    ],
)
def test_a_mistake_in_a_glossary_has_a_line(address, changes, message):
    status, answer = call(address, "/v2/glossaries", NEW | changes)
    assert status == 400 and message in answer["message"]


@pytest.mark.parametrize(("kind", "separator"), [("tsv", "\t"), ("csv", ",")])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_byte_order_mark_is_no_part_of_a_term(address, kind, separator, end):
    entries = f"\ufefffile{separator}Datei{end}{end}folder{separator}Ordner{end}"
    status, made = call(
        address, "/v2/glossaries", NEW | {"entries": entries, "entries_format": kind}
    )
    assert (status, made["entry_count"]) == (201, 2)
    entries = _request(address, f"/v2/glossaries/{made['glossary_id']}/entries", "GET")[2]
    assert entries == "file\tDatei\nfolder\tOrdner"


def test_a_glossary_is_for_its_languages_alone(address):
    _, made = call(address, "/v2/glossaries", NEW)
    identifier = made["glossary_id"]
    body = {"text": ["file"], "target_lang": "FR", "source_lang": "EN", "glossary_id": identifier}
    status, answer = call(address, "/v2/translate", body)
    message = "glossary_id: the glossary is for EN to DE, not EN to FR"
    assert (status, answer["message"]) == (400, message)
    status, answer = call(
        address, "/v2/translate", {"text": ["a"], "target_lang": "DE"} | {"glossary_id": identifier}
    )
    assert (status, answer["message"]) == (400, "glossary_id needs source_lang")
    status, answer = call(address, "/v2/translate", body | {"glossary_ids": [identifier]})
    assert status == 400 and "glossary_ids is not supported" in answer["message"]


def test_a_field_of_libretranslate_has_the_terms(address):
    body = {"q": "a file", "source": "en", "target": "de"}
    glossary = {"file": ["Datei", "Akte"]}
    assert call(address, "/translate", body | {"glossary": glossary}) == (
        200,
        {"translatedText": "[de] a Datei"},
    )
    text = f"q=a+file&source=en&target=de&glossary={json.dumps(glossary)}".encode()
    assert call(address, "/translate", text)[1] == {"translatedText": "[de] a Datei"}
    detected = call(address, "/translate", body | {"source": "auto", "glossary": glossary})[1]
    assert detected["translatedText"] == "[de] a Datei"


@pytest.mark.parametrize(
    ("glossary", "message"),
    [
        ("Parts", "glossary must be an object of terms and their translations"),
        (["file"], "glossary must be an object of terms and their translations"),
        ({"file": 3}, "glossary: 'file' must have a text or a list of texts"),
        ({"file": ""}, "glossary: a target of 'file' is empty"),
    ],
)
def test_a_field_without_terms_is_refused(address, glossary, message):
    body = {"q": "a file", "source": "en", "target": "de", "glossary": glossary}
    status, answer = call(address, "/translate", body)
    assert status == 400 and message in answer["error"]


def test_a_server_that_samples_refuses_a_glossary(address, job, monkeypatch):
    monkeypatch.setattr(job, "decode", Decode(temperature=1.0))
    body = {"q": "a file", "source": "en", "target": "de", "glossary": {"file": "Datei"}}
    status, answer = call(address, "/translate", body)
    assert (status, answer) == (
        400,
        {"error": "glossary: not supported, because the server samples"},
    )


def test_glossaries_are_kept_and_belong_to_their_owner(tmp_path, monkeypatch):
    pairs = [("file", "Datei|x")]
    database = Database(tmp_path / "server.db")
    (made,) = GlossaryStore(database).create("one", "Parts", {("EN", "DE"): pairs})
    database.close()
    store = GlossaryStore(Database(tmp_path / "server.db"))
    assert store.find("one", made.id) == [made] and store.of_owner("one") == [[made]]
    assert store.pairs(made) == pairs
    assert [entry.targets for entry in store.glossary(made).entries] == [("Datei|x",)]
    assert store.find("other", made.id) == [] and store.of_owner("other") == []
    assert not store.delete("other", made.id)
    monkeypatch.setattr(glossary_store, "MAX_GLOSSARIES", 1)
    with pytest.raises(TooManyGlossaries):
        store.create("one", "More", {("EN", "DE"): pairs})
    (other,) = store.create("other", "More", {("EN", "DE"): pairs})
    assert other.count == 1
    assert store.delete("one", made.id) and not store.delete("one", made.id)


def test_few_glossaries_are_in_memory(monkeypatch):
    monkeypatch.setattr(glossary_store, "_LOADED", 2)
    store = GlossaryStore(Database())
    made = [store.create("", str(n), {("EN", "DE"): [("a", str(n))]})[0] for n in range(4)]
    for stored in made:
        assert store.glossary(stored).entries[0].targets == (stored.name,)
    assert len(store._loaded) == 2


def test_a_glossary_belongs_to_the_api_key_that_stored_it():
    service = made_service(MadeJob(), wait_milliseconds=0)
    keys = ApiKeys(service.database)
    one, other = keys.create("one"), keys.create("other")
    with serving(service) as address:
        client = deepl.Translator(one, server_url=address)
        made = client.create_glossary("n", source_lang="EN", target_lang="DE", entries={"a": "b"})
        assert len(client.list_glossaries()) == 1
        for key in (other, "unknown"):
            stranger = deepl.Translator(key, server_url=address)
            assert stranger.list_glossaries() == []
            with pytest.raises(deepl.exceptions.GlossaryNotFoundException):
                stranger.get_glossary(made.glossary_id)
            with pytest.raises(deepl.DeepLException, match="there is no glossary"):
                stranger.translate_text("a", source_lang="EN", target_lang="DE", glossary=made)
