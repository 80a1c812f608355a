"""Graceful stopping on SIGINT, SIGTERM or a preemption notice: finish the step, save, exit."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from mnmt_jax.errors import warn


class InterruptedWaitError(BaseException):
    """A signal has ended a wait for data; not an `Exception`, so that nothing retries."""


class StopRequests:
    """Context manager that records Ctrl-C and SIGTERM instead of ending the process.

    A second Ctrl-C interrupts at once.

    Attributes:
        received: the signal, or None if none has arrived.
        is_waiting: whether the process waits for data.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, *, can_interrupt: bool = True) -> None:
        """Record no signal yet.

        Args:
            can_interrupt: whether a signal may interrupt a wait; False if other processes wait for
                this one's next update.
        """
        self.received: signal.Signals | None = None
        self.is_waiting = False
        self._can_interrupt, self._interrupts = can_interrupt, False
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
        self._interrupt()

    def _interrupt(self) -> None:
        if self._interrupts:
            self._interrupts = False
            raise InterruptedWaitError

    @contextlib.contextmanager
    def waiting(self, *, interruptible: bool = True) -> Iterator[None]:
        """Mark a block that may wait for data.

        Args:
            interruptible: whether a signal ends the block, if it may in this process.

        Raises:
            InterruptedWaitError: at a signal, or at once if one has arrived before.
        """
        self.is_waiting = True
        self._interrupts = interruptible and self._can_interrupt
        try:
            if self.received:
                self._interrupt()
            yield
        finally:
            self._interrupts = self.is_waiting = False

    def announce(self, notice: str) -> None:
        """Record a preemption notice as SIGTERM, and print it.

        Args:
            notice: from `mnmt_jax.distributed.preemption`.
        """
        warn(f"{notice}: stopping as after SIGTERM")
        self.received = self.received or signal.SIGTERM
        if self._previous_handlers:  # the handler interrupts a wait of the main thread
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
