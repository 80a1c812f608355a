"""Documents of the server: upload, limits, download, expiry, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import tempfile
import threading
import time
from urllib.parse import urlsplit

import deepl
import pytest
import requests

from mnmt_jax.config.sections import Decode
from mnmt_jax.documents.formats import FORMATS
from mnmt_jax.serving.api_keys import ApiKeys
from mnmt_jax.serving.database import Database
from mnmt_jax.serving.document_store import DocumentStore
from mnmt_jax.serving.refused_error import RefusedError
from tests.unit.made_documents import make_docx, make_zip, part
from tests.unit.made_server import MadeJob, made_service, serving
from tests.unit.test_hostile_documents import DOCUMENTS

TEXT = b"\xef\xbb\xbfHello, you.\r\n\r\nGoodbye.\r\n"


@pytest.fixture
def job():
    return MadeJob()


@pytest.fixture
def address(job):
    limits = {"max_document_bytes": 50_000, "max_bytes": 2000, "max_documents": 6}
    with serving(made_service(job, wait_milliseconds=0, **limits)) as url:
        yield url


def send(address: str, data: bytes = TEXT, name: str = "a.txt", **fields: str) -> requests.Response:
    fields = {"source": "en", "target": "de"} | fields
    return requests.post(
        f"{address}/translate_file", data=fields, files={"file": (name, data)}, timeout=60
    )


def refusal(response: requests.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]


def test_a_file_is_translated_and_downloaded(address):
    response = send(address, name="My file.txt")
    assert response.status_code == 200
    url = response.json()["translatedFileUrl"]
    assert re.fullmatch(rf"{address}/download_file/[0-9A-F]{{32}}\.txt", url)
    for _ in range(2):
        file = requests.get(url, timeout=60)
        assert file.content == b"\xef\xbb\xbf[de] Hello, you.\r\n\r\n[de] Goodbye.\r\n"
    assert file.headers["Content-Type"] == "text/plain"
    assert file.headers["X-Content-Type-Options"] == "nosniff"
    assert file.headers["Content-Disposition"] == "attachment; filename*=UTF-8''My%20file.de.txt"
    other = send(address).json()["translatedFileUrl"]
    assert other != url


def test_the_language_of_a_document_is_detected_once(address, job):
    text = "Das ist ein deutscher Satz mit Wörtern.\n\nOk.".encode()
    url = send(address, text, source="auto", target="fr").json()["translatedFileUrl"]
    assert requests.get(url, timeout=60).content.startswith(b"[fr] Das ist")
    head = f"<title>A</title>{'<meta name=the content=english>' * 200}"
    page = f"<html><head>{head}</head><p>Þetta er íslenskur texti sem enginn skilur.</p></html>"
    assert refusal(send(address, page.encode(), "a.html", source=""))[0] == 400
    answer = refusal(
        send(address, "Þetta er íslenskur texti sem enginn skilur.".encode(), source="")
    )
    assert answer == (400, "the language of the document is not detected; choose it")


def test_the_language_that_a_file_names_is_its_language(address):
    """Its texts may be too short to detect one."""
    units = '<trans-unit id="1"><source>Das ist ein deutscher Satz.</source></trans-unit>'
    file = '<xliff version="1.2"><file source-language="{}"><body>{}</body></file></xliff>'
    answer = send(address, file.format("en-US", units).encode(), "a.xlf", source="auto")
    text = requests.get(answer.json()["translatedFileUrl"], timeout=60).text
    assert "<target>[de] Das ist" in text
    answer = refusal(send(address, file.format("xh", units).encode(), "a.xlf", source="auto"))
    assert answer == (400, "source: xh is not supported")
    answer = refusal(send(address, file.format("en", units).encode(), "a.xlf", source="fr"))
    assert answer == (400, "a.xlf: source-language=en in the file, but fr is asked for")
    answer = send(address, file.format("en", units).encode(), "a.xlf", target="de-AT")
    text = requests.get(answer.json()["translatedFileUrl"], timeout=60).text
    assert 'target-language="de-AT"' in text


def test_formats_are_listed(address):
    settings = requests.get(f"{address}/frontend/settings", timeout=60).json()
    assert settings["filesTranslation"] is True
    assert settings["supportedFilesFormat"] == list(FORMATS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target": ""}, "missing target parameter"),
        ({"target": "xh"}, "xh is not supported"),
        ({"source": "xh"}, "xh is not supported"),
        ({"source": "DE"}, "Source and target language are equal: de"),
        ({"name": "a.pdf"}, "a.pdf: the file extension must be one of .txt, .md, .html,"),
        ({"name": "../a.txt"}, "file='../a.txt': has a separator of folders"),
        ({"name": "a\\b.txt"}, "has a separator of folders"),
        ({"data": b"caf\xe9"}, "a.txt:1: is not UTF-8; convert the file to UTF-8"),
        ({"data": b"12:30"}, "a.txt: has no text; there is nothing to translate"),
        ({"data": b"PK\3\4", "name": "a.docx"}, "a.docx: is no complete zip archive; save"),
    ],
)
def test_bad_requests_are_answered_with_one_line(address, fields, message):
    status, error = refusal(send(address, **fields))
    assert status == 400 and message in error and "\n" not in error


def test_a_file_is_required(address, caplog):
    url = f"{address}/translate_file"
    fields = {"source": "en", "target": "de"}
    for options in ({"data": fields}, {"json": fields}, {"files": {"other": b"a"}, "data": fields}):
        status, error = refusal(requests.post(url, timeout=60, **options))
        assert status == 400 and error.endswith("missing file parameter")
    text = requests.post(url, json=fields | {"file": "a"}, timeout=60)
    assert refusal(text) == (400, "file must be a file of multipart/form-data")
    broken = {"Content-Type": "multipart/form-data; boundary=b"}
    assert requests.post(url, b"--b\r\nwro\x9ang: a", headers=broken, timeout=60).status_code == 400
    broken = {"Content-Type": "multipart/form-data"}
    assert requests.post(url, b"a", headers=broken, timeout=60).status_code == 400
    assert not [record for record in caplog.records if "multipart" in record.name]


@pytest.mark.parametrize("name", ["file", "source", "target", "model", "api_key", "glossary"])
def test_fields_of_a_wrong_kind_are_refused(address, name):
    """A file instead of text, a text instead of a file, and other kinds in JSON."""
    fields = {"source": "en", "target": "de"}
    for files in ({"file": ("a.txt", TEXT), name: ("b", b"b")}, {name: ("ä\x01.txt", b"b")}):
        sent = {key: value for key, value in fields.items() if key != name}
        response = requests.post(f"{address}/translate_file", sent, files=files, timeout=60)
        assert response.status_code == 400, response.text
    for value in (3, [3], {"a": 3}, None, True):
        body = fields | {"file": "a"} | {name: value}
        response = requests.post(f"{address}/translate_file", json=body, timeout=60)
        assert response.status_code == 400, response.text


def test_the_size_of_documents_has_its_limit(address):
    text = b"Yes. " * 2000
    assert send(address, text).status_code == 200  # more than --max_bytes
    answer = refusal(send(address, b"a" * 50_000))
    assert answer == (413, "the body has more than 50000 bytes")
    plain = requests.post(f"{address}/translate", b"a" * 2001, timeout=60)
    assert refusal(plain) == (413, "the body has more than 2000 bytes")


def test_long_documents_are_translated_in_parts(job):
    settings = {"window": 2, "max_sentences": 3, "max_characters": 10, "max_waiting": 3}
    with serving(made_service(job, wait_milliseconds=0, **settings)) as address:
        url = send(address, b"Yes.\n" * 20).json()["translatedFileUrl"]
        assert requests.get(url, timeout=60).content == b"[de] Yes.\n" * 20
    assert sum(map(len, job.batches)) == 20 and max(map(len, job.batches)) <= 3


def test_a_document_waits_as_long_as_too_much_is_waiting(job, monkeypatch):
    """Another request, which fills the queue, is translated first."""
    monkeypatch.setattr("mnmt_jax.serving.text_run.RETRY_SECONDS", 0.05)
    job.gate.clear()
    fields = {"q": ["One.", "Two.", "Three."], "source": "en", "target": "de"}
    with serving(made_service(job, wait_milliseconds=0, max_waiting=3, window=1)) as address:
        others = [
            threading.Thread(
                target=requests.post, args=(f"{address}/translate",), kwargs={"json": fields}
            )
            for _ in range(2)
        ]
        for thread in others:
            thread.start()
            time.sleep(0.3)
        document = threading.Thread(target=lambda: answers.append(send(address)))
        answers: list[requests.Response] = []
        document.start()
        time.sleep(0.5)
        assert not answers
        job.gate.set()
        for thread in (*others, document):
            thread.join(60)
    assert [answer.status_code for answer in answers] == [200]


def test_a_document_has_a_time_limit(job):
    job.gate.clear()
    with serving(made_service(job, wait_milliseconds=0, document_timeout=1)) as address:
        answer = refusal(send(address))
        job.gate.set()
    assert answer == (503, "the translation took too long; divide the document")


@pytest.mark.parametrize("text", [TEXT, b"Fail.", b"12", b"caf\xe9"])
def test_nothing_is_left_behind(job, tmp_path, monkeypatch, text):
    """Neither files nor, after their time, documents in memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stores = []
    monkeypatch.setattr(
        "mnmt_jax.serving.service.DocumentStore",
        lambda *args: stores.append(DocumentStore(*args)) or stores[-1],
    )
    with serving(made_service(job, wait_milliseconds=0, document_lifetime=1)) as address:
        response = send(address, text)
        assert len(stores[0]) == (response.status_code == 200)
        assert not os.listdir(tmp_path)
        if response.status_code == 200:
            url = response.json()["translatedFileUrl"]
            assert requests.get(url, timeout=60).status_code == 200
            deadline = time.monotonic() + 30
            while len(stores[0]) and time.monotonic() < deadline:
                time.sleep(0.05)
            message = "no such document; it is kept for a limited time"
            assert refusal(requests.get(url, timeout=60)) == (404, message)
    assert not len(stores[0])


def test_too_many_documents_in_translation_are_refused(address, job):
    job.gate.clear()
    url, files = f"{address}/v2/document", {"file": ("a.txt", TEXT)}
    fields = {"source_lang": "EN", "target_lang": "DE"}
    handles = [requests.post(url, fields, files=files, timeout=60).json() for _ in range(3)]
    time.sleep(4)
    response = send(address)
    broken = [send(address, b"12").status_code for _ in range(3)]
    job.gate.set()
    message = "3 documents are in translation, half of --max_documents=6 of the server is for one"
    assert refusal(response) == (429, f"{message} user; try again later")
    assert 4 <= int(response.headers["Retry-After"]) < 30  # nothing is known but their age
    assert broken == [429] * 3
    deadline = time.monotonic() + 30
    while send(address).status_code != 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert time.monotonic() < deadline and len(handles) == 3


def test_translated_documents_do_not_count_as_in_translation(address):
    """Neither fetched ones nor others: more than the most at a time, within their lifetime."""
    urls = [send(address).json()["translatedFileUrl"] for _ in range(9)]
    assert {requests.get(url, timeout=60).status_code for url in urls} == {200}


def test_fetched_documents_make_room_for_others(job):
    data = b"A sentence. " * 2500
    settings = {"wait_milliseconds": 0, "max_kept_bytes": 150_000}
    with serving(made_service(job, **settings)) as address:
        urls = [send(address, data).json()["translatedFileUrl"] for _ in range(2)]
        assert requests.get(urls[1], timeout=60).status_code == 200
        urls.append(send(address, data).json()["translatedFileUrl"])
        assert [requests.get(url, timeout=60).status_code for url in urls] == [200, 404, 200]


def test_the_user_with_the_most_bytes_makes_room():
    async def translate(document) -> bytes:
        return bytes(60_000 if document.user == "much" else 10)

    async def use() -> None:
        store = DocumentStore(60, 4, 180_000)
        names = []
        for user in ("little", "much", "much", "little"):
            names.append(store.add("a.txt", "de", user, has_key=False)[0])
            await store.run(names[-1], translate)
        assert len(store) == 3
        assert store.get(names[0]) and store.get(names[2]) and store.get(names[3])
        with pytest.raises(RefusedError):
            store.get(names[1])

    asyncio.run(use())


def test_failed_documents_leave_room(address):
    assert [send(address, b"12").status_code for _ in range(5)] == [400] * 5
    assert send(address).status_code == 200


def test_a_client_that_goes_away_takes_its_document_with_it(job):
    job.gate.clear()
    with serving(made_service(job, wait_milliseconds=0, max_documents=1)) as address:
        with pytest.raises(requests.exceptions.ReadTimeout):
            requests.post(
                f"{address}/translate_file",
                data={"source": "en", "target": "de"},
                files={"file": ("a.txt", TEXT)},
                timeout=0.5,
            )
        job.gate.set()
        deadline = time.monotonic() + 30
        while send(address).status_code != 200 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert time.monotonic() < deadline


def test_a_document_in_translation_when_the_server_ends_is_removed():
    async def translate(document) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def use(store: DocumentStore) -> None:
        name, document = store.add("a.txt", "de", "one", has_key=True)
        store.start(name, translate)
        await asyncio.sleep(0)
        document.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await document.task
        assert document.task.cancelled()

    store = DocumentStore(600, 8, 1 << 20)
    asyncio.run(use(store))
    assert len(store) == 0


def test_other_requests_are_answered_while_a_document_is_read(monkeypatch, job):
    reads, goes_on = threading.Event(), threading.Event()

    def slow(*args):
        reads.set()
        assert goes_on.wait(60)
        raise RefusedError(400, "slow")

    monkeypatch.setattr("mnmt_jax.serving.document_routes.read_document", slow)
    with serving(made_service(job, wait_milliseconds=0)) as address:
        thread = threading.Thread(target=send, args=(address,))
        thread.start()
        assert reads.wait(60)
        assert requests.get(f"{address}/health", timeout=60).status_code == 200
        goes_on.set()
        thread.join()


def test_names_of_downloads_lead_nowhere(address):
    for name in ("../../etc/passwd", "%2e%2e%2fetc%2fpasswd", "a", "..", "a.txt"):
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
        connection.request("GET", f"/download_file/{name}")  # as it is, unlike requests
        assert connection.getresponse().status == 404
        connection.close()


@pytest.fixture
def short_sleeps(monkeypatch):
    """Shorten the pauses of DeepL's client."""
    monkeypatch.setattr(time, "sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.05)))


@pytest.fixture
def client(address, short_sleeps):
    return deepl.Translator("key", server_url=address)


def test_the_client_of_deepl_translates_documents(client, tmp_path):
    (tmp_path / "a.txt").write_bytes(TEXT)
    status = client.translate_document_from_filepath(
        tmp_path / "a.txt", tmp_path / "b.txt", target_lang="DE", source_lang="EN"
    )
    expected = b"\xef\xbb\xbf[de] Hello, you.\r\n\r\n[de] Goodbye.\r\n"
    assert (tmp_path / "b.txt").read_bytes() == expected
    assert status.done and status.billed_characters == len(TEXT.decode("utf-8-sig"))


def test_the_steps_of_a_document_of_deepl(client, job, address):
    job.gate.clear()
    handle = client.translate_document_upload(TEXT, target_lang="DE", filename="a.txt")
    status = client.translate_document_get_status(handle)
    assert status.ok and not status.done
    url = f"{address}/v2/document/{handle.document_id}"
    early = requests.post(f"{url}/result", {"document_key": handle.document_key}, timeout=60)
    assert early.status_code == 503
    job.gate.set()
    assert client.translate_document_wait_until_done(handle).done
    without_key = requests.get(f"{address}/download_file/{handle.document_id}", timeout=60)
    assert without_key.status_code == 404
    for key in ("", "wrong", "ü"):
        assert requests.post(url, {"document_key": key}, timeout=60).status_code == 404
        assert requests.post(f"{url}/result", {"document_key": key}, timeout=60).status_code == 404
    assert client.translate_document_download(handle).content.startswith(b"\xef\xbb\xbf[")
    with pytest.raises(deepl.DeepLException, match="no such document"):
        client.translate_document_get_status(handle)


@pytest.mark.parametrize(
    ("text", "message"),
    [(b"12", "a.txt: has no text; there is nothing to translate"), (b"Fail.", "translation")],
)
def test_the_status_of_a_document_of_deepl_states_its_error(client, text, message, capfd):
    handle = client.translate_document_upload(
        text, target_lang="DE", source_lang="EN", filename="a.txt"
    )
    status = client.translate_document_wait_until_done(handle)
    assert not status.ok and message in status.error_message
    assert "secret" not in status.error_message + capfd.readouterr().err
    with pytest.raises(deepl.DeepLException, match="Bad request"):
        client.translate_document_download(handle)


def test_documents_of_deepl_are_refused_at_once(client):
    for name, options, message in (
        ("a.pdf", {"target_lang": "DE"}, "a.pdf: the file extension"),
        ("a.txt", {"target_lang": "XH"}, "target_lang: XH is not supported"),
        ("a.txt", {"target_lang": "DE", "output_format": "pdf"}, "output_format is not supported"),
        ("a.txt", {"target_lang": "DE", "formality": "more"}, "formality: 'more' is not supported"),
        ("a.txt", {"target_lang": "DE", "style_rule": "a"}, "style_id is not supported"),
    ):
        with pytest.raises(deepl.DeepLException, match=message):
            client.translate_document_upload(TEXT, filename=name, **options)


def test_a_stored_document_needs_its_name_and_key():
    async def use() -> None:
        store = DocumentStore(1, 4, 1 << 20)
        name, document = store.add("../a.TXT", "de", "me", ".txt", has_key=True)
        assert re.fullmatch(r"[0-9A-F]{32}\.txt", name)
        assert store.get(name, document.key) is document
        named, other = store.add("b.txt", "de", "me", has_key=False)
        assert store.get(named) is other
        for wrong, key in ((name, "other"), (name, None), (named, document.key), (named, "")):
            with pytest.raises(RefusedError):
                store.get(wrong, key)
        for user in ("me", "you", "you", "they"):
            with (
                pytest.raises(RefusedError) if user in ("me", "they") else contextlib.nullcontext()
            ):
                store.add("c.txt", "de", user, has_key=False)

    asyncio.run(use())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_format_passes_the_server(address, name):
    response = send(address, DOCUMENTS[name], name)
    assert response.status_code == 200, response.text
    file = requests.get(response.json()["translatedFileUrl"], timeout=60).content
    text = file.decode("utf-8", "replace") if not file.startswith(b"PK") else ""
    for archived in ("word/document.xml", "content.xml"):
        if archived.encode() in file:
            text = part(file, archived)
    assert "[de" in text


def test_the_server_refuses_zip_bombs_and_paths(address):
    bomb = make_zip({"content.xml": "<a/>", "b": bytes(6 << 20)})
    assert refusal(send(address, bomb, "a.odt"))[0] == 400
    for data, name in ((make_zip({"../a": ""}), "a.odt"), (make_docx(""), "a.odt")):
        assert refusal(send(address, data, name))[0] == 400


def test_documents_count_towards_the_quota_of_a_key(job, tmp_path, short_sleeps):
    database = Database(str(tmp_path / "a.db"))
    key = ApiKeys(database).create("me", characters_per_month=25)
    settings = {"database": str(tmp_path / "a.db"), "require_keys": True}
    with serving(made_service(job, wait_milliseconds=0, **settings)) as address:
        assert refusal(send(address))[0] == 400
        assert send(address, b"Twenty characters ok", api_key=key).status_code == 200
        assert send(address, b"caf\xe9", api_key=key).status_code == 400
        status, error = refusal(send(address, b"Twenty characters ok", api_key=key))
        assert status == 403 and "too few characters left" in error
        client = deepl.Translator(key, server_url=address)
        assert client.get_usage().character.count == 20
        handle = client.translate_document_upload(TEXT, target_lang="DE", filename="a.txt")
        status = client.translate_document_wait_until_done(handle)
        assert "too few characters left" in status.error_message


def test_glossaries_apply_to_documents(job, short_sleeps):
    """The made job honours required terms; what is forbidden and there is stated."""
    terms = {"Hello": "Servus", "Goodbye": "!"}
    with serving(made_service(job, wait_milliseconds=0)) as address:
        answer = send(address, glossary=json.dumps({"Hello": "Servus", "Goodbye": "!Goodbye"}))
        file = requests.get(answer.json()["translatedFileUrl"], timeout=60).content
        assert "Servus" in file.decode() and answer.json()["forbiddenTerms"] == ["Goodbye"]
        wrong = send(address, glossary="Parts")
        assert refusal(wrong)[1] == "glossary must be an object of terms and their translations"
        client = deepl.Translator("key", server_url=address)
        made = client.create_glossary("a", source_lang="EN", target_lang="DE", entries=terms)
        for source, status in (("EN", 200), ("FR", 400), ("", 400)):
            fields = {"target_lang": "DE", "source_lang": source, "glossary_id": made.glossary_id}
            url, files = f"{address}/v2/document", {"file": ("a.txt", TEXT)}
            handle = requests.post(url, fields, files=files, timeout=60)
            assert handle.status_code == status
        job.decode = Decode(temperature=1.0)
        sampled = send(address, glossary=json.dumps({"Hello": "Servus"}))
        assert refusal(sampled)[1] == "glossary: not supported, because the server samples"
