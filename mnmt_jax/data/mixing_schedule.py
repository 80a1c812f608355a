"""Mixing schedule: temperature mixing and shuffling as a pure function of the seed.

Task i with rate p_i shows its k-th example (k = 0, 1, ...) at time (k + u_i) / p_i, where u_i in
[0, 1) is drawn from the seed. A chunk consists of the examples of all tasks in a window of time. So
a chunk depends only on its number, without replay of earlier ones; every task has its share of
every chunk; and each example of a task occurs exactly once per epoch of the task. Where the weights
of tasks change from a chunk on, each task continues with its next example at its new rate.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.seeded_permutation import hash64, permuted_positions, text_hash64

_LARGEST_EPOCH = 1.5  # fairseq's default_virtual_size_func
_RATE_UNITS = 2**32  # rates are integers, so that float rounding cannot affect the order


def sampling_rates(
    sizes: Sequence[int], temperature: float, weights: Sequence[float] = ()
) -> list[float]:
    """Return the sampling rate of each task, p_i ~ w_i (n_i / N)^(1 / T), summing to 1.

    Args:
        sizes: number of examples of each task.
        temperature: T; 1 is proportional to size, larger is flatter.
        weights: w_i, not all 0; () is 1 for each task.

    Raises:
        UserError: if the temperature is not positive.

    Source: MITRE's and PhasedDecoder's scripts (fairseq `--sampling-method temperature`).
    """
    if temperature <= 0:
        raise UserError(f"temperature={temperature} must be positive; 1 is proportional to size")
    total = sum(sizes)
    shares = [math.pow(size / total, 1 / temperature) for size in sizes]
    if weights:
        shares = [share * weight for share, weight in zip(shares, weights, strict=True)]
    total_share = math.fsum(shares)  # the same on each Python: since 3.12 `sum` rounds otherwise
    return [share / total_share for share in shares]


@dataclasses.dataclass(frozen=True)
class Stage:
    """Weights of the tasks from a chunk on.

    Attributes:
        first_chunk: number of its first chunk.
        weights: weight of each task, at least one of them positive.
    """

    first_chunk: int
    weights: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class MixingSchedule:
    """Endless order of the examples of several tasks.

    Attributes:
        names: task names; with the seed they determine the shuffle of each task.
        sizes: number of examples of each task.
        temperature: T of the mixing rates.
        seed: seed of shuffling and mixing.
        chunk_examples: number of examples per chunk, up to rounding of the share of each task.
        stages: weights of the tasks, ascending, the first one from chunk 0; () is 1 for all tasks.
        min_examples: tasks with fewer examples have the rate of one with so many.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    temperature: float
    seed: int
    chunk_examples: int
    stages: tuple[Stage, ...] = dataclasses.field(default=(), repr=False)
    min_examples: int = dataclasses.field(default=0, repr=False)

    @property
    def epoch_examples(self) -> int:
        """Number of draws in an epoch at the first weights: fairseq's default virtual size.

        They show each example of the largest task once, so smaller tasks more than once if
        `temperature` is above 1; at most `_LARGEST_EPOCH` times the number of examples. An example
        of a task of weight w counts as w examples, and a task has at least `min_examples`.
        """
        weights = self.stages[0].weights if self.stages else (1.0,) * len(self.sizes)
        counts = [size * weight for size, weight in zip(self._counted, weights, strict=True)]
        largest = max(range(len(counts)), key=counts.__getitem__)
        rate = self.rates(0)[largest]
        # Rounded first: 8 / rate can be 23.999999999999996.
        return int(min(round(counts[largest] / rate, 3), _LARGEST_EPOCH * sum(counts)))

    def rates(self, stage: int) -> list[float]:
        """Return the share of each task in the draws of a stage, counted from 0."""
        weights = self.stages[stage].weights if self.stages else ()
        return sampling_rates(self._counted, self.temperature, weights)

    @property
    def _counted(self) -> list[int]:
        """The number of examples that each task counts as."""
        return [max(size, self.min_examples) for size in self.sizes]

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
        first_chunks = [stage.first_chunk for stage in self.stages[1:]]
        ends = [min(chunks, end) for end in (*first_chunks, chunks)]
        draws = [
            max(0, end - start) * self.chunk_examples
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]
        total_units = sum(self._units[0])
        counts = []
        for task, offset in enumerate(self._offsets):
            shown = sum(
                Fraction(units[task] * count, sum(units))
                for units, count in zip(self._units, draws, strict=True)
            )
            # The number of integers k >= 0 with k + offset / total_units < shown.
            counts.append(max(0, math.ceil(shown - Fraction(offset, total_units))))
        return counts

    @functools.cached_property
    def _offsets(self) -> list[int]:
        """The hash of each task, below the sum of its first rates' units."""
        keys = np.array([text_hash64(name) for name in self.names], np.uint64)
        return (hash64(self.seed, keys, -1) % np.uint64(sum(self._units[0]))).tolist()

    @functools.cached_property
    def _units(self) -> list[list[int]]:
        """The rate of each task in each stage, as integers."""
        return [
            [max(1, round(rate * _RATE_UNITS)) if rate else 0 for rate in self.rates(stage)]
            for stage in range(max(1, len(self.stages)))
        ]
