"""The server: fields, limits, errors, fairness, clients that go away."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from mnmt_jax.commands import serve
from mnmt_jax.decoding.text.translated_text import LineOfText
from mnmt_jax.errors import UserError
from mnmt_jax.serving.line_engines import BatchEngine
from mnmt_jax.serving.live_batcher import LiveBatcher, QueueFull, Stopped
from mnmt_jax.serving.settings import Replacing, Settings, add_settings_flags, add_variables
from tests.unit.made_server import MadeJob, made_service, serving
from tests.waiting import wait_until


def call(address: str, path: str, body: object = None, **headers: str) -> tuple[int, object]:
    """Return status and JSON of a request; POST if there is a body."""
    data = json.dumps(body).encode() if isinstance(body, dict | list) else body
    if isinstance(body, dict | list):
        headers.setdefault("Content-Type", "application/json")
    request = urllib.request.Request(f"{address}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture
def job() -> MadeJob:
    return MadeJob()


@pytest.fixture
def address(job):
    limits = {"max_characters": 500, "max_sentences": 3}
    service = made_service(job, wait_milliseconds=0, **limits)
    with serving(service) as url:
        yield url


def test_the_same_from_json_form_and_query(address):
    fields = {"q": "Hello. You!", "source": "EN-us", "target": "de"}
    expected = (200, {"translatedText": "[de] Hello. [de] You!"})
    form = urllib.parse.urlencode(fields)
    assert call(address, "/translate", fields) == expected
    assert call(address, "/translate", form.encode()) == expected
    assert call(address, f"/translate?{form}", b"") == expected


def test_a_repeated_field_of_a_form_is_a_list(address):
    form = "q=Hello.&q=Two.&source=en&target=de"
    expected = (200, {"translatedText": ["[de] Hello.", "[de] Two."]})
    assert call(address, "/translate", form.encode()) == expected
    assert call(address, f"/translate?{form}", b"") == expected
    for field in ("source", "target", "format", "alternatives", "checks", "model", "api_key"):
        status, answer = call(address, "/translate", f"{form}&{field}=de&{field}=fr".encode())
        assert status == 400 and re.match(f"{field} must be", answer["error"])


def test_lists_detection_and_alternatives(address):
    body = {
        "q": ["Das ist gut.", "🙂 12:30"],
        "source": "auto",
        "target": "zt",
        "alternatives": 9999,
    }
    status, answer = call(address, "/translate", {**body, "target": "zh"})
    assert status == 200
    assert answer["translatedText"] == ["[zh] Das ist gut.", "🙂 12:30"]
    assert [one["language"] for one in answer["detectedLanguage"]] == ["de", "en"]
    assert answer["alternatives"] == [["other"], []]
    sure, none = (one["confidence"] for one in answer["detectedLanguage"])
    assert 50 < sure <= 100 and none == 0
    unknown = {"confidence": 0.0, "language": "en"}  # clients read the first
    assert call(address, "/detect", {"q": "12:30"}) == (200, [unknown])
    _, (unsure,) = call(address, "/detect", {"q": "Das ok"})
    _, (clear,) = call(address, "/detect", {"q": "Das ist ein langer deutscher Satz mit Wörtern."})
    assert 0 < unsure["confidence"] < clear["confidence"] <= 100


@pytest.mark.parametrize(
    ("text", "alternatives"),
    [
        ("Hello there.", ["other"]),
        ("- HELLO THERE.\n", ["- OTHER\n"]),
        ("Hello {name}.", []),  # the other hypothesis lacks it
        ("One. Two.", []),
        ("Equal.", []),
    ],
)
def test_alternatives_are_of_the_whole_text(address, job, text, alternatives):
    job.respond = lambda sentence: "other" if sentence == "Equal." else f"[de] {sentence}"
    body = {"q": text, "source": "en", "target": "de", "alternatives": 2}
    status, answer = call(address, "/translate", body)
    assert (status, answer["alternatives"]) == (200, alternatives)


@pytest.mark.parametrize(
    ("path", "body", "optional"),
    [
        (
            "/translate",
            {"q": "Hello.", "source": "en", "target": "de"},
            ["api_key", "format", "alternatives", "checks", "model", "glossary"],
        ),
        (
            "/v2/translate",
            {"text": ["Hello."], "source_lang": "EN", "target_lang": "DE"},
            ["glossary_id", "split_sentences", "tag_handling", "ignore_tags", "formality", "model"],
        ),
        ("/translate", {"q": "Hello.", "target": "de"}, ["source"]),
        ("/v2/translate", {"text": ["Hello."], "target_lang": "DE"}, ["source_lang"]),
    ],
)
def test_null_is_an_absent_field(address, path, body, optional):
    status, answer = call(address, path, body | dict.fromkeys(optional))
    assert (status, answer) == call(address, path, body) and status == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/translate", {"target": "de"}, 400, "missing q parameter"),
        ("/translate", {"q": "a"}, 400, "missing target parameter"),
        ("/translate", {"q": "a", "target": "xh"}, 400, "xh is not supported"),
        ("/translate", {"q": "a", "target": 5}, 400, "target must be text"),
        ("/translate", {"q": [1], "target": "de"}, 400, "q must be text or a list of texts"),
        ("/translate", {"q": "a", "target": "de", "format": "md"}, 400, "md is not supported"),
        ("/translate", {"q": "a", "target": "de", "alternatives": "x"}, 400, "a whole number"),
        ("/translate", {"q": "a", "target": "de", "alternatives": -1}, 400, "at least 0"),
        ("/translate", b' {"q": "a"}', 400, "looks like JSON; send Content-Type: application/json"),
        ("/v2/translate", {"text": ["a"]}, 400, "missing target_lang parameter"),
        ("/translate", [1], 400, "must be a JSON object"),
        ("/translate", {"q": "a " * 300, "target": "de"}, 413, "600 characters; the limit is 500"),
        (
            "/translate",
            {"q": "One. Two. Three. Four.", "target": "de"},
            413,
            "4 sentences; the limit is 3 (the server's --max_sentences)",
        ),
        ("/translate", b"q=\xff", 400, "not UTF-8"),
        ("/v2/translate", {"target_lang": "DE"}, 400, "missing text parameter"),
        ("/suggest", {"q": "a"}, 403, "not collected"),
        ("/nowhere", {"q": "a"}, 404, "Not Found"),
        ("/translate", b"x" * 1_100_000, 413, "more than 1048576 bytes"),
    ],
)
def test_mistakes_have_a_status_and_a_line(address, path, body, status, message):
    actual, answer = call(address, path, body)
    (name,) = set(answer) - {"hint"}
    assert actual == status and message in answer[name]
    assert name == ("message" if path.startswith("/v2/") else "error")


@pytest.mark.parametrize(
    ("query", "message"), [(b"q=%FF", b"not UTF-8"), (b"q=\xff", b"Invalid HTTP request")]
)
def test_a_query_that_is_not_utf_8_is_one_line(address, query, message):
    port = urllib.parse.urlsplit(address).port
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(
            b"POST /translate?%b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
            b"Content-Length: 0\r\n\r\n" % query
        )
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ") and message in answer


def test_a_failure_is_not_shown_and_is_of_its_batch_alone(address):
    status, answer = call(address, "/translate", {"q": "Fail.", "source": "en", "target": "de"})
    assert (status, answer) == (500, {"error": "the translation failed"})
    assert call(address, "/translate", {"q": "Go.", "source": "en", "target": "de"})[0] == 200


def test_status_routes(address, job):
    assert call(address, "/health") == (200, {"status": "ok"})
    assert call(address, "/ready") == (200, {"status": "ready"})
    assert call(address, "/openapi.json")[0] == 200
    call(address, "/translate", {"q": "a", "target": "de", "source": "en"})
    with urllib.request.urlopen(f"{address}/metrics") as response:
        text = response.read().decode()
    assert 'mnmt_answers_total{path="/translate",status="200"} 1.0' in text
    assert "mnmt_waiting_lines 0.0" in text
    with serving(made_service(job), ready=False) as url:
        assert call(url, "/ready") == (503, {"error": "the model is being compiled"})
        for path, status in (("/health", 200), ("/ready", 503)):
            connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
            connection.request("HEAD", path)
            response = connection.getresponse()
            assert (response.status, response.read()) == (status, b"")
            connection.close()


def test_a_full_queue_is_refused_with_a_time_to_wait(job):
    job.gate.clear()
    service = made_service(job, wait_milliseconds=0, max_waiting=2, timeout=30)
    with serving(service) as url, concurrent.futures.ThreadPoolExecutor() as pool:
        body = {"q": "One.", "source": "en", "target": "de"}
        first = pool.submit(call, url, "/translate", body)
        wait_until(lambda: job.batches)
        second = pool.submit(call, url, "/translate", {**body, "q": "Two. Three."})
        wait_until(lambda: service.waiting == 2)
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/translate", json.dumps(body), headers)
        response = connection.getresponse()
        assert (response.status, response.headers["Retry-After"]) == (429, "2")
        job.gate.set()
        assert first.result()[0] == second.result()[0] == 200


def test_a_request_that_takes_too_long_is_answered(job):
    job.gate.clear()
    with serving(made_service(job, wait_milliseconds=0, timeout=1)) as url:
        status, answer = call(url, "/translate", {"q": "One.", "source": "en", "target": "de"})
        assert status == 503 and "took too long" in answer["error"]
        job.gate.set()


def test_sentences_of_a_client_that_went_away_are_not_translated(job):
    job.gate.clear()
    service = made_service(job, wait_milliseconds=0, timeout=60)
    with serving(service) as url, concurrent.futures.ThreadPoolExecutor() as pool:
        body = {"q": "One.", "source": "en", "target": "de"}
        first = pool.submit(call, url, "/translate", body)
        wait_until(lambda: job.batches)
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        headers = {"Content-Type": "application/json"}
        connection.request(
            "POST", "/translate", json.dumps({**body, "q": "Gone. Gone too."}), headers
        )
        wait_until(lambda: service.waiting == 2)
        connection.close()
        with urllib.request.urlopen(f"{url}/metrics") as response:
            assert response.status == 200  # the server goes on meanwhile
        last = pool.submit(call, url, "/translate", {**body, "q": "Last."})
        wait_until(lambda: service.waiting == 3)
        job.gate.set()
        assert first.result()[0] == last.result()[0] == 200
        assert [sentence for batch in job.batches for sentence in batch] == ["One.", "Last."]


def test_sentences_that_wait_for_the_compiler_hold_up_no_others(job):
    job.compiling_job = MadeJob(name="terms ")
    job.compiling_job.gate.clear()
    body = {"q": "One. Two file.", "source": "en", "target": "de", "glossary": {"file": "Datei"}}
    service = made_service(job, wait_milliseconds=0)
    with serving(service) as url, concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(call, url, "/translate", body)
        wait_until(lambda: job.compiling_job.batches)
        plain = {"q": "Go.", "source": "en", "target": "de"}
        assert call(url, "/translate", plain) == (200, {"translatedText": "[de] Go."})
        job.compiling_job.gate.set()
        text = "[de] One. [terms de] Two Datei."
        assert waiting.result() == (200, {"translatedText": text})
    assert job.compiling_job.batches == [["Two file."]] and ["One."] in job.batches


def test_a_full_queue_of_sentences_with_terms_refuses_the_whole_request(job):
    job.gate.clear()
    job.compiling_job = MadeJob()
    job.compiling_job.gate.clear()
    service = made_service(job, wait_milliseconds=0, max_waiting=1)
    with serving(service) as url, concurrent.futures.ThreadPoolExecutor() as pool:
        terms = {"q": "A file.", "source": "en", "target": "de", "glossary": {"file": "Datei"}}
        first = [pool.submit(call, url, "/translate", terms)]
        wait_until(lambda: job.compiling_job.batches)
        first.append(pool.submit(call, url, "/translate", terms))
        wait_until(lambda: service.waiting == 1)
        assert call(url, "/translate", {**terms, "q": "One. Two file."})[0] == 429
        job.compiling_job.gate.set()
        job.gate.set()
        assert [future.result()[0] for future in first] == [200, 200]
        wait_until(lambda: service.waiting == 0)
    assert sum(job.batches, []) == []


# Batches


def batcher(job: MadeJob, **changes) -> LiveBatcher:
    options = {"wait_seconds": 0.0, "max_waiting": 1000, "window": 4} | changes
    return LiveBatcher([BatchEngine(job.as_completed)], **options)


def lines(*texts: str) -> list[LineOfText]:
    return [LineOfText(text, "en", "de") for text in texts]


def test_users_take_turns(job):
    job.gate.clear()
    live = batcher(job)
    live.submit(lines("first"), "a")
    wait_until(lambda: job.batches)
    many = live.submit(lines(*(f"a{n}" for n in range(9))), "a")
    (one,) = live.submit(lines("b0"), "b")
    job.gate.set()
    assert one.result(30).text == "[de] b0"
    assert [future.result(30).text for future in many] == [f"[de] a{n}" for n in range(9)]
    assert job.batches[1] == ["a0", "b0", "a1", "a2"]
    live.stop()


def test_lines_of_clients_that_went_away_are_not_translated(job):
    job.gate.clear()
    live = batcher(job)
    live.submit(lines("first"), "a")
    wait_until(lambda: job.batches)
    gone = live.submit(lines("gone"), "a")
    (kept,) = live.submit(lines("kept"), "a")
    assert gone[0].cancel()
    job.gate.set()
    assert kept.result(30).text == "[de] kept"
    assert ["kept"] in job.batches and live.waiting == 0
    live.stop()


def test_lines_of_clients_that_went_away_leave_room_for_others(job):
    job.gate.clear()
    live = batcher(job, max_waiting=3)
    live.submit(lines("first"), "a")
    wait_until(lambda: job.batches)
    gone = live.submit(lines("gone 1", "gone 2"), "b")
    (kept,) = live.submit(lines("kept"), "a")
    with pytest.raises(QueueFull):
        live.submit(lines("too many"), "c")
    assert all(future.cancel() for future in gone)
    (other, _) = live.submit(lines("other", "another"), "c")
    assert live.waiting == 3
    with pytest.raises(QueueFull):
        live.submit(lines("too many"), "c")
    job.gate.set()
    assert [future.result(30).text for future in (kept, other)] == ["[de] kept", "[de] other"]
    live.stop()


def test_a_batch_waits_for_others_only_until_it_is_full(job):
    live = batcher(job, wait_seconds=20.0)
    start = time.monotonic()
    futures = [live.submit(lines(f"{n}"), "a")[0] for n in range(4)]
    assert [future.result(30).text for future in futures] == [f"[de] {n}" for n in range(4)]
    assert time.monotonic() - start < 15 and job.batches == [["0", "1", "2", "3"]]
    live.stop()


def test_engines_share_the_lines_and_do_not_wait_for_each_other(job):
    slow = MadeJob()
    slow.gate.clear()
    job.gate.clear()
    engines = [BatchEngine(one.as_completed) for one in (slow, job)]
    live = LiveBatcher(engines, wait_seconds=0.1, max_waiting=100, window=64)
    futures = live.submit(lines(*(f"{n}" for n in range(10))), "a")
    wait_until(lambda: slow.batches and job.batches)
    assert [len(batch) for batch in slow.batches + job.batches] == [5, 5]
    job.gate.set()
    for number in range(3):  # the second engine translates all that comes meanwhile
        (future,) = live.submit(lines(f"later {number}"), "a")
        assert future.result(30).text == f"[de] later {number}"
    assert len(slow.batches) == 1
    slow.gate.set()
    assert [future.result(30).text for future in futures] == [f"[de] {n}" for n in range(10)]
    live.stop()
    with pytest.raises(Stopped):
        live.submit(lines("late"), "a")


def test_stopping_translates_what_waits_and_takes_no_more(job):
    job.gate.clear()
    live = batcher(job, max_waiting=2)
    futures = live.submit(lines("one"), "a")
    wait_until(lambda: job.batches)
    futures += live.submit(lines("two", "three"), "a")
    with pytest.raises(QueueFull):
        live.submit(lines("four"), "a")
    thread = threading.Thread(target=live.stop)
    thread.start()
    job.gate.set()
    assert [future.result(30).text for future in futures] == ["[de] one", "[de] two", "[de] three"]
    thread.join(30)
    with pytest.raises(Stopped):
        live.submit(lines("five"), "a")


# Settings


def test_settings_are_flags_or_variables():
    parser = serve.CommandParser()
    add_settings_flags(parser, {"MNMT_SERVE_PORT": "81", "MNMT_SERVE_TIMEOUT": "2.5"})
    assert Settings.of_flags(parser.parse_args([])) == Settings(port=81, timeout=2.5)
    assert Settings.of_flags(parser.parse_args(["--port=82", "--window", "3"])) == Settings(
        port=82, timeout=2.5, window=3
    )
    with pytest.raises(UserError, match="MNMT_SERVE_PORT=x must be a number"):
        add_settings_flags(serve.CommandParser(), {"MNMT_SERVE_PORT": "x"})
    parser = serve.CommandParser()
    parser.add_argument("--run", action=Replacing, default=[])
    add_variables(parser, ["run"], {"MNMT_SERVE_RUN": "a, b"})
    assert parser.parse_args([]).run == ["a", "b"]
    with pytest.raises(UserError, match="MNMT_SERVE_RUN=,: names nothing; set it, or leave"):
        add_variables(parser, ["run"], {"MNMT_SERVE_RUN": ","})
    for flags, message in (({"port": 70000}, "at most 65535"), ({"window": 0}, "at least 1")):
        with pytest.raises(UserError, match=message):
            Settings(**flags)


def test_every_setting_is_in_the_help(capsys):
    with pytest.raises(SystemExit):
        serve.make_parser().parse_args(["--help"])
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "variable MNMT_SERVE_MAX_WAITING; default: 4096" in text
