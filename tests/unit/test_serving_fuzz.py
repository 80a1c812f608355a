"""Made requests of all routes: no error of the server, and nothing of another request's text.

MNMT_JAX_FUZZ=10000 makes as many requests; the default is 600.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import random
import re
import urllib.parse
from collections.abc import Iterator

import pytest

from mnmt_jax.serving.app import create_app
from tests.unit.made_server import MadeJob, made_service, serving

COUNT = int(os.environ.get("MNMT_JAX_FUZZ", "600"))
METHODS = ("GET", "POST", "POST", "POST", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD")
CODES = ("en", "de", "FR", "zh-Hans", "pt-br", "auto", "", "xx", "EN-US", "\N{SNOWMAN}", "en" * 999)
FRAGMENTS = (
    "Hello {name}!",
    "<b>bold <i>both</b> wrong</i>",
    "<p>One<br>two</p><script>x</script>",
    "<!-- a comment",
    "&amp; &nope; &#xD800; &#99999999;",
    "</p></p>",
    "<a href='x' title=\"y\">link</a>",
    "🙂👍🏽",
    "\u202e עברית العربية",
    "a\u0300\u0301\u0302" * 20,
    "\x00\x07\x1b[31m",
    "\ud800",
    "LOUD WORDS HERE.",
    "1. first\n2. second\n\n- third\r\n\t* fourth",
    "\u2028\u2029\x85",
    "%s %1$s ${VAR} https://example.org/?q=1",
    " " * 50,
    "word " * 300,
    "x" * 900,
)
FIELDS = (
    "q text source target source_lang target_lang format alternatives api_key tag_handling "
    "split_sentences ignore_tags glossary_id glossary checks model type name entries "
    "entries_format context preserve_formatting file"
).split()
ODD = (
    None,
    True,
    False,
    0,
    -1,
    10**30,
    1.5,
    float("inf"),
    "",
    [],
    {},
    [[]],
    {"q": {"q": []}},
    [None],
)


def test_no_request_makes_the_server_fail(caplog):
    caplog.set_level(logging.ERROR)
    service = made_service(MadeJob(), wait_milliseconds=0, max_characters=2000, max_bytes=20_000)
    paths = sorted(create_app(service, lambda: True).openapi()["paths"])
    assert {"/translate", "/v2/translate", "/detect"} <= set(paths)
    rng, statuses = random.Random(COUNT), set()
    with serving(service) as address:
        host = address.removeprefix("http://")
        for number in range(COUNT):
            request = made_request(rng, number, paths)
            status, answer = send(host, *request)
            statuses.add(status)
            assert status < 500, (status, request, answer)
            assert not re.search(rb"Traceback|File \"|\.py", answer), (request, answer)
            others = set(re.findall(rb"token(\d+)x", answer)) - {b"%d" % number}
            assert not others, (request, answer)
    assert {200, 400, 404, 405, 413} <= statuses
    assert not caplog.records, [record.getMessage() for record in caplog.records]


def send(host: str, method: str, path: str, body: bytes, headers: dict) -> tuple[int, bytes]:
    """Return status and body of an answer; 400 if the server closed a broken connection."""
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (http.client.RemoteDisconnected, ConnectionError):
        return 400, b""
    finally:
        connection.close()


def made_request(rng: random.Random, number: int, paths: list[str]) -> tuple:
    method, path = rng.choice(METHODS), rng.choice(paths)
    if rng.random() < 0.6:
        method, path = "POST", rng.choice(("/translate", "/v2/translate"))
    path = re.sub(r"\{.*?\}", lambda _: rng.choice(("", "x", "..%2f..", "0" * 99)), path)
    if rng.random() < 0.03:
        path += rng.choice(("/", "/x", "?", "%00", "?q=%ff", "?%5B%5D=1;;&&=="))
    fields = made_fields(rng, number)
    body, kind = rng.choice((as_json, as_json, as_form, as_multipart, as_bytes))(rng, fields)
    headers = {"Content-Type": kind} if rng.random() < 0.9 else {}
    if rng.random() < 0.1:
        headers["Content-Type"] = rng.choice(
            ("application/json", "multipart/form-data", "text/plain", "a/b;;=", "\x7f")
        )
    if rng.random() < 0.1:
        headers["Authorization"] = rng.choice(("DeepL-Auth-Key x", "Bearer", "\x01", "Basic ="))
    if rng.random() < 0.05:
        headers["Content-Encoding"] = "gzip"
    if rng.random() < 0.1:
        path += ("&" if "?" in path else "?") + as_form(rng, fields)[0].decode()[:500]
    return method, path, body, headers


def made_fields(rng: random.Random, number: int) -> dict:
    """Return fields: mostly sensible ones, some odd."""
    text = " ".join((f"token{number}x", *rng.choices(FRAGMENTS, k=rng.randrange(4))))
    fields: dict = {"q": text, "text": text, "source": "en", "target": rng.choice(CODES)}
    fields["target_lang"] = fields["target"]
    if rng.random() < 0.3:
        fields["q"] = fields["text"] = [text, *rng.choices(FRAGMENTS, k=2)]
    if rng.random() < 0.4:
        fields |= {"format": "html", "tag_handling": rng.choice(("html", "xml", "x"))}
    for name in rng.choices(FIELDS, k=rng.randrange(4)):
        fields[name] = rng.choice((*ODD, *CODES, *FRAGMENTS))
    return fields


def as_json(rng: random.Random, fields: dict) -> tuple[bytes, str]:
    text = json.dumps(fields)
    if rng.random() < 0.1:
        text = rng.choice((text[:-3], "[" * 5000, "[]", "null", '{"q": 1e999}', text + "}"))
    return text.encode(), "application/json"


def as_form(rng: random.Random, fields: dict) -> tuple[bytes, str]:
    pairs = [(name, value) for name, texts in fields.items() for value in flat(texts)]
    text = urllib.parse.urlencode(pairs, errors="surrogatepass")
    return text.encode(), "application/x-www-form-urlencoded"


def as_multipart(rng: random.Random, fields: dict) -> tuple[bytes, str]:
    parts = b""
    for name, texts in fields.items():
        for value in flat(texts):
            extra = '; filename="../../x.txt"' if name == "file" or rng.random() < 0.1 else ""
            parts += (
                f'--limit\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'
            ).encode() + value.encode("utf-8", "surrogatepass")
            parts += b"\r\n"
    end = b"--limit--\r\n" if rng.random() < 0.8 else b""
    return parts + end, "multipart/form-data; boundary=limit"


def as_bytes(rng: random.Random, fields: dict) -> tuple[bytes, str]:
    size = rng.choice((0, 1, 50, 30_000))
    return rng.randbytes(size), rng.choice(("application/octet-stream", "application/json"))


def flat(value: object) -> Iterator[str]:
    yield from map(str, value) if isinstance(value, list) else (str(value),)


@pytest.mark.parametrize(
    "head",
    [
        b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nContent-Length: 8\r\n\r\n{}",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        b"BREW / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_broken_http_is_refused_and_the_server_goes_on(head, caplog):
    import socket

    caplog.set_level(logging.ERROR)
    with serving(made_service(MadeJob())) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(head)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(4096)
        assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer
        assert send(address.removeprefix("http://"), "GET", "/health", b"", {})[0] == 200
    assert not caplog.records


def test_halves_of_characters_are_refused():
    with serving(made_service(MadeJob())) as address:
        host, headers = address.removeprefix("http://"), {"Content-Type": "application/json"}
        for text, status in ((r"\ud83d\ude42 a", 200), (r"\ud83d a", 400), (r"\\ud83d a", 200)):
            body = b'{"q": "%s", "target": "de", "source": "en"}' % text.encode()
            assert send(host, "POST", "/translate", body, headers)[0] == status
