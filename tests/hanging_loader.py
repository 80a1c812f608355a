"""A training whose process 1 waits forever for its fourth batch: --module_import it."""

from __future__ import annotations

import itertools
import time

import jax

from mnmt_jax.data.batch_iterator import BatchIterator
from mnmt_jax.distributed import processes

SECONDS = 2
next_batch = BatchIterator.__next__
counter = itertools.count(1)


def hang_at_the_fourth(batches: BatchIterator):
    """Return three batches; the time limit is short once the programs are compiled."""
    number = next(counter)
    if number == 3:
        processes._HUNG_SECONDS = SECONDS
    while number > 3:
        time.sleep(1000)
    return next_batch(batches)


if jax.process_count() > 1 and jax.process_index() == 1:
    BatchIterator.__next__ = hang_at_the_fourth
