"""Engines behind the batcher: they translate lines of all users, a program or a batch at a time."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.live_translation import LiveTranslation
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.serving.failure_log import describe_failure

Result = tuple[int, Translation | Exception]
"""The key of a line, and its translation or the error that concerns it."""

_log = logging.getLogger(__name__)

TranslateLines = Callable[[Sequence[Line]], Iterable[tuple[Line, Translation]]]


class LineEngine(Protocol):
    """Translates lines that are added at any time."""

    def __len__(self) -> int:
        """Number of lines that are not translated yet."""

    def add(self, lines: Sequence[tuple[int, Line]]) -> None:
        """Add lines, each with a key that is unique."""

    def run(self) -> Iterator[Result]:
        """Work for a limited time, and yield the lines that are complete, each once."""


class BatchEngine:
    """Translates all lines that wait in one call; for whatever translates a list of lines.

    If a call fails, its lines are translated one by one, so that the failing one fails alone.

    Args:
        translate: translates lines with consecutive numbers; yields each with its translation.
    """

    def __init__(self, translate: TranslateLines) -> None:
        self._translate_lines = translate
        self._waiting: list[tuple[int, Line]] = []

    def __len__(self) -> int:
        """Number of lines that are not translated yet."""
        return len(self._waiting)

    def add(self, lines: Sequence[tuple[int, Line]]) -> None:
        """Add lines, each with a key that is unique."""
        self._waiting += lines

    def run(self) -> Iterator[Result]:
        """Translate the lines that wait."""
        waiting, self._waiting = self._waiting, []
        missing = dict(waiting)
        try:
            for key, translation in self._translate(waiting):
                del missing[key]
                yield key, translation
        except Exception as error:
            if len(waiting) == 1:
                yield waiting[0][0], error
                return
            for entry in missing.items():
                yield from self._alone(entry)

    def _alone(self, entry: tuple[int, Line]) -> Iterator[Result]:
        try:
            yield from self._translate([entry])
        except Exception as error:
            yield entry[0], error

    def _translate(self, entries: Sequence[tuple[int, Line]]) -> Iterator[Result]:
        lines = [
            dataclasses.replace(line, number=n, sampling_index=line.seed)
            for n, (_, line) in enumerate(entries)
        ]
        for line, translation in self._translate_lines(lines):
            yield entries[line.number][0], translation


class JobEngine:
    """Translates lines of a job by continuous batching, and others in batches of their own.

    Args:
        job: the model and settings of the search, without source contrast. All lines are translated
            in batches with a pivot, and in an engine without slots.
        log_text: whether failures are logged with their words.

    Attributes:
        is_live: whether lines are translated by continuous batching.
    """

    def __init__(self, job: TranslationJob, *, log_text: bool = False) -> None:
        self._log_text = log_text
        self.is_live = job.has_slots and job.pivot is None
        self._live = LiveTranslation[int](job)
        self._batches = BatchEngine(job.search)

    def __len__(self) -> int:
        """Number of lines that are not translated yet."""
        return len(self._live) + len(self._batches)

    def add(self, lines: Sequence[tuple[int, Line]], *, longest: bool = False) -> None:
        """Add lines, each with a key that is unique; `longest` as in `LiveTranslation.add`."""
        if not self.is_live:
            self._batches.add(lines)
            return
        try:
            self._live.add(lines, longest=longest)
        except Exception:  # of a line, which fails alone in its batch
            self._batches.add(lines)

    def run(self) -> Iterator[Result]:
        """Run one program of the lines in slots, and one batch of the others."""
        try:
            yield from self._live.run()
        except Exception as error:  # of a program: its lines are translated in batches
            _log.error("continuous batching: %s", describe_failure(error, log_text=self._log_text))
            self._batches.add(self._live.abandon())
        self._batches.add(self._live.take_refused())
        if len(self._batches):
            yield from self._batches.run()
