"""Straggler detection: seconds in which each host prepares batches, compared at log points.

All hosts see the same time per update, since each waits for the slowest in the exchange of the
gradient. So a host measures only its own work: reading a batch and copying it to its devices.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence

import numpy as np

from mnmt_jax.distributed.processes import gather_texts

_MIN_PROCESSES = 3  # of two that differ, either may be the unusual one
_SIGMAS = 3
_SIGMA_PER_DEVIATION = 1.4826  # of a normal distribution, per median absolute deviation
_LEAST_SHARE = 0.1  # of an update's seconds: less does not slow a run noticeably


class HostTimes:
    """Seconds per update in which this host prepares batches, and their exchange.

    Attributes:
        names: host of each process, after the first exchange.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._seconds, self._updates = 0.0, 0

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Count the time in the context; enter it once per update."""
        start = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - start
        self._updates += 1

    def gather(self) -> list[float]:
        """Return the mean of each process since the last call, in seconds per update.

        All processes must call it after the same update.
        """
        from jax.experimental import multihost_utils

        self.names = self.names or gather_texts(socket.gethostname())
        mean = np.float32(self._seconds / max(self._updates, 1))
        self._seconds, self._updates = 0.0, 0
        return np.asarray(multihost_utils.process_allgather(mean)).reshape(-1).tolist()


def find_stragglers(seconds: Sequence[float], update_seconds: float) -> list[int]:
    """Return the processes that prepare batches more slowly than the others.

    A straggler is more than three standard deviations above the median, estimated from the median
    absolute deviation, which stragglers do not raise. It must also exceed the median by a tenth of
    an update's time.

    Args:
        seconds: per update, of each process; fewer than three have no straggler.
        update_seconds: duration of an update.
    """
    if len(seconds) < _MIN_PROCESSES:
        return []
    values = np.asarray(seconds)
    excess = values - np.median(values)
    sigma = _SIGMA_PER_DEVIATION * np.median(np.abs(excess))
    limit = max(_SIGMAS * sigma, _LEAST_SHARE * update_seconds)
    return np.flatnonzero(excess > limit).tolist()


def straggler_warnings(
    seconds: Sequence[float], names: Sequence[str], update_seconds: float
) -> dict[str, str]:
    """Return a line about each straggler, by a name for `Reporter.warn_once`.

    Args:
        seconds: as for `find_stragglers`.
        names: host of each process.
        update_seconds: as for `find_stragglers`.
    """
    usual = float(np.median(seconds))
    return {
        f"straggler {process}": (
            f"process {process} on {names[process]} takes {seconds[process]:.2g} s to prepare the "
            f"batches of an update, the median process {usual:.2g} s, and the others wait for it; "
            "check that host's storage, memory and other work"
        )
        for process in find_stragglers(seconds, update_seconds)
    }
