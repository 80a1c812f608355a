"""Calls of a tracker in a background thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from mnmt_jax.training.trackers.interface import Status, TrackedRun, Tracker

_END_SECONDS = 20.0  # a preempted process has little more


class BackgroundTracker(Tracker):
    """A tracker that never makes training wait, except for its end.

    Steps that the tracked run already has are left out. If `start` fails, it is tried again at the
    next step.
    """

    def __init__(
        self,
        tracker: Tracker,
        tracked: TrackedRun,
        *,
        started: Callable[[str], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Start the thread.

        Args:
            tracker: the tracker to call.
            tracked: record of the tracked run.
            started: called in the thread with the result of `start`.
            failed: called in the thread with each error.
        """
        self._tracker, self._tracked = tracker, tracked
        self._started, self._failed = started, failed
        self._is_started = False
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    @property
    def last_step(self) -> int:
        """The last step whose metrics the tracker has."""
        return self._tracked.last_step

    def start(self, config: Mapping[str, Any]) -> str:
        """Start the tracker in the thread; `started` receives the result."""
        self._config = dict(config)
        self._calls.put(self._start)
        return ""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics in the thread."""
        self._calls.put(lambda: self._write(step, metrics))

    def end(self, status: Status) -> None:
        """End the tracker after all its writes.

        Raises:
            TimeoutError: if that takes too long; the thread is then left behind.
        """
        self._calls.put(lambda: self._end(status))
        self._calls.put(None)
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            raise TimeoutError(f"no answer for {_END_SECONDS:g} seconds")

    def _work(self) -> None:
        while call := self._calls.get():
            try:
                call()
            except Exception as error:  # packages raise many types
                self._failed(error)

    def _start(self) -> None:
        if not self._is_started:
            location = self._tracker.start(self._config)
            self._is_started = True
            self._started(location)

    def _write(self, step: int, metrics: Mapping[str, float]) -> None:
        if step <= self._tracked.last_step:
            return
        self._start()
        self._tracker.write(step, metrics)
        self._tracked.last_step = step
        self._tracked.save()

    def _end(self, status: Status) -> None:
        if self._is_started:
            self._tracker.end(status)
