"""Limits of a request: what is counted, and what a refusal costs the others."""

from __future__ import annotations

import concurrent.futures
import threading

import pytest

from mnmt_jax.decoding.guards import TranslationChecker
from tests.unit.made_server import MadeJob, made_service, serving
from tests.unit.test_serving import call

ENGLISH = "Hello there and you, my friend in the house."
FRENCH = "Bonjour mon ami, où est la maison ?"


def translate(address: str, texts: list[str], source: str = "en", **fields: object):
    return call(address, "/translate", {"q": texts, "source": source, "target": "de", **fields})


@pytest.mark.parametrize("limit", ["max_sentences", "max_waiting"])
def test_sentences_of_the_request_are_counted_alone(limit):
    """Parts of sentences whose placeholders the model loses are not the client's."""
    job = MadeJob()
    job.respond = lambda text: text.replace("{name}", "")
    with serving(made_service(job, wait_milliseconds=0, **{limit: 10})) as address:
        status, answer = translate(address, ["Hello {name} and you."] * 10)
        assert status == 200 and answer["translatedText"] == ["Hello {name} and you."] * 10
        assert max(map(len, job.batches)) <= 10 < len(sum(job.batches, []))
        status, answer = translate(address, ["Hello {name} and you."] * 11)
    message = f"11 sentences; the limit is 10 (the server's --{limit})"
    assert (status, answer) == (413, {"error": message})


def test_a_refused_request_costs_no_detection(monkeypatch):
    service = made_service(MadeJob(), wait_milliseconds=0, max_sentences=10)
    texts: list[str] = []
    detect = TranslationChecker.detect
    monkeypatch.setattr(
        TranslationChecker, "detect", lambda self, text: texts.append(text) or detect(self, text)
    )
    with serving(service) as address:
        assert translate(address, ["a"] * 11, "auto") == (
            413,
            {"error": "11 texts; the limit is 10 (the server's --max_sentences)"},
        )
        assert not texts
        assert translate(address, ["a"] * 10 + ["12", ""], "auto")[0] == 200
        assert texts


def test_others_are_answered_while_languages_are_detected(monkeypatch):
    """The detection of many texts, and its time is limited."""
    # Of each case, whose thread may still detect in the next one: by the start of its texts.
    events = {start: (threading.Event(), threading.Event()) for start in ("One", "Two", "Six")}

    def detect(_: TranslationChecker, text: str) -> tuple[str, float]:
        begins, ends = events[text[:3]]
        begins.set()
        assert ends.wait(60)
        return "en", 1.0

    monkeypatch.setattr(TranslationChecker, "detect", detect)
    service = made_service(MadeJob(), wait_milliseconds=0, timeout=2)
    with serving(service) as address, concurrent.futures.ThreadPoolExecutor() as pool:
        for (path, body), (begins, ends) in zip(
            (
                ("/translate", {"q": ["One."] * 100, "source": "auto", "target": "de"}),
                ("/v2/translate", {"text": ["Two. " * 1000], "target_lang": "DE"}),
                ("/detect", {"q": "Six."}),
            ),
            events.values(),
            strict=True,
        ):
            answer = pool.submit(call, address, path, body)
            assert begins.wait(60)
            assert call(address, "/health")[0] == 200
            if path != "/detect":
                assert answer.result()[0] == 503
            ends.set()
            assert answer.result()[0] in (200, 503)


def test_sentences_are_counted_over_all_models():
    jobs = MadeJob(("en", "de")), MadeJob(("fr", "de"))
    with serving(made_service(*jobs, wait_milliseconds=0, max_sentences=10)) as address:
        assert translate(address, [ENGLISH] * 5 + [FRENCH] * 5, "auto")[0] == 200
        counts = [len(job.batches) for job in jobs]
        texts = [ENGLISH] * 5 + [FRENCH] * 4 + [f"{ENGLISH} It."]
        status, answer = translate(address, texts, "auto")
    assert (status, answer) == (
        413,
        {"error": "11 sentences; the limit is 10 (the server's --max_sentences)"},
    )
    assert [len(job.batches) for job in jobs] == counts  # nothing was translated
