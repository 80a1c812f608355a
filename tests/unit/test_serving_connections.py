"""Slow clients, many connections, bodies of unknown size, and what the server prints."""

from __future__ import annotations

import contextlib
import json
import math
import re
import socket
import threading
import time
import urllib.request

import pytest
from starlette.responses import PlainTextResponse

from mnmt_jax.errors import UserError
from mnmt_jax.serving.settings import Settings
from tests.processor_time import is_quicker_than
from tests.unit.made_server import MadeJob, made_service, serving, serving_app
from tests.unit.test_serving import call
from tests.waiting import wait_until

LIMITS = {
    "headers_timeout": 1.0,
    "body_timeout": 1.0,
    "answer_timeout": 1.0,
    "max_bytes": 10_000_000,
    "max_characters": 10_000_000,
}
HELLO = {"q": "Hello.", "source": "en", "target": "de"}
HEAD = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture
def address(monkeypatch):
    with serving(made_service(MadeJob(), wait_milliseconds=0, **LIMITS)) as url:
        yield url


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def everything(client: socket.socket) -> bytes:
    """Return what arrives until the server closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(65536):
            data += part
    return data


def receive_until(client: socket.socket, end: bytes) -> bytes:
    """Return what arrives, in any number of parts, until it contains some bytes."""
    data = b""
    while end not in data:
        part = client.recv(65536)
        assert part, data
        data += part
    return data


def seconds_until_closed(client: socket.socket, byte: bytes, every: float) -> float:
    """Send bytes slowly until the server closes the connection."""
    start = time.monotonic()
    client.settimeout(every)
    while time.monotonic() - start < 15:
        try:
            client.sendall(byte)
            if client.recv(65536) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - start


@pytest.mark.parametrize("start", [b"", b"GET /health HTTP/1.1\r\nX-Long: "])
def test_headers_that_never_end(address, start):
    with connect(address) as client:
        client.sendall(start)
        assert 0.9 < seconds_until_closed(client, b"a" if start else b"", 0.1) < 5
    assert call(address, "/health")[0] == 200


def test_headers_that_are_too_many():
    limits = {**LIMITS, "headers_timeout": 60}
    with serving(made_service(MadeJob(), **limits)) as url, connect(url) as client:
        client.sendall(b"GET /health HTTP/1.1\r\n")
        with contextlib.suppress(OSError):
            client.sendall(b"X-Long: aaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 10_000)
        assert b" 200 " not in everything(client)


def test_headers_of_a_second_request_that_never_end(address):
    with connect(address) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in client.recv(65536)
        client.sendall(b"GET /health HTTP/1.1\r\nX-Long: ")
        assert 0.9 < seconds_until_closed(client, b"a", 0.1) < 5


def test_a_request_that_was_sent_with_another_may_take_as_long(monkeypatch):
    job = MadeJob()
    job.gate.clear()
    body = json.dumps(HELLO).encode()
    second = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with serving(made_service(job, wait_milliseconds=0, **LIMITS)) as url, connect(url) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" + second)
        assert b"200 OK" in receive_until(client, b'"ok"}')
        time.sleep(1.8)
        job.gate.set()
        assert b"200 OK" in receive_until(client, b"[de] Hello.")


def test_a_body_of_a_byte_a_second(address):
    with connect(address) as client:
        client.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
        for _ in range(10):
            time.sleep(0.1)
            with contextlib.suppress(OSError):
                client.sendall(b" ")
        answer = everything(client)
    assert b" 408 " in answer and b'{"error":"the body took more than 1 seconds"}' in answer


def test_a_translation_may_take_longer_than_headers_and_body(monkeypatch):
    job = MadeJob()
    job.gate.clear()
    service = made_service(job, wait_milliseconds=0, **LIMITS)
    with serving(service) as url, connect(url) as client:
        body = json.dumps(HELLO).encode()
        client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(1.8)
        job.gate.set()
        assert b"[de] Hello." in client.recv(65536)


@pytest.fixture
def long_answers():
    """A server whose answers are longer than the buffers of the system, and their events."""
    is_answered = threading.Event()

    async def answer(scope, receive, send):
        await PlainTextResponse("a" * 10_000_000)(scope, receive, send)
        is_answered.set()

    with serving_app(answer, Settings(**{**LIMITS, "answer_timeout": 3.0})) as url:
        yield url, is_answered


GET = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def test_a_client_that_never_reads_its_answer(long_answers):
    url, is_answered = long_answers
    with connect(url) as client:
        client.sendall(GET)
        assert is_answered.wait(20)
        time.sleep(4)
        assert 1000 < len(everything(client)) < 9_000_000


def test_a_client_that_waits_a_little_gets_its_answer(long_answers):
    url, is_answered = long_answers
    with connect(url) as client:
        client.sendall(GET)
        assert is_answered.wait(20)
        time.sleep(1.6)  # longer than the time for headers
        assert len(everything(client)) > 10_000_000


def test_too_many_connections_are_refused_and_old_ones_served(monkeypatch):
    limits = {**LIMITS, "max_connections": 3, "headers_timeout": 30}
    with serving(made_service(MadeJob(), wait_milliseconds=0, **limits)) as url:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(connect(url)) for _ in range(3)]
            refused = everything(stack.enter_context(connect(url)))
            assert b" 503 " in refused and b"Retry-After: 2" in refused
            assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"].startswith("too many")
            clients[0].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in clients[0].recv(65536)
        wait_until(lambda: b"200 OK" in get_health(url))


def get_health(url: str) -> bytes:
    with connect(url) as client:
        client.sendall(GET)
        return everything(client)


def test_a_chunked_body_is_limited_without_its_length(monkeypatch):
    limits = {**LIMITS, "max_bytes": 1000}
    with serving(made_service(MadeJob(), wait_milliseconds=0, **limits)) as url:
        with connect(url) as client:
            client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            client.sendall(b"64\r\n" + b" " * 100 + b"\r\n")
            time.sleep(0.1)
            client.sendall(b"400\r\n" + b" " * 1024 + b"\r\n")
            assert b" 413 " in client.recv(65536)


@pytest.mark.parametrize("kind", ["Content-Length: 20000000", "Transfer-Encoding: chunked"])
def test_a_client_that_sends_all_of_a_body_that_is_too_large_gets_an_answer(kind):
    limits = {**LIMITS, "max_bytes": 1000, "body_timeout": 30}
    body = bytes(20_000_000)
    if kind.endswith("chunked"):
        body = b"".join((b"1312d00\r\n", body, b"\r\n0\r\n\r\n"))
    request = HEAD + kind.encode() + b"\r\n\r\n" + body
    with serving(made_service(MadeJob(), wait_milliseconds=0, **limits)) as url:
        with connect(url) as client:
            for _ in range(2):  # the connection can be used again
                client.sendall(request)
                assert b" 413 " in receive_until(client, b'bytes"}')
            client.sendall(request.replace(b"Host: x", b"Connection: close", 1))
            assert b" 413 " in everything(client)


def test_the_rest_of_a_body_that_is_too_large_has_a_time_limit():
    limits = {**LIMITS, "max_bytes": 1000}
    with serving(made_service(MadeJob(), wait_milliseconds=0, **limits)) as url:
        with connect(url) as client:
            client.sendall(HEAD + b"Content-Length: 20000000\r\n\r\n" + bytes(2000))
            assert b" 413 " in receive_until(client, b'bytes"}')
            assert 0.5 < seconds_until_closed(client, b"a", 0.1) < 5


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/translate?q=%ff&target=de", b""),
        ("/translate", b"q=%ff&target=de"),
        ("/translate", json.dumps({**HELLO, "q": "a\ud800b"}).encode()),
        ("/translate", json.dumps({**HELLO, "q": "@"}).encode().replace(b"@", b"\xed\xa0\x80")),
        ("/translate", json.dumps({**HELLO, "q": "a\ud800b"}).encode("utf-16")),
        ("/translate", b'{"q": "' + b"[" * 100_000),
        ("/translate", json.dumps({**HELLO, "glossary": '{"a": "\\ud800"}'}).encode()),
        ("/translate", b'q=Hello.&target=de&glossary={"\\udc00":"b"}'),
        ("/v2/translate", b"text=%C3&target_lang=DE"),
        ("/detect", b"q=%f0%9f"),
    ],
)
def test_text_that_is_no_text_is_a_mistake_of_the_client(address, path, body):
    headers = {"Content-Type": "application/json"} if body[:1] in (b"{", b"\xff") else {}
    assert call(address, path, body, **headers)[0] == 400


def multipart(text: bytes, charset: str, name: bytes = b'"q"') -> tuple[bytes, dict[str, str]]:
    """Return the body and header of a form with a text; the boundary has a quote."""
    parts = {name: text, b'"source"': b"fr", b'"target"': b"de"}
    body = b"".join(
        b'--"b\r\nContent-Disposition: form-data; name=%s\r\n\r\n%s\r\n' % part
        for part in parts.items()
    )
    header = rf'multipart/form-data{charset}; boundary="\"b"'
    return body + b'--"b--\r\n', {"Content-Type": header}


@pytest.mark.parametrize("charset", ["", "; charset=latin-1", "; charset=nothing"])
def test_text_of_a_form_with_files_is_utf_8(address, charset):
    body, header = multipart("café".encode(), charset)
    assert call(address, "/translate", body, **header) == (200, {"translatedText": "[de] café"})
    refusal = 400, {"error": "the fields are not UTF-8"}
    for text, name in ((b"\xe9", b'"q"'), (b"a\xc3", b'"q"'), (b"a", b'"q"; filename="\xe9"')):
        body, header = multipart(text, charset, name)
        assert call(address, "/translate", body, **header) == refusal


def test_a_form_cannot_choose_a_slow_decoder(address):
    body, header = multipart(b"text-" + b"a" * 500_000, "; charset=punycode")

    def run():
        assert call(address, "/translate?model=none", body, **header)[0] == 400

    assert is_quicker_than(5, run)


def test_pairs_of_surrogates_are_characters(address):
    body = json.dumps({**HELLO, "q": "🙂"}).encode()
    assert b"\\ud83d" in body
    answer = call(address, "/translate", body, **{"Content-Type": "application/json"})
    assert answer == (200, {"translatedText": "🙂"})


# Origins of pages


@pytest.mark.parametrize(
    ("setting", "allowed"), [("*", "*"), ("https://a.example, https://b.example", None), ("", None)]
)
def test_origins_of_pages_are_a_setting(monkeypatch, setting, allowed):
    service = made_service(MadeJob(), cors_origins=setting)
    with serving(service) as url:
        for origin in ("https://b.example", "https://c.example"):
            request = urllib.request.Request(f"{url}/languages", headers={"Origin": origin})
            with urllib.request.urlopen(request) as response:
                expected = allowed or (origin if origin in setting else None)
                assert response.headers["Access-Control-Allow-Origin"] == expected


# What is printed


def log_of(monkeypatch, capfd, caplog, **settings) -> str:
    """Return what the server prints about a translation and a failure of its own."""
    service = made_service(MadeJob(), wait_milliseconds=0, **settings)

    def fail(text, *_):
        raise ZeroDivisionError(f"private {text}")

    monkeypatch.setattr(service, "detect", fail)
    with serving(service) as url:
        assert call(url, "/translate?q=Private&source=en&target=de", b"")[0] == 200
        answer = call(url, "/detect?q=secret", b"")
        assert answer == (500, {"error": "the translation failed"})
        answer = call(url, "/translate?q=Fail.&source=en&target=de", b"")  # the job: ValueError
        assert answer == (500, {"error": "the translation failed"})
        answer = call(url, "/v2/translate", {"text": "secret", "target_lang": "DE"})
        assert answer == (500, {"message": "the translation failed"})
    return capfd.readouterr().err + caplog.text


def test_no_text_of_users_is_printed_and_no_trace(monkeypatch, capfd, caplog):
    printed = log_of(monkeypatch, capfd, caplog)
    assert printed.count("ZeroDivisionError at ") == 2 and "test_serving_connections" in printed
    assert printed.count("ValueError at ") == 1 and "made_server" in printed
    assert "rivate" not in printed and "secret" not in printed and "Traceback" not in printed


def test_text_is_printed_on_request(monkeypatch, capfd, caplog):
    printed = log_of(monkeypatch, capfd, caplog, log_text=True)
    assert "en 'Private' -> de '[de] Private'" in printed
    assert "private secret" in printed and "made_server.py" in printed
    assert re.search("ValueError at .*: secret", printed) and "Traceback" not in printed


def test_time_limits_are_checked():
    with pytest.raises(UserError, match="--body_timeout=0 must be at least 0.1"):
        Settings(body_timeout=0)
    for name in ("wait_milliseconds", "timeout", "document_lifetime"):
        for value in (math.inf, 1e300):  # longer than a lock can wait
            with pytest.raises(
                UserError, match=f"--{name}={re.escape(str(value))} must be at most"
            ):
                Settings(**{name: value})
