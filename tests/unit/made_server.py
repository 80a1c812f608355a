"""A server with a translator that marks sentences, in a thread of the tests."""

from __future__ import annotations

import contextlib
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding.translation import Hypothesis, Translation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.serving.app import create_app
from mnmt_jax.serving.connections import make_config
from mnmt_jax.serving.database import Database
from mnmt_jax.serving.line_engines import BatchEngine
from mnmt_jax.serving.service import TranslationService
from mnmt_jax.serving.settings import Settings
from mnmt_jax.vocabulary.language_detectors import make_lid176

LANGUAGES = ("en", "de", "fr", "pt", "zh")


class MadeJob:
    """A job that returns `[TARGET] SENTENCE`, and counts batches.

    Args:
        languages: codes of the languages.
        name: printed before TARGET.

    Attributes:
        batches: sentences of each batch.
        gate: a batch waits until it is set.
        respond: translates a sentence; None marks it.
    """

    respond: Callable[[str], str] | None = None

    def __init__(self, languages: tuple[str, ...] = LANGUAGES, name: str = "") -> None:
        self.pretrained = types.SimpleNamespace(languages=languages)
        self.decode = Decode()
        self._name = name
        self.replicas = [self]
        self.compiling_job = self
        self.parallel_searches = 1
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()

    retry = None

    def may_compile(self, line: Any) -> bool:
        return TranslationJob.may_compile(self, line)  # type: ignore[arg-type]

    def fits(self, text: str, language: str) -> bool:
        return len(text) <= 200

    def as_completed(self, lines: Any) -> Iterator[Any]:
        self.batches.append([line.text for line in lines])
        assert self.gate.wait(60)
        for line in lines:
            if line.text == "Fail.":
                raise ValueError("secret")
            marked = f"[{self._name}{line.target_lang}] {_with_terms(line)}"
            texts = (self.respond(line.text) if self.respond else marked, "other")
            yield line, Translation(tuple(Hypothesis(text, -1.0, ()) for text in texts))


def _with_terms(line: Any) -> str:
    """Return the text of a line with the first translations of its terms, unless they are odd."""
    text: str = line.text
    for term in line.terms.required:
        if term.targets[0] != "odd":
            text = text.replace(term.source, term.targets[0])
    return text


def made_service(*jobs: MadeJob, **settings: Any) -> TranslationService:
    """Return a service of jobs, whose names are `made`, `made1`, `made2` and so on."""
    named: Any = {f"made{number or ''}": job for number, job in enumerate(jobs)}
    limits = Settings(**settings)
    return TranslationService(
        named,
        limits,
        make_lid176(),
        Database(limits.database or None),
        make_engine=lambda job: BatchEngine(job.as_completed),
    )


@contextlib.contextmanager
def serving(service: TranslationService, ready: bool = True) -> Iterator[str]:
    """Serve a service on a free port; yield the address."""
    try:
        with serving_app(create_app(service, lambda: ready), service.settings) as address:
            yield address
    finally:
        service.stop()


@contextlib.contextmanager
def serving_app(app: Any, settings: Settings) -> Iterator[str]:
    """Serve an application on a free port; yield the address."""
    config = make_config(app, settings, host="127.0.0.1", port=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
