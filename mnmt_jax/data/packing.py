"""Plans which sentence pairs share a row, from their lengths alone."""

from __future__ import annotations

import numpy as np

from mnmt_jax.data.converter import Lengths


def first_fit(source: np.ndarray, target: np.ndarray, lengths: Lengths) -> np.ndarray:
    """Packs pairs into rows: longest first, each into the first row with room in both spans.

    Pairs of equal lengths are placed together, which gives the same rows as one by one and costs
    one pass over the open rows per distinct pair of lengths instead of per pair.

    Args:
        source: tokens of each pair's source span, int `[n]`, each at most `lengths.source`.
        target: tokens of each pair's target span, int `[n]`, each at most `lengths.target`.
        lengths: sizes of a row.

    Returns:
        The row of each pair, int64 `[n]`; rows are numbered from 0 without gaps.
    """
    if not len(source):
        return np.zeros(0, np.int64)
    if lengths.max_segments == 1:
        return np.arange(len(source))
    size = np.maximum(source * lengths.target, target * lengths.source)
    order = np.lexsort((target, source, -size))
    changes = np.diff(source[order]).astype(bool) | np.diff(target[order]).astype(bool)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(order)]
    rows = _OpenRows(len(source), lengths)
    chosen = [
        rows.place(int(source[order[start]]), int(target[order[start]]), stop - start)
        for start, stop in zip(bounds[:-1], bounds[1:], strict=True)
    ]
    result = np.empty(len(source), np.int64)
    result[order] = np.concatenate(chosen)
    return result


class _OpenRows:
    """Free room of every row so far."""

    def __init__(self, capacity: int, lengths: Lengths) -> None:
        self._lengths = lengths
        self._source = np.full(capacity, lengths.source, np.int64)
        self._target = np.full(capacity, lengths.target, np.int64)
        self._segments = np.full(capacity, lengths.max_segments, np.int64)
        self._first = 0  # rows before it are full
        self._count = 0

    def place(self, source: int, target: int, number: int) -> np.ndarray:
        """Places `number` pairs of equal lengths; returns their rows in order."""
        lengths = self._lengths
        fresh = min(lengths.source // source, lengths.target // target, lengths.max_segments)
        window = slice(self._first, self._count + -(-number // fresh))
        room = np.minimum(self._source[window] // source, self._target[window] // target)
        np.minimum(room, self._segments[window], out=room)
        before = np.cumsum(room) - room
        taken = np.clip(number - before, 0, room)
        self._source[window] -= taken * source
        self._target[window] -= taken * target
        self._segments[window] -= taken
        used = np.flatnonzero(taken)
        rows = np.repeat(used + self._first, taken[used])
        self._count = max(self._count, int(rows[-1]) + 1)
        self._skip_full()
        return rows

    def _skip_full(self) -> None:
        window = slice(self._first, self._count)
        full = (
            (self._segments[window] == 0) | (self._source[window] < 1) | (self._target[window] < 1)
        )
        self._first = self._count if full.all() else self._first + int(np.argmin(full))
