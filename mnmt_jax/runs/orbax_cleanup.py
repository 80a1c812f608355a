"""Lets Orbax end what it began: reads of a checkpoint of which one has failed.

Orbax reads all arrays of a checkpoint at a time in an event loop of its own, and closes the loop
when the first of them fails. The others then answer to a loop that is gone, each with a traceback
("Event loop is closed") from a thread of tensorstore. Here a loop waits for them before it closes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class _PatientLoop(asyncio.SelectorEventLoop):
    def close(self) -> None:
        """Closes the loop once its last task has ended; the first error stands for theirs."""
        if not self.is_closed() and (left := asyncio.all_tasks(self)):
            self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        super().close()


class _PatientPolicy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """Makes what `asyncio.new_event_loop` returns."""
        return _PatientLoop()


@contextlib.contextmanager
def event_loops_that_drain() -> Iterator[None]:
    """Makes event loops that are opened meanwhile wait for their tasks when they are closed."""
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(_PatientPolicy())
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(before)
