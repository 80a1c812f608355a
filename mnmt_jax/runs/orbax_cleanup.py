"""Clean-up of Orbax's event loop after a failed restore.

Orbax reads all arrays of a checkpoint concurrently in its own event loop, and closes the loop when
the first read fails. The other reads then report to a closed loop, each with a traceback ("Event
loop is closed") from a thread of tensorstore. The loops here wait for them before they close.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class _DrainingLoop(asyncio.SelectorEventLoop):
    def close(self) -> None:
        """Close the loop after its last task has ended; errors of the tasks are ignored."""
        if not self.is_closed() and (pending := asyncio.all_tasks(self)):
            self.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        super().close()


class _DrainingPolicy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """Return a loop for `asyncio.new_event_loop`."""
        return _DrainingLoop()


@contextlib.contextmanager
def event_loops_that_drain() -> Iterator[None]:
    """Make event loops opened in the context wait for their tasks before they close."""
    previous = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(_DrainingPolicy())
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(previous)
