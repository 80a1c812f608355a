"""Lines that may wait for the compiler, and those that do not, in batchers of their own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mnmt_jax.decoding.terms import LineTerms, Term
from mnmt_jax.decoding.text.translated_text import LineOfText
from mnmt_jax.serving.job_batcher import JobBatcher
from mnmt_jax.serving.line_engines import BatchEngine
from mnmt_jax.serving.live_batcher import LiveBatcher
from tests.unit.made_server import MadeJob, made_service

PLAIN = LineOfText("Go.", "en", "de")
REQUIRED = dataclasses.replace(PLAIN, terms=LineTerms((Term("Go", ("Los",)),)))
FORBIDDEN = dataclasses.replace(PLAIN, terms=LineTerms(forbidden=("Los",)))
ALIGNED = dataclasses.replace(PLAIN, aligned=True)


def make_batcher(job: MadeJob) -> LiveBatcher:
    return LiveBatcher([BatchEngine(job.as_completed)], wait_seconds=0.0, max_waiting=100, window=4)


def make_job_batcher() -> JobBatcher:
    kind: Any = MadeJob()
    return JobBatcher(kind, make_batcher(kind), make_batcher(MadeJob(name="terms ")))


def test_lines_with_terms_are_translated_apart_and_in_order():
    lines = make_job_batcher()
    futures = lines.submit([REQUIRED, PLAIN, FORBIDDEN, ALIGNED], "a")
    texts = [future.result(30).text for future in futures]
    lines.stop()
    assert texts == ["[terms de] Los.", "[de] Go.", "[terms de] Go.", "[de] Go."]


@pytest.mark.parametrize(
    ("first", "second"), [(PLAIN, REQUIRED), (REQUIRED, PLAIN)], ids=["plain first", "terms first"]
)
def test_a_user_without_lines_of_a_kind_stops_no_other_user(first, second):
    lines = make_job_batcher()
    assert lines.submit([first], "one")[0].result(30).text
    assert lines.submit([second], "two")[0].result(30).text
    lines.stop()


def test_lines_of_both_kinds_wait_until_the_batchers_stop():
    job, other = MadeJob(), MadeJob()
    for one in (job, other):
        one.gate.clear()
    kind: Any = job
    lines = JobBatcher(kind, make_batcher(job), make_batcher(other))
    futures = lines.submit([PLAIN, REQUIRED] * 9, "a")
    assert lines.waiting >= 10  # at most 4 of each kind are in an engine
    for one in (job, other):
        one.gate.set()
    lines.stop()
    assert all(future.done() for future in futures) and lines.waiting == 0


def test_further_searches_translate_lines_with_terms_apart_too():
    job, attempt = MadeJob(), type("Attempt", (), {"job": MadeJob()})()
    attempt.job.compiling_job = MadeJob(name="terms ")
    job.retry = type("Retry", (), {"attempts": [attempt]})()  # type: ignore[assignment]
    service = made_service(job)
    (model,) = service.models()
    ((_, batcher),) = model.retries
    texts = [future.result(30).text for future in batcher.submit([REQUIRED, PLAIN], "a")]
    service.stop()
    assert texts == ["[terms de] Los.", "[de] Go."]
