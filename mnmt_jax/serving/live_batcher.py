"""Batches of lines that arrive at any time: a thread that translates what is waiting.

Lines of all users wait in one queue each, and a batch takes from the users in turn, so a user with
one line does not wait for all lines of another. A line's translation is that of `mnmt translate`,
because lines do not depend on each other (`mnmt_jax.decoding.translate_lines`).
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.text_translation import LineOfText
from mnmt_jax.decoding.translate_lines import Translation
from mnmt_jax.errors import UserError

TranslationFuture = concurrent.futures.Future[Translation]
TranslateLines = Callable[[Sequence[Line]], Iterable[tuple[Line, Translation]]]


class QueueFull(Exception):
    """More lines wait than the limit allows."""


class Stopped(Exception):
    """The server ends and accepts no more lines."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Waiting:
    line: Line
    future: TranslationFuture


class LiveBatcher:
    """A thread that translates lines of all users in batches.

    Args:
        translate: translates lines with numbers; yields each with its translation.
        wait_seconds: how long a batch waits for further lines after its first one.
        max_waiting: most lines that wait.
        window: most lines of a batch; lines of one length share the slots of the search.
    """

    def __init__(
        self, translate: TranslateLines, *, wait_seconds: float, max_waiting: int, window: int
    ) -> None:
        self._translate_lines = translate
        self._wait_seconds, self._max_waiting, self._window = wait_seconds, max_waiting, window
        self._queues: collections.OrderedDict[str, collections.deque[_Waiting]] = (
            collections.OrderedDict()
        )
        self._count, self._stops = 0, False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="live batcher", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of lines that wait."""
        return self._count

    def submit(self, lines: Sequence[LineOfText], user: str) -> list[TranslationFuture]:
        """Enqueue lines; all or none.

        Args:
            lines: sentences with their languages.
            user: whose lines they are.

        Raises:
            QueueFull: if too many lines wait.
            Stopped: if the batcher has been stopped.
        """
        waiting = [_Waiting(line.numbered(0), concurrent.futures.Future()) for line in lines]
        with self._changed:
            if self._stops:
                raise Stopped
            if self._count + len(waiting) > self._max_waiting:
                raise QueueFull
            self._queues.setdefault(user, collections.deque()).extend(waiting)
            self._count += len(waiting)
            self._changed.notify()
        return [item.future for item in waiting]

    def stop(self) -> None:
        """Accept no more lines, translate those that wait, and end the thread."""
        with self._changed:
            self._stops = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._translate(batch)

    def _next_batch(self) -> list[_Waiting] | None:
        """Wait for lines; return None at the end."""
        with self._changed:
            while not self._count and not self._stops:
                self._changed.wait()
            deadline = time.monotonic() + self._wait_seconds
            while 0 < self._count < self._window and not self._stops:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._changed.wait(remaining):
                    break
            return self._take() if self._count else None

    def _take(self) -> list[_Waiting]:
        """Take lines from the users in turn, without those whose client has gone."""
        batch: list[_Waiting] = []
        while self._queues and len(batch) < self._window:
            user, queue = self._queues.popitem(last=False)
            item = queue.popleft()
            self._count -= 1
            if queue:
                self._queues[user] = queue
            if item.future.set_running_or_notify_cancel():
                batch.append(item)
        return batch

    def _translate(self, batch: Sequence[_Waiting]) -> None:
        lines = [dataclasses.replace(item.line, number=n) for n, item in enumerate(batch)]
        try:
            for line, translation in self._translate_lines(lines):
                batch[line.number].future.set_result(translation)
        except Exception as error:  # whatever the model raises belongs to these lines alone
            reason = error if isinstance(error, UserError) else UserError("translation failed")
            for item in batch:
                if not item.future.done():
                    item.future.set_exception(reason)
