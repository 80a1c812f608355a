"""What users of translation servers complain about: codes, many requests at once, memory.

Numbers are those of issues in the public trackers of the servers named.
"""

from __future__ import annotations

import concurrent.futures
import gc
import http.client
import json
import sys
import threading

import pytest

from mnmt_jax.serving import text_run
from tests.unit.made_server import MadeJob, made_service, serving
from tests.unit.test_serving import call
from tests.waiting import wait_until

HELLO = {"q": "Hello.", "source": "en", "target": "de"}
REGIONS = ("en", "de", "pt_BR", "zh", "zh_Hant")


@pytest.fixture
def job() -> MadeJob:
    return MadeJob()


# LibreTranslate 978: ten thousand alternatives


@pytest.mark.parametrize("count", [10_000, 10**30, "10000"])
def test_ten_thousand_alternatives_are_those_of_the_beam(job, count):
    with serving(made_service(job, wait_milliseconds=0)) as url:
        status, answer = call(url, "/translate", {**HELLO, "alternatives": count})
        assert (status, answer["alternatives"]) == (200, ["other"])
        assert job.batches == [["Hello."]]
        none = call(url, "/translate", {**HELLO, "alternatives": 0})
        assert none == (200, {"translatedText": "[de] Hello."})
        refused = call(url, "/translate", {**HELLO, "alternatives": -10_000})
        assert refused == (400, {"error": "alternatives must be at least 0"})


# LibreTranslate 699: timeouts under concurrency


def test_the_server_answers_others_while_many_wait_for_a_translation(job):
    job.gate.clear()
    service = made_service(job, wait_milliseconds=0, timeout=60)
    with serving(service) as url, concurrent.futures.ThreadPoolExecutor(64) as pool:
        bodies = [{**HELLO, "q": f"Number {n}."} for n in range(64)]
        answers = [pool.submit(call, url, "/translate", body) for body in bodies]
        wait_until(lambda: service.waiting + sum(map(len, job.batches)) == len(bodies))
        for route in ("/health", "/languages", "/frontend/settings"):
            assert call(url, route)[0] == 200
        assert not any(answer.done() for answer in answers)
        job.gate.set()
        for body, answer in zip(bodies, answers, strict=True):
            assert answer.result(60) == (200, {"translatedText": f"[de] {body['q']}"})


def test_splitting_a_long_text_does_not_hold_up_others(job, monkeypatch):
    is_splitting, go_on = threading.Event(), threading.Event()
    steps = text_run.translation_steps

    def slow_steps(texts, fits):
        is_splitting.set()
        assert go_on.wait(30)
        return (yield from steps(texts, fits))

    monkeypatch.setattr(text_run, "translation_steps", slow_steps)
    with (
        serving(made_service(job, wait_milliseconds=0)) as url,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        long = pool.submit(call, url, "/translate", {**HELLO, "q": "A longer text. " * 500})
        assert is_splitting.wait(30)
        assert call(url, "/health")[0] == 200
        go_on.set()
        assert long.result()[1]["translatedText"].count("[de] A longer text.") == 500


# LibreTranslate 545 and 693: memory that grows


def test_two_thousand_requests_leave_nothing_behind(job):
    """Texts, paths, keys and errors that differ in every request must not be kept."""
    with serving(made_service(job, wait_milliseconds=0)) as url:
        job.batches = Forgetful()
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        for number in range(1200):  # bounded caches, e.g. of addresses, are full then
            request(connection, number)
        before = memory_blocks()
        for number in range(1200, 3200):
            request(connection, number)
        grown = memory_blocks() - before
        connection.close()
    assert grown < 1200


class Forgetful(list):
    """A list that keeps nothing."""

    def append(self, item: object) -> None:
        pass


def request(connection: http.client.HTTPConnection, number: int) -> None:
    """Send one of several kinds of requests with texts that no other has."""
    kind = number % 5
    path = ("/translate", "/v2/translate", "/detect", f"/nowhere/{number}", "/translate")[kind]
    q = {"q": f"Text number {number}.", "source": "auto", "target": "de", "api_key": f"k{number}"}
    deepl = {"text": [f"Sentence {number}."], "target_lang": "DE"}
    body = (q, deepl, q, q, {**q, "target": f"x{number}"})[kind]
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {number}"}
    try:
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
    except (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected):
        # This process waited for a processor until the server closed the idle connection.
        connection.close()
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
    response.read()
    assert response.status == (200, 200, 200, 404, 400)[kind]


def memory_blocks() -> int:
    """Return the number of blocks of memory that live objects have, at least one for each."""
    for _ in range(3):
        gc.collect()
    return sys.getallocatedblocks()


# LibreTranslate 783 and 778, Weblate 15967: codes with regions, scripts and case


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        *(("DE", "de"), ("de-DE", "de"), ("de_at", "de"), ("EN-us", "en")),
        *(("pb", "pt_BR"), ("pt-br", "pt_BR"), ("PT_BR", "pt_BR")),
        *(("zh", "zh"), ("zh-hans", "zh"), ("zh_Hans", "zh"), ("ZH-CN", "zh")),
        *(("zt", "zh_Hant"), ("zh-Hant", "zh_Hant"), ("zh_TW", "zh_Hant")),
    ],
)
def test_codes_are_understood_in_every_spelling(regions, code, expected):
    source = "de" if expected == "en" else "en"  # another language than the target
    answer = call(regions, "/translate", {**HELLO, "source": source, "target": code})
    assert answer == (200, {"translatedText": f"[{expected}] Hello."})
    body = {"text": ["Hello."], "source_lang": source.upper(), "target_lang": code}
    if code not in ("pb", "zt"):  # codes of LibreTranslate alone
        assert call(regions, "/v2/translate", body)[1]["translations"][0]["text"] == (
            f"[{expected}] Hello."
        )


def test_codes_are_listed_as_clients_compare_them(regions):
    """Weblate looks for zh-Hans and pt-BR in /languages; zh or pt_BR are not found there."""
    languages = call(regions, "/languages")[1]
    codes = ["en", "de", "pt-BR", "zh-Hans", "zh-Hant"]
    assert [language["code"] for language in languages] == codes
    assert {tuple(language["targets"]) for language in languages} == {tuple(codes)}
    for code in codes:
        assert call(regions, "/translate", {**HELLO, "target": code})[0] == 200
    (detected,) = call(regions, "/detect", {"q": "这是一个很长的中文句子，用来检测语言。"})[1]
    assert detected["language"] == "zh-Hans"


@pytest.fixture(scope="module")
def regions():
    with serving(made_service(MadeJob(REGIONS), wait_milliseconds=0)) as url:
        yield url
