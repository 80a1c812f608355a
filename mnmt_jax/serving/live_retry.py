"""Translation of the lines of a request, with further searches of those that fail the checks."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Sequence

from mnmt_jax.decoding.retry import Attempt, Retry
from mnmt_jax.decoding.text.translated_text import LineOfText
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.errors import UserError
from mnmt_jax.serving.failure_log import describe_failure
from mnmt_jax.serving.job_batcher import JobBatcher
from mnmt_jax.serving.live_batcher import QueueFull
from mnmt_jax.serving.served_models import ServedModel

_log = logging.getLogger(__name__)


async def translate_lines(
    model: ServedModel, lines: Sequence[LineOfText], user: str, *, log_text: bool = False
) -> list[Translation]:
    """Translate lines.

    Args:
        model: the model, with its further searches.
        lines: the lines.
        user: whose lines they are.
        log_text: whether failures of further searches are logged with their words.

    Raises:
        QueueFull: if too many lines wait for the first search.
        Stopped: if the server ends.
        UserError: if the first search of a line fails.
    """
    translations = await _search(model.batcher, lines, user)
    if model.job.retry is None:
        return translations
    failed = await asyncio.to_thread(_failures, model.job.retry, lines, translations)
    for attempt, batcher in model.retries:
        indices = [i for i in failed if attempt.applies(lines[i].source, lines[i].target)]
        members = [lines[i] for i in indices]
        results = await _retry(attempt, batcher, members, user, log_text)
        if results is None:
            continue
        still_failing = await asyncio.to_thread(_failures, model.job.retry, members, results)
        for position, (index, translation) in enumerate(zip(indices, results, strict=True)):
            if position not in still_failing:
                translations[index] = dataclasses.replace(translation, retried=attempt.name)
                failed.remove(index)
    return translations


async def _retry(
    attempt: Attempt, batcher: JobBatcher, lines: Sequence[LineOfText], user: str, log_text: bool
) -> list[Translation] | None:
    """Search lines again; return None if that is not possible, and first translations remain."""
    try:
        return await _search(batcher, lines, user) if lines else None
    except QueueFull:
        return None
    except UserError as error:
        _log.error("%s: %s", attempt.name, describe_failure(error, log_text=log_text))
        return None


async def _search(batcher: JobBatcher, lines: Sequence[LineOfText], user: str) -> list[Translation]:
    futures = batcher.submit(lines, user)
    try:
        return [await asyncio.wrap_future(future) for future in futures]
    finally:
        for future in futures:  # of a client that has gone, or a time that is over
            future.cancel()


def _failures(
    retry: Retry, lines: Sequence[LineOfText], translations: Sequence[Translation]
) -> list[int]:
    """Return the indices of translations that fail the checks."""
    return [
        index
        for index, (line, translation) in enumerate(zip(lines, translations, strict=True))
        if not retry.passes(line.text, line.source, translation, line.target)
    ]
