"""Re-delivery of a Ctrl-C that arrives in a hook that cannot raise, such as JAX's."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator

_SOON = 0.1  # seconds


class _Watcher:
    """A thread that receives the errors which Python ignores.

    The hook that feeds it is written in C: one in Python could itself be interrupted before its
    first line.
    """

    def __init__(self) -> None:
        self._before = sys.unraisablehook
        self._ignored: queue.SimpleQueue[sys.UnraisableHookArgs | None] = queue.SimpleQueue()
        self.start()
        sys.unraisablehook = self._ignored.put

    def start(self) -> None:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        sys.unraisablehook = self._before
        self._ignored.put(None)
        self._thread.join()

    def _watch(self) -> None:
        while (ignored := self._ignored.get()) is not None:
            if not issubclass(ignored.exc_type, KeyboardInterrupt):
                self._before(ignored)
                continue
            time.sleep(_SOON)  # the hook has ended by then; if not, the interrupt is ignored again
            self._drop_more()
            # A signal also ends a system call that waits, which _thread.interrupt_main does not.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _drop_more(self) -> None:
        """Discard interrupts that arrived meanwhile: they must not be raised again in cleanup."""
        while not self._ignored.empty():
            pending = self._ignored.get()
            if pending is None or not issubclass(pending.exc_type, KeyboardInterrupt):
                self._ignored.put(pending)
                return


_watchers: list[_Watcher] = []


def _start_again() -> None:
    for watcher in _watchers:
        watcher.start()


os.register_at_fork(after_in_child=_start_again)  # threads do not survive a fork


@contextlib.contextmanager
def redeliver_interrupts() -> Iterator[None]:
    """Re-deliver a Ctrl-C that arrived in a hook of the garbage collector or in a finalizer."""
    watcher = _Watcher()
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
        watcher.stop()
