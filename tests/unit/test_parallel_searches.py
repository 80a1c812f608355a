"""Parallel searches of a server: their number, their threads, and what the collector skips."""

from __future__ import annotations

import dataclasses
import gc
import threading
import types
from typing import Any

import jax
import pytest

from mnmt_jax.commands import serve
from mnmt_jax.decoding.text.translated_text import LineOfText
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.runtime.processors import count_processors
from mnmt_jax.serving import warm_up
from mnmt_jax.serving.settings import Settings
from tests.unit.made_server import MadeJob, made_service
from tests.unit.made_translator import made_translator
from tests.waiting import wait_until

LINE = LineOfText("Go.", "en", "de")


class MeetingJob(MadeJob):
    """A job whose batches wait until as many as `parties` are searched at the same time."""

    def __init__(self, parties: int) -> None:
        super().__init__()
        self._barrier = threading.Barrier(parties)

    def as_completed(self, lines: Any) -> Any:
        self._barrier.wait(30)
        return super().as_completed(lines)


@pytest.mark.parametrize(("flag", "job_count"), [(0, 2), (2, 1)], ids=["of the job", "flag"])
def test_batches_are_searched_at_the_same_time(flag, job_count):
    job = MeetingJob(2)
    job.parallel_searches = job_count
    service = made_service(job, wait_milliseconds=0, window=1, parallel_searches=flag)
    (model,) = service.models()
    futures = model.batcher.submit([LINE, LINE], "a")
    assert [future.result(60).text for future in futures] == ["[de] Go."] * 2
    service.stop()


def test_one_search_at_a_time_is_the_flag_too():
    job = MadeJob()
    job.parallel_searches = 2
    job.gate.clear()
    service = made_service(job, wait_milliseconds=0, window=1, parallel_searches=1)
    (model,) = service.models()
    futures = model.batcher.submit([LINE, LINE, LINE], "a")
    wait_until(lambda: job.batches)
    assert service.waiting == 2
    job.gate.set()
    assert [future.result(30).text for future in futures] == ["[de] Go."] * 3
    service.stop()


def test_a_cpu_searches_two_batches_and_other_devices_one(monkeypatch):
    job = TranslationJob.create(made_translator("1", "register", beam_size=1))
    assert job.parallel_searches == 2
    model = job.pretrained.inference_model
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    on_two_devices = dataclasses.replace(model, mesh=mesh)
    for replicas, other in (((job.pretrained,), model), ((), on_two_devices)):
        pretrained: Any = types.SimpleNamespace(replicas=replicas, inference_model=other)
        assert dataclasses.replace(job, pretrained=pretrained).parallel_searches == 1
    with monkeypatch.context() as patch:
        patch.setattr("mnmt_jax.decoding.translation_job.platform", lambda: "gpu")
        assert job.parallel_searches == 1
    monkeypatch.setattr(TranslationJob, "has_slots", False)  # as with CTranslate2
    assert job.parallel_searches == 1


@pytest.mark.parametrize(
    ("settings", "before", "after"),
    [
        ({}, None, "4"),
        ({"parallel_searches": 1}, None, "8"),
        ({"parallel_searches": 16}, None, "1"),
        ({"threads": 3}, None, "3"),
        ({"threads": 3}, "5", "3"),
        ({}, "5", "5"),
        ({"replicas": 2}, None, None),
        ({"replicas": 2, "threads": 3}, None, "3"),
        ({"engine": "ctranslate2", "threads": 3}, None, None),
    ],
)
def test_programs_share_the_processors(settings, before, after):
    variables = {} if before is None else {"PJRT_NPROC": before}
    serve._limit_threads(Settings(**settings), variables, processors=8)
    assert variables.get("PJRT_NPROC") == after


def test_processors_are_those_of_the_process_if_the_system_tells(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 5, 7}, raising=False)
    assert count_processors() == 3
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert count_processors() == 6


def test_the_collector_skips_what_is_loaded_when_the_server_is_ready(monkeypatch):
    monkeypatch.setattr(warm_up, "warm_up", lambda job, window: None)
    gc.unfreeze()
    ready, before = threading.Event(), gc.get_threshold()
    gc.set_threshold(700)
    serve._prepare({}, Settings(), ready)
    try:
        assert ready.is_set() and gc.get_freeze_count() > 100_000
        assert gc.get_threshold()[0] == 10_000
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
