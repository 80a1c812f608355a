"""Mixing schedule: temperature mixing and shuffling as a pure function of the seed.

Task i with rate p_i shows its k-th example (k = 0, 1, ...) at time (k + u_i) / p_i, where u_i in
[0, 1) is drawn from the seed. A chunk consists of the examples of all tasks in a window of time. So
a chunk depends only on its number, without replay of earlier ones; every task has its share of
every chunk; and each example of a task occurs exactly once per epoch of the task.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.seeded_permutation import hash64, permuted_positions, text_hash64

_LARGEST_EPOCH = 1.5  # fairseq's default_virtual_size_func
_RATE_UNITS = 2**32  # rates are integers, so that float rounding cannot affect the order


def sampling_rates(sizes: Sequence[int], temperature: float) -> list[float]:
    """Return the sampling rate of each task, p_i ~ (n_i / N)^(1 / T), summing to 1.

    Args:
        sizes: number of examples of each task.
        temperature: T; 1 is proportional to size, larger is flatter.

    Raises:
        UserError: if the temperature is not positive.

    Source: MITRE's and PhasedDecoder's scripts (fairseq `--sampling-method temperature`).
    """
    if temperature <= 0:
        raise UserError(f"temperature={temperature} must be positive; 1 is proportional to size")
    total = sum(sizes)
    weights = [math.pow(size / total, 1 / temperature) for size in sizes]
    return [weight / sum(weights) for weight in weights]


@dataclasses.dataclass(frozen=True)
class MixingSchedule:
    """Endless order of the examples of several tasks.

    Attributes:
        names: task names; with the seed they determine the shuffle of each task.
        sizes: number of examples of each task.
        temperature: T of the mixing rates.
        seed: seed of shuffling and mixing.
        chunk_examples: number of examples per chunk, up to rounding of the share of each task.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    temperature: float
    seed: int
    chunk_examples: int

    @property
    def epoch_examples(self) -> int:
        """Number of draws in an epoch: fairseq's default virtual size.

        They show each example of the largest task once, so smaller tasks more than once if
        `temperature` is above 1; at most `_LARGEST_EPOCH` times the number of examples.
        """
        total, largest = sum(self.sizes), max(self.sizes)
        rate = max(sampling_rates(self.sizes, self.temperature))
        return int(min(largest / rate, _LARGEST_EPOCH * total))

    def chunk(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the examples of a chunk, task by task.

        Args:
            number: number of the chunk, from 0.

        Returns:
            For each example: index of the task in `names`, index of the example in the task, and
            number of completed passes over the task, int64 `[n]` each.
        """
        start, stop = self._num_shown(number), self._num_shown(number + 1)
        counts = np.array(stop) - np.array(start)
        task = np.repeat(np.arange(len(self.names)), counts)
        chunk_offsets = np.cumsum(counts) - counts
        shown = np.arange(counts.sum()) + np.repeat(np.array(start) - chunk_offsets, counts)
        sizes = np.array(self.sizes)[task]
        keys = np.array([text_hash64(name) for name in self.names], np.uint64)[task]
        keys = hash64(self.seed, keys, shown // sizes) if len(task) else keys
        return task, permuted_positions(shown % sizes, sizes, keys), shown // sizes

    def _num_shown(self, chunks: int) -> list[int]:
        """Return the number of examples that each task has shown after `chunks` chunks."""
        rates = sampling_rates(self.sizes, self.temperature)
        units = [max(1, round(rate * _RATE_UNITS)) for rate in rates]
        total_units = sum(units)
        counts = []
        for name, unit in zip(self.names, units, strict=True):
            offset = int(hash64(self.seed, text_hash64(name), -1)[0]) % total_units
            # The number of integers k >= 0 with k * total_units + offset < unit * time.
            counts.append(max(0, -((offset - unit * chunks * self.chunk_examples) // total_units)))
        return counts
