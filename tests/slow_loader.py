"""A training whose process `SLOW_PROCESS` waits for each of its batches: --module_import it."""

from __future__ import annotations

import os
import time

import jax

from mnmt_jax.data.batch_iterator import BatchIterator

SECONDS = 0.5
next_batch = BatchIterator.__next__


def slow_next(batches: BatchIterator):
    """Return the next batch after a while."""
    time.sleep(SECONDS)
    return next_batch(batches)


if "SLOW_PROCESS" in os.environ and jax.process_index() == int(os.environ["SLOW_PROCESS"]):
    BatchIterator.__next__ = slow_next
