"""Graceful stopping on SIGINT and SIGTERM: finish the step, save, exit."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopRequests:
    """Context manager that records Ctrl-C and SIGTERM instead of ending the process.

    A second Ctrl-C interrupts at once.

    Attributes:
        received: the signal, or None if none has arrived.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous_handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            self._previous_handlers = {
                number: signal.signal(number, self._handle) for number in self._SIGNALS
            }
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
