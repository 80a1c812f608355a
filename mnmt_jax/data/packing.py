"""Packing of sentence pairs into rows, planned from their lengths alone."""

from __future__ import annotations

import numpy as np

from mnmt_jax.data.converter import Lengths


def first_fit(source: np.ndarray, target: np.ndarray, lengths: Lengths) -> np.ndarray:
    """Pack pairs into rows: longest first, each into the first row with room in both spans.

    Pairs of equal lengths are placed together. This gives the same rows as placing them one by one,
    but needs one pass over the open rows per distinct pair of lengths instead of per pair.

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
    row_blocks = [
        rows.place(int(source[order[start]]), int(target[order[start]]), stop - start)
        for start, stop in zip(bounds[:-1], bounds[1:], strict=True)
    ]
    result = np.empty(len(source), np.int64)
    result[order] = np.concatenate(row_blocks)
    return result


class _OpenRows:
    """Free room of all rows used so far."""

    def __init__(self, capacity: int, lengths: Lengths) -> None:
        self._lengths = lengths
        self._source = np.full(capacity, lengths.source, np.int64)
        self._target = np.full(capacity, lengths.target, np.int64)
        self._segments = np.full(capacity, lengths.max_segments, np.int64)
        self._first_open = 0  # all earlier rows are full
        self._count = 0

    def place(self, source: int, target: int, number: int) -> np.ndarray:
        """Place `number` pairs of equal lengths; return their rows in order."""
        lengths = self._lengths
        per_empty_row = min(
            lengths.source // source, lengths.target // target, lengths.max_segments
        )
        window = slice(self._first_open, self._count + -(-number // per_empty_row))
        room = np.minimum(self._source[window] // source, self._target[window] // target)
        np.minimum(room, self._segments[window], out=room)
        room_before = np.cumsum(room) - room
        placed = np.clip(number - room_before, 0, room)
        self._source[window] -= placed * source
        self._target[window] -= placed * target
        self._segments[window] -= placed
        used = np.flatnonzero(placed)
        rows = np.repeat(used + self._first_open, placed[used])
        self._count = max(self._count, int(rows[-1]) + 1)
        self._skip_full()
        return rows

    def _skip_full(self) -> None:
        window = slice(self._first_open, self._count)
        full = (
            (self._segments[window] == 0) | (self._source[window] < 1) | (self._target[window] < 1)
        )
        self._first_open = self._count if full.all() else self._first_open + int(np.argmin(full))
