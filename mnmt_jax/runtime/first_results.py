"""A line about compilation when the first results of a command take long."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from mnmt_jax.errors import say

_SLOW_SECONDS = 3.0
COMPILING = "working on the first lines; this includes compiling the model"


@contextlib.contextmanager
def note_first_results(write: Callable[[str], object] = say) -> Iterator[Callable[[int], None]]:
    """Print a line if the first results take longer than a few seconds.

    Args:
        write: prints the line.

    Yields:
        A function to call with 0 when the work starts, and later with the number of new results.
    """
    timer = threading.Timer(_SLOW_SECONDS, write, [COMPILING])
    timer.daemon = True

    def report(count: int) -> None:
        if count:
            timer.cancel()
        elif timer.ident is None:  # not started
            timer.start()

    try:
        yield report
    finally:
        timer.cancel()
