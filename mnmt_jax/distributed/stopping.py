"""Graceful stopping on SIGINT, SIGTERM or a preemption notice: finish the step, save, exit."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from mnmt_jax.errors import warn


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

    def announce(self, notice: str) -> None:
        """Record a preemption notice as SIGTERM, and print it.

        Args:
            notice: from `mnmt_jax.distributed.preemption`.
        """
        warn(f"{notice}: stopping as after SIGTERM")
        self.received = self.received or signal.SIGTERM
