"""Stopping on request: finish the step, save, leave."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopRequests:
    """Remembers Ctrl-C and SIGTERM instead of dying from them; a context manager.

    A second Ctrl-C interrupts at once, for those who do not want to wait.

    Attributes:
        received: the signal, or None while nobody asked to stop.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in self._SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
