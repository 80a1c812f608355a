"""Batchers of one job: lines that may wait for the compiler have threads of their own."""

from __future__ import annotations

from collections.abc import Sequence

from mnmt_jax.decoding.text.translated_text import LineOfText
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.serving.live_batcher import LiveBatcher, QueueFull, Stopped, TranslationFuture


class JobBatcher:
    """A batcher for most lines of a job, and one for lines of `TranslationJob.may_compile`.

    A line of the second kind never holds up one of the first. Each batcher has its own queues and
    limits.

    Args:
        job: decides which lines may wait for the compiler.
        batcher: translates the other lines.
        compiling: translates lines that may wait for the compiler.
    """

    def __init__(self, job: TranslationJob, batcher: LiveBatcher, compiling: LiveBatcher) -> None:
        self._job, self._batcher, self._compiling = job, batcher, compiling

    @property
    def waiting(self) -> int:
        """Number of lines that wait."""
        return self._batcher.waiting + self._compiling.waiting

    def submit(self, lines: Sequence[LineOfText], user: str) -> list[TranslationFuture]:
        """Enqueue lines; all or none, as `LiveBatcher.submit`."""
        compiles = [self._job.may_compile(line.numbered(0)) for line in lines]
        sides = list(zip(lines, compiles, strict=True))
        plain = self._batcher.submit([line for line, compiling in sides if not compiling], user)
        try:
            others = self._compiling.submit([line for line, compiling in sides if compiling], user)
        except (QueueFull, Stopped):
            for future in plain:
                future.cancel()
            raise
        futures = {False: iter(plain), True: iter(others)}
        return [next(futures[compiling]) for compiling in compiles]

    def stop(self) -> None:
        """Accept no more lines, translate those that wait, and end the threads."""
        self._batcher.stop()
        self._compiling.stop()
