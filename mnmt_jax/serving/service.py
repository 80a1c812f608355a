"""Service behind the routes of all protocols: languages, detection and translation of texts."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

from mnmt_jax.decoding.sentence_job import SentenceJob
from mnmt_jax.decoding.text_translation import (
    LineOfText,
    Steps,
    TextToTranslate,
    TextTranslation,
    translation_steps,
)
from mnmt_jax.decoding.translate_lines import Translation
from mnmt_jax.serving.database import Database
from mnmt_jax.serving.line_engines import LineEngine
from mnmt_jax.serving.live_batcher import LiveBatcher, QueueFull, Stopped
from mnmt_jax.serving.settings import Settings
from mnmt_jax.vocabulary.language_codes import find_code
from mnmt_jax.vocabulary.language_detectors import LanguageDetector, has_letters

RETRY_SECONDS = 2  # that a client is told to wait if too much is waiting


class RefusedError(Exception):
    """A request that is answered with an error.

    Attributes:
        status: HTTP status.
        message: one line for the client.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclasses.dataclass(frozen=True)
class Answer:
    """The translation of a text.

    Attributes:
        translation: the translated text and its sentences.
        source: the model's code of the source language.
        confidence: probability of a detected source language; None if it was given.
    """

    translation: TextTranslation
    source: str
    confidence: float | None


@dataclasses.dataclass(frozen=True)
class TranslationOptions:
    """What a request asks for, with the model's codes of languages.

    Attributes:
        target: code of the target language.
        source: code of the source language; None detects it for each text.
    """

    target: str
    source: str | None = None


class TranslationService:
    """A model behind the routes.

    Args:
        job: the model and settings of the search.
        settings: limits.
        detector: detects source languages.
        engine: translates lines as the job does.
        database: API keys, usage and glossaries; None keeps them in memory.
    """

    def __init__(
        self,
        job: SentenceJob,
        settings: Settings,
        detector: LanguageDetector,
        engine: LineEngine,
        database: Database | None = None,
    ) -> None:
        self.settings = settings
        self.database = database or Database()
        self.languages = job.pretrained.languages
        self._job, self._detector = job, detector
        # Of languages that share a label, the first of the model is detected.
        self._by_label = {detector.expected(code): code for code in reversed(self.languages)}
        self._batcher = LiveBatcher(
            engine,
            wait_seconds=settings.wait_milliseconds / 1000,
            max_waiting=settings.max_waiting,
            window=settings.window,
        )

    @property
    def waiting(self) -> int:
        """Number of lines that wait."""
        return self._batcher.waiting

    def stop(self) -> None:
        """Translate what waits, accept no more, and close the database."""
        self._batcher.stop()
        self.database.close()

    def language(self, code: str, field: str) -> str:
        """Return the model's code of a language.

        Args:
            code: code in any form.
            field: name of the field, for the message.

        Raises:
            RefusedError: with status 400, if the model does not have it.
        """
        known = find_code(code, self.languages)
        if known is None:
            raise RefusedError(400, f"{field}: {code} is not supported")
        return known

    def detect(self, text: str) -> tuple[str, float] | None:
        """Return the model's code of the language of a text and its probability.

        None if the text has no letters, or is in none of the model's languages.
        """
        if not has_letters(text):
            return None
        label, probability = self._detector.best(text)
        code = self._by_label.get(label)
        return None if code is None else (code, probability)

    async def translate(
        self, texts: Sequence[str], options: TranslationOptions, user: str
    ) -> list[Answer]:
        """Translate texts.

        Args:
            texts: texts of any number of sentences.
            options: their languages.
            user: whose texts they are, for fairness.

        Raises:
            RefusedError: if a limit is exceeded, the language of a text is not known, too much is
                waiting, or the time is over.
        """
        self._check_limits(texts)
        source = options.source
        sources = [(source, None) if source else self._detected(text) for text in texts]
        to_translate = [
            TextToTranslate(text, code, options.target)
            for text, (code, _) in zip(texts, sources, strict=True)
        ]
        try:
            async with asyncio.timeout(self.settings.timeout):
                results = await self._run(translation_steps(to_translate, self._job.fits), user)
        except TimeoutError:
            raise RefusedError(503, "the translation took too long; send less text") from None
        except QueueFull:
            raise RefusedError(429, "too much text is waiting; try again later") from None
        except Stopped:
            raise RefusedError(503, "the server is stopping") from None
        return [
            Answer(result, code, confidence)
            for result, (code, confidence) in zip(results, sources, strict=True)
        ]

    async def _run(self, steps: Steps, user: str) -> list[TextTranslation]:
        """Run the steps of a translation; splitting text does not hold up other requests."""
        lines, results = await asyncio.to_thread(_advance, steps, None)
        while results is None:
            translations = await self._translate_lines(lines, user)
            lines, results = await asyncio.to_thread(_advance, steps, translations)
        return results

    async def _translate_lines(self, lines: Sequence[LineOfText], user: str) -> list[Translation]:
        if len(lines) > self.settings.max_sentences:
            limit = self.settings.max_sentences
            raise RefusedError(413, f"{len(lines)} sentences; the limit is {limit}")
        futures = self._batcher.submit(lines, user)
        try:
            return [await asyncio.wrap_future(future) for future in futures]
        finally:
            for future in futures:  # of a client that has gone, or a time that is over
                future.cancel()

    def _detected(self, text: str) -> tuple[str, float]:
        return self.detect(text) or (self.languages[0], 0.0)

    def _check_limits(self, texts: Sequence[str]) -> None:
        count, limit = sum(map(len, texts)), self.settings.max_characters
        if count > limit:
            raise RefusedError(413, f"{count} characters; the limit is {limit}")


def _advance(
    steps: Steps, translations: Sequence[Translation] | None
) -> tuple[list[LineOfText], list[TextTranslation] | None]:
    """Return the next lines of a translation, or its results."""
    try:
        sent: Any = translations
        return steps.send(sent), None
    except StopIteration as end:
        return [], end.value
