"""Translation of the texts of a request by one model, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from mnmt_jax.decoding.text.text_translation import translation_steps
from mnmt_jax.decoding.text.translated_text import LineOfText, TextToTranslate, TextTranslation
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.serving.live_batcher import QueueFull, TooManyLines
from mnmt_jax.serving.live_retry import translate_lines
from mnmt_jax.serving.refused_error import RETRY_SECONDS, RefusedError
from mnmt_jax.serving.served_models import ServedModel
from mnmt_jax.serving.settings import Settings

SHORT_CHARACTERS = 2000
"""Characters that are split, or whose language is detected, in less time than a thread takes."""
_WINDOWS = 4  # of lines of a document that wait at a time


class TextRun:
    """Translation of texts by a model.

    The lines of the first step are the sentences of the texts. Those of later steps, such as the
    parts of a sentence whose placeholders were lost, depend on the model: they are under no limit.

    Args:
        texts: texts whose languages the model has.
        model: the model.
        user: whose texts they are.
        settings: limits.
    """

    def __init__(
        self, texts: Sequence[TextToTranslate], model: ServedModel, user: str, settings: Settings
    ) -> None:
        self._steps = translation_steps([model.spelled(text) for text in texts], model.job.fits)
        self._is_short = sum(len(text.text) for text in texts) <= SHORT_CHARACTERS
        self._model, self._user, self._settings = model, user, settings
        self._lines: list[LineOfText] = []
        self._results: list[TextTranslation] | None = None

    async def start(self) -> int:
        """Split the texts, and return the number of their sentences."""
        await self._advance(None)
        return len(self._lines)

    async def finish(self, *, in_parts: bool = False) -> list[TextTranslation]:
        """Translate the sentences, and return the translations of the texts.

        Args:
            in_parts: whether the sentences are translated some at a time, as there may be any
                number of them.

        Raises:
            RefusedError: with status 413, if there are more sentences than may wait.
            QueueFull: if too much is waiting.
            Stopped: if the server ends.
        """
        while self._results is None:
            translate = self._translate_in_parts if in_parts else self._translate_at_once
            await self._advance(await translate())
            in_parts = True
        return self._results

    async def _advance(self, translations: Sequence[Translation] | None) -> None:
        """Take the next step; in a thread, if it would hold up other requests."""
        if self._is_short:
            self._take_step(translations)
        else:
            await asyncio.to_thread(self._take_step, translations)

    def _take_step(self, translations: Any) -> None:
        try:
            self._lines = self._steps.send(translations)
        except StopIteration as end:
            self._results = end.value

    async def _translate(self, lines: Sequence[LineOfText]) -> list[Translation]:
        log_text = self._settings.log_text
        return await translate_lines(self._model, lines, self._user, log_text=log_text)

    async def _translate_at_once(self) -> list[Translation]:
        try:
            return await self._translate(self._lines)
        except TooManyLines as error:
            limit = self._settings.max_waiting
            raise too_large_error(error.count, "sentences", "max_waiting", limit) from None

    async def _translate_in_parts(self) -> list[Translation]:
        """Translate lines, some at a time; wait as long as too much is waiting."""
        translations: list[Translation] = []
        limits = self._settings
        size = min(_WINDOWS * limits.window, limits.max_sentences, limits.max_waiting)
        while len(translations) < len(self._lines):
            part = self._lines[len(translations) :][:size]
            try:
                translations += await self._translate(part)
            except QueueFull:
                await asyncio.sleep(RETRY_SECONDS)
        return translations


def check_limit(count: int, unit: str, name: str, limit: int) -> None:
    """Check the size of a request.

    Args:
        count: its size.
        unit: what is counted, in the plural.
        name: the server's flag.
        limit: value of the flag.

    Raises:
        RefusedError: with status 413, if it is larger than the limit.
    """
    if count > limit:
        raise too_large_error(count, unit, name, limit)


def too_large_error(count: int, unit: str, name: str, limit: int) -> RefusedError:
    """Return the error of `check_limit`."""
    return RefusedError(413, f"{count} {unit}; the limit is {limit} (the server's --{name})")
