"""DeepL's glossaries of several dictionaries, with its client and by their routes."""

from __future__ import annotations

import concurrent.futures
import json
import urllib.error
import urllib.request

import deepl
import pytest
from deepl.api_data import MultilingualGlossaryDictionaryEntries as Entries

from mnmt_jax.serving.database import Database
from mnmt_jax.serving.glossary_store import GlossaryStore
from tests.unit.made_server import MadeJob, made_service, serving
from tests.unit.test_serving import call

DICTIONARY = {
    "source_lang": "en",
    "target_lang": "de",
    "entries": "file\tDatei",
    "entries_format": "tsv",
}
NEW = {"name": "Parts", "dictionaries": [DICTIONARY]}
BOTH = [Entries("EN", "DE", {"file": "Datei"}), Entries("DE", "EN", {"Datei": "file"})]


@pytest.fixture(scope="module")
def address():
    with serving(made_service(MadeJob(), wait_milliseconds=0)) as url:
        yield url


@pytest.fixture
def client(address) -> deepl.DeepLClient:
    return deepl.DeepLClient("key", server_url=address)


def send(address: str, method: str, path: str, body: object = None) -> tuple[int, object]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read() or "null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_glossary_of_two_directions_is_stored_and_used(client):
    made = client.create_multilingual_glossary("Parts", BOTH)
    directions = [(one.source_lang, one.target_lang, one.entry_count) for one in made.dictionaries]
    assert made.name == "Parts" and directions == [("EN", "DE", 1), ("DE", "EN", 1)]
    stored = client.get_multilingual_glossary(made.glossary_id)
    assert stored.creation_time == made.creation_time
    assert made.glossary_id in [one.glossary_id for one in client.list_multilingual_glossaries()]
    (entries,) = client.get_multilingual_glossary_entries(made, "DE", "EN").dictionaries
    assert entries.entries == "Datei\tfile"
    for text, source, target, expected in (
        ("A file", "EN", "DE", "[de] A Datei"),
        ("Die Datei", "DE", "EN-US", "[en] Die file"),
    ):
        result = client.translate_text(
            text, source_lang=source, target_lang=target, glossary=made.glossary_id
        )
        assert result.text == expected
    with pytest.raises(deepl.DeepLException, match="for EN to DE, DE to EN, not EN to FR"):
        client.translate_text("A", source_lang="EN", target_lang="FR", glossary=made.glossary_id)


def test_dictionaries_are_merged_replaced_and_deleted(client):
    made = client.create_multilingual_glossary("Parts", BOTH)

    def translated(text: str) -> str:
        options = {"source_lang": "EN", "target_lang": "DE", "glossary": made.glossary_id}
        return client.translate_text(text, **options).text

    assert translated("file view") == "[de] Datei view"
    client.update_multilingual_glossary_dictionary(
        made, Entries("EN", "DE", {"file": "Akte", "view": "Ansicht"})
    )
    assert translated("file view") == "[de] Akte Ansicht"
    added = client.update_multilingual_glossary_dictionary(made, Entries("EN", "FR", {"a": "b"}))
    counts = {(one.source_lang, one.target_lang): one.entry_count for one in added.dictionaries}
    assert counts == {("EN", "DE"): 2, ("DE", "EN"): 1, ("EN", "FR"): 1}
    replaced = client.replace_multilingual_glossary_dictionary(
        made, Entries("EN", "DE", {"view": "Sicht"})
    )
    assert replaced.entry_count == 1 and translated("file view") == "[de] file Sicht"
    renamed = client.update_multilingual_glossary_name(made, "Other")
    assert renamed.name == "Other" and len(renamed.dictionaries) == 3
    client.delete_multilingual_glossary_dictionary(made, source_lang="EN", target_lang="DE")
    with pytest.raises(deepl.DeepLException, match="for DE to EN, EN to FR, not EN to DE"):
        translated("file")
    client.delete_multilingual_glossary(made)
    with pytest.raises(deepl.GlossaryNotFoundException):
        client.get_multilingual_glossary(made.glossary_id)
    with pytest.raises(deepl.GlossaryNotFoundException):
        client.delete_multilingual_glossary(made)


def test_version_2_sees_the_glossaries_of_one_dictionary(client):
    one = client.create_multilingual_glossary("One", BOTH[:1])
    two = client.create_multilingual_glossary("Two", BOTH)
    listed = [glossary.glossary_id for glossary in client.list_glossaries()]
    assert one.glossary_id in listed and two.glossary_id not in listed
    assert client.get_glossary_entries(one.glossary_id) == {"file": "Datei"}
    with pytest.raises(deepl.GlossaryNotFoundException):
        client.get_glossary(two.glossary_id)
    pairs = client.get_glossary_languages()
    assert ("en", "de") in [(pair.source_lang, pair.target_lang) for pair in pairs]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (NEW | {"name": ""}, "missing name parameter"),
        (NEW | {"dictionaries": []}, "missing dictionaries parameter"),
        (NEW | {"dictionaries": "x"}, "dictionaries must be a list of objects"),
        (NEW | {"dictionaries": ["x"]}, "dictionaries must be a list of objects"),
        (NEW | {"dictionaries": [DICTIONARY] * 2}, "dictionaries: two are for EN to DE"),
        (
            NEW | {"dictionaries": [DICTIONARY | {"target_lang": "xh"}]},
            "target_lang: xh is not supported",
        ),
        (
            NEW | {"dictionaries": [DICTIONARY | {"entries": "a"}]},
            "entries, line 1: 1 columns instead of 2",
        ),
    ],
)
def test_mistakes_have_a_line_in_the_form_of_deepl(address, body, message):
    status, answer = call(address, "/v3/glossaries", body)
    assert status == 400 and message in answer["message"]


def test_what_there_is_not_has_status_404(address):
    _, made = send(address, "POST", "/v3/glossaries", NEW)
    path, query = f"/v3/glossaries/{made['glossary_id']}", "?source_lang=de&target_lang=en"
    for method, end, body in (
        ("GET", f"/entries{query}", None),
        ("DELETE", f"/dictionaries{query}", None),
    ):
        status, answer = send(address, method, path + end, body)
        assert (status, answer) == (404, {"message": "the glossary has no dictionary for DE to EN"})
    for method, end, body in (
        ("GET", "", None),
        ("PATCH", "", {"name": "x"}),
        ("DELETE", "", None),
        ("PUT", "/dictionaries", DICTIONARY),
        ("GET", f"/entries{query}", None),
    ):
        status, answer = send(address, method, f"/v3/glossaries/none{end}", body)
        assert (status, answer) == (404, {"message": "there is no glossary 'none'"})
    assert send(address, "GET", "/v3/nowhere") == (404, {"message": "Not Found"})
    assert send(address, "PATCH", path, {"name": 3}) == (400, {"message": "name must be text"})
    assert send(address, "PATCH", path, {"name": "New"})[1]["name"] == "New"


def test_an_owner_changes_no_glossary_of_another():
    store = GlossaryStore(Database())
    (made,) = store.create("one", "Parts", {("EN", "DE"): [("a", "b")]})
    store.rename("other", made.id, "Mine")
    assert not store.delete("other", made.id, ("EN", "DE"))
    assert store.find("one", made.id) == [made] and store.of_owner("other") == []
    assert store.put("other", made.id, ("EN", "DE"), [("x", "y")]) is None
    assert store.pairs(made) == [("a", "b")]


def test_changes_at_the_same_time_are_all_kept():
    store = GlossaryStore(Database())
    (made,) = store.create("one", "Parts", {("EN", "DE"): [("a", "b")]})
    languages = ("EN", "DE")

    def add(number: int) -> None:
        store.put("one", made.id, languages, [(f"a{number}", "b")], merge=True)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    assert dict(store.pairs(made)) == {"a": "b", **{f"a{n}": "b" for n in range(40)}}
    store.delete("one", made.id)
    assert store.put("one", made.id, languages, [("a", "b")]) is None
    assert store.find("one", made.id) == []


def test_another_spelling_of_a_term_replaces_it():
    store = GlossaryStore(Database())
    languages = ("EN", "DE")
    (made,) = store.create("one", "Parts", {languages: [("New York", "old")]})
    store.put("one", made.id, languages, [("New  York", "new")], merge=True)
    assert store.pairs(made) == [("New  York", "new")]
    (entry,) = store.glossary(made).entries
    assert entry.targets == ("new",)


def test_a_stored_dictionary_with_two_spellings_of_a_term_is_used():
    store = GlossaryStore(Database())
    pairs = [("New York", "old"), ("New  York", "new")]
    (made,) = store.create("one", "Parts", {("EN", "DE"): pairs})
    (entry,) = store.glossary(made).entries
    assert entry.targets == ("new",)


def test_a_glossary_that_changes_while_it_is_loaded_is_loaded_again(monkeypatch):
    store = GlossaryStore(Database())
    (made,) = store.create("one", "Parts", {("EN", "DE"): [("a", "old")]})
    read = store._entries

    def entries(stored):
        result = read(stored)
        monkeypatch.setattr(store, "_entries", read)
        store.put("one", made.id, ("EN", "DE"), [("a", "new")])
        return result

    monkeypatch.setattr(store, "_entries", entries)
    targets = [store.glossary(made).entries[0].targets for _ in range(2)]
    assert targets == [("old",), ("new",)]


def test_a_glossary_that_another_server_changes_is_loaded_again(tmp_path):
    first, second = (GlossaryStore(Database(tmp_path / "server.db")) for _ in range(2))
    (made,) = first.create("one", "Parts", {("EN", "DE"): [("a", "old")]})
    loaded = second.glossary(made)
    assert loaded.entries[0].targets == ("old",) and second.glossary(made) is loaded
    first.put("one", made.id, ("EN", "DE"), [("a", "new")])
    assert second.glossary(made).entries[0].targets == ("new",)
    first.delete("one", made.id)
    assert second.glossary(made).entries == ()
