"""Which example comes when: temperature mixing and shuffling as a pure function of the seed.

Task i with rate p_i shows its k-th example (k = 0, 1, ...) at time (k + u_i) / p_i, where u_i in
[0, 1) is drawn from the seed. The examples of a window of time, over all tasks, are a chunk. So a
chunk follows from its number alone: nothing is replayed to get there, every task gets its share in
every chunk, and within an epoch of a task each of its examples comes exactly once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.seeded_permutation import hash64, permuted_positions, text_hash64

_RATE_UNITS = 2**32  # rates become integers, so that no rounding of a float decides an order


def sampling_rates(sizes: Sequence[int], temperature: float) -> list[float]:
    """Returns the share of each task, p_i ~ (n_i / N)^(1 / T), summing to 1.

    Args:
        sizes: examples of each task.
        temperature: T; 1 is proportional to size, larger is flatter.

    Source: MITRE's and PhasedDecoder's scripts (fairseq `--sampling-method temperature`).
    """
    if temperature <= 0:
        raise UserError(f"temperature={temperature} must be positive; 1 is proportional to size")
    total = sum(sizes)
    raw = [math.pow(size / total, 1 / temperature) for size in sizes]
    return [value / sum(raw) for value in raw]


@dataclasses.dataclass(frozen=True)
class MixingSchedule:
    """The endless order of examples of several tasks.

    Attributes:
        names: task names; with the seed they key each task's shuffle.
        sizes: examples of each task.
        temperature: T of the mixing rates.
        seed: seed of shuffle and mixing.
        chunk_examples: examples per chunk, up to rounding of each task's share.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    temperature: float
    seed: int
    chunk_examples: int

    def chunk(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the examples of a chunk, task by task.

        Args:
            number: chunk, from 0.

        Returns:
            The task's place in `names`, the example's index in the task, and how often all of the
            task came before, int64 `[n]` each.
        """
        start, stop = self._shown(number), self._shown(number + 1)
        counts = np.array(stop) - np.array(start)
        task = np.repeat(np.arange(len(self.names)), counts)
        before = np.cumsum(counts) - counts
        shown = np.arange(counts.sum()) + np.repeat(np.array(start) - before, counts)
        sizes = np.array(self.sizes)[task]
        keys = np.array([text_hash64(name) for name in self.names], np.uint64)[task]
        keys = hash64(self.seed, keys, shown // sizes) if len(task) else keys
        return task, permuted_positions(shown % sizes, sizes, keys), shown // sizes

    def _shown(self, chunks: int) -> list[int]:
        """Returns how many examples each task has shown when so many chunks are over."""
        rates = sampling_rates(self.sizes, self.temperature)
        units = [max(1, round(rate * _RATE_UNITS)) for rate in rates]
        whole = sum(units)
        shown = []
        for name, unit in zip(self.names, units, strict=True):
            offset = int(hash64(self.seed, text_hash64(name), -1)[0]) % whole
            # The number of k >= 0 with k * whole + offset < unit * time, in integers.
            shown.append(max(0, -((offset - unit * chunks * self.chunk_examples) // whole)))
        return shown
