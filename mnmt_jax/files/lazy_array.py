"""Lazily read arrays, for converting models larger than memory.

Checkpoints of other toolkits are opened as lazy arrays: shapes are known at once, values are read
one array at a time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class LazyArray:
    """An array that is read on demand.

    Attributes:
        shape: shape of the array.
        dtype: type of the array.
        read: reads and returns the array; not cached.
        storage: key that is equal for arrays known to share memory; None if unknown.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]
    storage: Hashable = None

    @classmethod
    def of(cls, array: np.ndarray) -> LazyArray:
        """Wrap an array in memory."""
        return cls(array.shape, array.dtype, lambda: array)

    @classmethod
    def stacked(cls, parts: Sequence[LazyArray]) -> LazyArray:
        """Stack arrays of the same shape and type along a new first axis."""
        template = parts[0]
        shape = (len(parts), *template.shape)
        return cls(shape, template.dtype, lambda: np.stack([array.read() for array in parts]))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize

    def then(
        self, function: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], dtype: np.dtype
    ) -> LazyArray:
        """Return a lazy array that applies a function after reading.

        Args:
            function: function applied to the array.
            shape: shape of the result.
            dtype: type of the result.
        """
        return LazyArray(shape, dtype, lambda: function(self.read()), self.storage)
