"""End of a stopped training whose bucket does not answer.

After a signal a run saves and exits. If its bucket does not answer, clients repeat their requests
for minutes, longer than schedulers wait before they kill a process. A thread therefore asks the
bucket, and ends the process with one line and the status of a command that continues.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from mnmt_jax.distributed.stopping import StopRequests
from mnmt_jax.errors import TRY_AGAIN_STATUS
from mnmt_jax.files.bucket import is_bucket
from mnmt_jax.files.bucket_reader import BucketReader
from mnmt_jax.runtime.run_command import exit_immediately

_PAUSE_SECONDS = 1.0
_PATIENCE = 10.0  # seconds without an answer; a spot machine has about 30


@contextlib.contextmanager
def end_in_outage(stop: StopRequests, run: str | Path, cache: str | Path) -> Iterator[None]:
    """End the process, if a bucket that it waits for after a signal does not answer.

    Args:
        stop: the signal; the process waits for the cache while `is_waiting`.
        run: the run directory.
        cache: the token cache.
    """
    watches = [
        _Watch(BucketReader(url), is_cache=number == 1)
        for number, url in enumerate((run, cache))
        if is_bucket(url)
    ]
    ended = threading.Event()
    if watches:
        threading.Thread(target=_run, args=(stop, watches, ended), daemon=True).start()
    try:
        yield
    finally:
        ended.set()


class _Watch:
    """The time since a bucket has answered."""

    def __init__(self, reader: BucketReader, *, is_cache: bool) -> None:
        self.is_cache = is_cache
        self._reader, self._start = reader, 0.0

    def problem(self, stop: StopRequests) -> str:
        """Ask the bucket; return a line once it has been silent for too long, else ""."""
        asked = time.monotonic()
        reason = self._reader.outage() if stop.is_waiting or not self.is_cache else ""
        self._start = (self._start or asked) if reason else 0.0
        elapsed = time.monotonic() - self._start
        if not reason or elapsed < _PATIENCE or not stop.received:
            return ""
        return (
            f"{self._reader.url}: no answer for {elapsed:.0f} s ({reason}), so that nothing can be "
            f"saved after {stop.received.name}; run the same command again: it continues from its "
            "last checkpoint"
        )


def _run(stop: StopRequests, watches: list[_Watch], ended: threading.Event) -> None:
    while not ended.wait(_PAUSE_SECONDS):
        for watch in watches if stop.received else ():
            problem = watch.problem(stop)
            if problem and not ended.is_set():
                print(f"error: {problem}", file=sys.stderr)
                exit_immediately(TRY_AGAIN_STATUS)
