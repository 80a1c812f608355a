"""Limits of a request: what is counted, and what a refusal costs the others."""

from __future__ import annotations

import pytest

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


def test_sentences_are_counted_over_all_models():
    jobs = MadeJob(("en", "de")), MadeJob(("fr", "de"))
    with serving(made_service(*jobs, wait_milliseconds=0, max_sentences=10)) as address:
        assert translate(address, [ENGLISH] * 5 + [FRENCH] * 5, "auto")[0] == 200
        counts = [len(job.batches) for job in jobs]
        status, answer = translate(
            address, [ENGLISH] * 5 + [FRENCH] * 5 + [f"{ENGLISH} It."], "auto"
        )
    assert (status, answer) == (
        413,
        {"error": "12 sentences; the limit is 10 (the server's --max_sentences)"},
    )
    assert [len(job.batches) for job in jobs] == counts  # nothing was translated
