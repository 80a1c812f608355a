"""Packing of sentence pairs into rows, planned from their lengths alone."""

from __future__ import annotations

import numpy as np

from mnmt_jax.data.converter import Lengths

_SKIP_EVERY = 64  # placements between two searches for full rows


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
    """Free room of all rows used so far, and of the empty rows after them."""

    def __init__(self, capacity: int, lengths: Lengths) -> None:
        self._source = np.full(capacity, lengths.source, np.int32)  # 0 in rows without free segment
        self._target = np.full(capacity, lengths.target, np.int32)
        self._segments = np.full(capacity, lengths.max_segments, np.int32)
        self._first_open = 0  # all earlier rows are full
        self._count = 0
        self._placements = 0

    def place(self, source: int, target: int, number: int) -> np.ndarray:
        """Place `number` pairs of equal lengths; return their rows in order."""
        window = slice(self._first_open, self._count + number)
        has_room = self._source[window] >= source
        has_room &= self._target[window] >= target
        if number == 1:
            rows = self._first_open + np.atleast_1d(has_room.argmax())
            self._take(rows, source, target, 1)
        else:
            candidates = self._first_open + np.flatnonzero(has_room)[:number]
            placed = self._fill(candidates, source, target, number)
            self._take(candidates, placed * source, placed * target, placed)
            rows = np.repeat(candidates, placed)
        self._count = max(self._count, int(rows[-1]) + 1)
        self._placements += 1
        if self._placements % _SKIP_EVERY == 0:
            self._skip_full()
        return rows

    def _fill(self, rows: np.ndarray, source: int, target: int, number: int) -> np.ndarray:
        """Return how many of `number` equal pairs each of the rows takes, the first ones first."""
        room = np.minimum(self._source[rows] // source, self._target[rows] // target)
        np.minimum(room, self._segments[rows], out=room)
        return np.clip(number - (np.cumsum(room) - room), 0, room)

    def _take(
        self,
        rows: np.ndarray,
        source: np.ndarray | int,
        target: np.ndarray | int,
        segments: np.ndarray | int,
    ) -> None:
        self._source[rows] -= source
        self._target[rows] -= target
        self._segments[rows] -= segments
        self._source[rows[self._segments[rows] == 0]] = 0

    def _skip_full(self) -> None:
        window = slice(self._first_open, self._count)
        full = (self._source[window] < 1) | (self._target[window] < 1)
        self._first_open = self._count if full.all() else self._first_open + int(np.argmin(full))
