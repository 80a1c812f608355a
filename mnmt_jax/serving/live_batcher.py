"""Live batching: threads that feed translation engines from the queues of all users.

Lines of all users wait in one queue each, and an engine gets lines of the users in turn, so a user
with one line does not wait for all lines of another. Several engines, one for each replica of a
model, share the queues.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Sequence

from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.text.translated_text import LineOfText
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.errors import UserError
from mnmt_jax.serving.failure_log import describe_failure
from mnmt_jax.serving.line_engines import LineEngine

TranslationFuture = concurrent.futures.Future[Translation]

_log = logging.getLogger(__name__)


class QueueFull(Exception):
    """More lines wait than the limit allows."""


class TooManyLines(QueueFull):
    """More lines at once than may ever wait.

    Attributes:
        count: number of lines.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


class Stopped(Exception):
    """The server ends and accepts no more lines."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Waiting:
    line: Line
    future: TranslationFuture


class LiveBatcher:
    """Threads that translate lines of all users, one for each engine.

    Args:
        engines: translate lines; a thread uses one of them alone.
        wait_seconds: how long an idle engine waits for further lines after the first one.
        max_waiting: most lines that wait.
        window: most lines that an engine has at a time.
        log_text: whether failures are logged with their words.
    """

    def __init__(
        self,
        engines: Sequence[LineEngine],
        *,
        wait_seconds: float,
        max_waiting: int,
        window: int,
        log_text: bool = False,
    ) -> None:
        self._wait_seconds, self._max_waiting, self._window = wait_seconds, max_waiting, window
        self._log_text = log_text
        self._numbers = itertools.count()
        self._queues: collections.OrderedDict[str, collections.deque[_Waiting]] = (
            collections.OrderedDict()
        )
        self._count, self._stops = 0, False
        self._idle = set(engines)
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, args=[engine], name="live batcher", daemon=True)
            for engine in engines
        ]
        for thread in self._threads:
            thread.start()

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
            TooManyLines: if there are more lines than may wait.
            Stopped: if the batcher has been stopped.
        """
        waiting = [
            _Waiting(line.numbered(0, sampling_index=line.index), concurrent.futures.Future())
            for line in lines
        ]
        with self._changed:
            if self._stops:
                raise Stopped
            if len(waiting) > self._max_waiting:
                raise TooManyLines(len(waiting))
            if self._count + len(waiting) > self._max_waiting:
                self._drop_cancelled()
            if self._count + len(waiting) > self._max_waiting:
                raise QueueFull
            if waiting:
                self._queues.setdefault(user, collections.deque()).extend(waiting)
                self._count += len(waiting)
                self._changed.notify_all()
        return [item.future for item in waiting]

    def stop(self) -> None:
        """Accept no more lines, translate those that wait, and end the threads."""
        with self._changed:
            self._stops = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self, engine: LineEngine) -> None:
        futures: dict[int, TranslationFuture] = {}
        while (lines := self._next_lines(engine)) is not None:
            try:
                self._translate(engine, lines, futures)
            except Exception as error:  # of the engine itself: the thread serves later lines
                shown = self._shown(error)
                for future in futures.values():
                    future.set_exception(shown)
                futures.clear()

    def _next_lines(self, engine: LineEngine) -> list[_Waiting] | None:
        """Return lines for an engine; wait for some if it has none. None is the end."""
        with self._changed:
            if not len(engine):
                self._idle.add(engine)
                while not self._count:  # also if another engine took the lines
                    if self._stops:
                        return None
                    self._wait_for_lines()
            share = -(-self._count // len(self._idle | {engine}))  # idle engines get the rest
            self._idle.discard(engine)
            return self._take(min(share, self._window - len(engine)))

    def _wait_for_lines(self) -> None:
        """Wait for a line, and then for more of them as long as an idle engine may."""
        while not self._count and not self._stops:
            self._changed.wait()
        deadline = time.monotonic() + self._wait_seconds
        while 0 < self._count < self._window and not self._stops:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not self._changed.wait(remaining):
                break

    def _take(self, room: int) -> list[_Waiting]:
        """Take lines from the users in turn, without those whose client has gone."""
        lines: list[_Waiting] = []
        while self._queues and len(lines) < room:
            user, queue = self._queues.popitem(last=False)
            item = queue.popleft()
            self._count -= 1
            if queue:
                self._queues[user] = queue
            if item.future.set_running_or_notify_cancel():
                lines.append(item)
        return lines

    def _drop_cancelled(self) -> None:
        """Leave out waiting lines whose client has gone, or whose time is over."""
        for user, queue in list(self._queues.items()):
            remaining = collections.deque(item for item in queue if not item.future.cancelled())
            self._count -= len(queue) - len(remaining)
            if remaining:
                self._queues[user] = remaining
            else:
                del self._queues[user]

    def _translate(
        self,
        engine: LineEngine,
        lines: Sequence[_Waiting],
        futures: dict[int, TranslationFuture],
    ) -> None:
        """Give lines to an engine, and let it work; complete the lines that it has translated.

        Args:
            engine: the engine.
            lines: new lines.
            futures: of all lines that the engine has, by their keys; those that complete leave.
        """
        numbered = list(zip(self._numbers, lines, strict=False)) if lines else []
        futures.update((number, item.future) for number, item in numbered)
        engine.add([(number, item.line) for number, item in numbered])
        for number, result in engine.run():
            future = futures.pop(number, None)
            if future is None:  # its line has failed already
                continue
            if isinstance(result, Translation):
                future.set_result(result)
            else:
                future.set_exception(self._shown(result))

    def _shown(self, error: Exception) -> UserError:
        """Return the error that a client may see; what the model raises otherwise is logged."""
        if isinstance(error, UserError):
            return error
        _log.error("%s", describe_failure(error, log_text=self._log_text))
        return UserError("translation failed")
