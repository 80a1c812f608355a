"""The page of the routes, and the fields that the OpenAPI document states."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from html import unescape
from urllib.parse import urlencode

import pytest

from mnmt_jax.serving import deepl, request_fields
from mnmt_jax.serving.app import create_app
from mnmt_jax.serving.docs_page import make_docs_page
from mnmt_jax.serving.route_fields import ROUTES
from tests.unit.made_server import MadeJob, made_service, serving

REFUSED = {*deepl._REFUSED, "output_format"}  # read, so that they are not ignored in silence


@pytest.fixture(scope="module")
def document():
    service = made_service(MadeJob())
    yield create_app(service, lambda: True).openapi()
    service.stop()


def operations(document):
    return [
        ((method.upper(), path), operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def fetch(url):
    with urllib.request.urlopen(url) as response:
        return dict(response.headers), response.read().decode()


def test_the_docs_page_has_every_route_and_nothing_of_other_addresses(document):
    with serving(made_service(MadeJob())) as url:
        headers, html = fetch(f"{url}/docs")
        policy = fetch(f"{url}/")[0]["content-security-policy"]
        model_html = fetch(f"{url}/models/made/docs")[1]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(f"{url}/redoc")
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert headers["content-security-policy"] == policy
    for (method, path), operation in operations(document):
        assert f"{method}</span> <code>{path}</code></h3><p>{operation['summary']}</p>" in html
        command = rf"curl (-X {method} )?'?{url}{re.sub('{.*?}', 'ID', path)}[ '?<]"
        assert re.search(command, unescape(html)), path
    assert {*re.findall(r"\w+://[\w.:]+", html)} == {url}
    assert not re.search(r"<script|<style|\sstyle=|\son\w+=|(?:href|src)=\"/", html)
    links = re.findall(r'href="#([^"]+)"', html)
    assert len(links) == len(ROUTES) == len({*links})
    assert {*links} <= {*re.findall(r'id="([^"]+)"', html)}
    assert f"curl -X POST {url}/models/made/translate " in model_html


def test_examples_of_the_docs_page_have_a_key_where_it_is_required(document):
    html = make_docs_page(document, "http://host", require_keys=True)
    commands = re.findall(r"<code>(curl .*?)</code>", html, re.DOTALL)
    assert len(commands) == len(ROUTES)
    for command in commands:
        is_private = "-X POST" in command or re.search("host/v[23]/", command)
        assert ("Bearer KEY" in command) == bool(is_private), command
    assert 'Bearer KEY" \\' not in make_docs_page(document, "http://host", require_keys=False)


def test_text_of_the_document_cannot_become_html(document):
    made = json.loads(json.dumps(document).replace("Translate a text", "<b>Translate</b> a text"))
    html = make_docs_page(made, 'http://"><b>', require_keys=False)
    assert "<b>" not in html and "&lt;b&gt;Translate&lt;/b&gt; a text" in html


def test_every_route_has_a_sentence_and_its_fields(document):
    assert {key for key, _ in operations(document)} == {*ROUTES}
    assert "/suggest" not in document["paths"]
    for key, operation in operations(document):
        assert re.fullmatch(r"[A-Z][a-z]+ .*\.", operation["summary"]), key
        names = [field.name for field in ROUTES[key].fields]
        query = [
            field["name"] for field in operation.get("parameters", ()) if field["in"] != "path"
        ]
        assert all(field["description"] for field in operation.get("parameters", ())), key
        content = operation.get("requestBody", {}).get("content", {})
        for body in content.values():
            assert [*body["schema"]["properties"]] == names
            assert {*body["schema"]["required"]} <= {*body["example"]} <= {*names}
            assert all(field["description"] for field in body["schema"]["properties"].values())
        assert bool(content or query) == bool(names), key
        assert content or query == names, key
    form_and_json = document["paths"]["/translate"]["post"]["requestBody"]["content"]
    assert [*form_and_json] == ["application/json", "application/x-www-form-urlencoded"]


class ReadNames(dict):
    """Fields of a request that note which were asked for."""

    def __init__(self, fields, names):
        super().__init__(fields)
        self._names = names

    def get(self, name, default=None):
        self._names.add(name)
        return super().get(name, default)

    def __getitem__(self, name):
        self._names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name):
        self._names.add(name)
        return super().__contains__(name)


@pytest.fixture
def read_names(monkeypatch):
    """Return the set of the names that requests read."""
    names, read = set(), request_fields._read_fields

    async def noted(request, lists):
        return ReadNames(await read(request, lists), names)

    monkeypatch.setattr(request_fields, "_read_fields", noted)
    return names


def as_form(example):
    return urlencode(example, doseq=True).encode(), "application/x-www-form-urlencoded"


def as_json(example):
    return json.dumps(example).encode(), "application/json"


def as_multipart(example):
    """Return a form whose file is a document of text."""
    parts = []
    for name, value in example.items():
        is_file = value.startswith("@")
        file = '; filename="a.txt"' if is_file else ""
        head = f'--x\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        parts.append(f"{head}{'Hello!' if is_file else value}\r\n")
    return "".join([*parts, "--x--\r\n"]).encode(), "multipart/form-data; boundary=x"


ENCODINGS = {
    "application/json": as_json,
    "application/x-www-form-urlencoded": as_form,
    "multipart/form-data": as_multipart,
}


def send(url, method, path, operation, ids, kind):
    """Send the example of a route; return the answer."""
    body = operation.get("requestBody", {}).get("content", {}).get(kind)
    query = {
        field["name"]: field["example"]
        for field in operation.get("parameters", ())
        if "example" in field
    }
    example = body and {**body["example"], **{k: v for k, v in ids.items() if k in body["example"]}}
    data, content_type = ENCODINGS[kind](example) if body else (None, "text/plain")
    address = f"{url}{re.sub(r'{(.*?)}', lambda m: ids[m[1]], path)}?{urlencode(query)}"
    headers = {"Content-Type": content_type}
    request = urllib.request.Request(address, data, headers, method=method)
    for _ in range(200):
        try:
            with urllib.request.urlopen(request) as response:
                text = response.read()
                is_json = response.headers.get("content-type") == "application/json"
                return json.loads(text) if is_json and text else {}
        except urllib.error.HTTPError as error:
            assert error.code == 503, (method, address, error.code, error.read())
            time.sleep(0.05)  # a document that is not translated yet
    raise AssertionError(address)


def note_ids(answer, ids):
    """Keep what later requests need of an answer."""
    if isinstance(answer, dict):
        for name in ("document_key", "glossary_id", "document_id", "translatedFileUrl"):
            if name in answer:
                known = {"glossary_id": "identifier", "document_key": "document_key"}
                ids[known.get(name, "stored_name")] = answer[name].rpartition("/")[2]


CREATED_BY = {
    "/v2/glossaries/{": "/v2/glossaries",
    "/v3/glossaries/{": "/v3/glossaries",
    "/v2/document/{": "/v2/document",
    "/download_file/{": "/translate_file",
}


def test_examples_work_and_the_table_has_the_fields_that_are_read(document, read_names):
    routes = dict(operations(document))
    with serving(made_service(MadeJob(), wait_milliseconds=0)) as url:
        for (method, path), operation in routes.items():
            for kind in operation.get("requestBody", {}).get("content", {"": None}):
                ids = {}
                for creator in [to for start, to in CREATED_BY.items() if path.startswith(start)]:
                    creation = routes["POST", creator]
                    first = next(iter(creation["requestBody"]["content"]))
                    note_ids(send(url, "POST", creator, creation, {}, first), ids)
                read_names.clear()
                send(url, method, path, operation, ids, kind)
                names = {field.name for field in ROUTES[method, path].fields}
                ignored = {"tag_handling", "model_type"} if path == "/v2/document" else set()
                assert read_names - REFUSED - ignored == names, (method, path)


def test_examples_have_languages_of_the_server():
    service = made_service(MadeJob(("zh_Hans", "pt_BR")))
    paths = create_app(service, lambda: True).openapi()["paths"]
    service.stop()

    def example(path):
        return paths[path]["post"]["requestBody"]["content"]["application/json"]["example"]

    assert example("/translate") == {"q": "Hello!", "source": "zh_Hans", "target": "pt_BR"}
    assert example("/v2/translate") == {"text": ["Hello!"], "target_lang": "PT-BR"}
    dictionary = example("/v3/glossaries")["dictionaries"][0]
    assert (dictionary["source_lang"], dictionary["target_lang"]) == ("ZH", "PT-BR")
