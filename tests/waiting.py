"""Waiting for a condition that another thread or process makes true."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.fresh_process import PATIENCE


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true; fail if that takes as long as only what hangs does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
