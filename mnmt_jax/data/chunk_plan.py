"""Plans of chunks: the pairs of each row and batch, and the rows of each process."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class ProcessRows:
    """The rows of the global batch that a process reads.

    The global batch is split into `num_shards` contiguous shards of equal size. If it has too few
    rows for that, the last ones stay empty.

    Attributes:
        shards: numbers of the shards that the process reads, ascending.
        num_shards: number of shards.
    """

    shards: tuple[int, ...] = (0,)
    num_shards: int = 1

    def local_rows(self, rows: int) -> np.ndarray:
        """Return the local row number of each row of the global batch, or -1 if it is not local.

        Args:
            rows: rows of the global batch, without the empty ones.
        """
        shard_rows = self._shard_rows(rows)
        local = np.full((self.num_shards, shard_rows), -1)
        local[list(self.shards)] = np.arange(self.count(rows)).reshape(-1, shard_rows)
        return local.reshape(-1)[:rows]

    def count(self, rows: int) -> int:
        """Return how many rows of a global batch are local, including empty ones."""
        return len(self.shards) * self._shard_rows(rows)

    def empty_rows(self, rows: int) -> int:
        """Return how many rows of a global batch stay empty."""
        return self.num_shards * self._shard_rows(rows) - rows

    def _shard_rows(self, rows: int) -> int:
        return -(-rows // self.num_shards)


ALL_ROWS = ProcessRows()


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """The packed pairs of one chunk, sorted by batch and row.

    Attributes:
        task: index of each pair's task in the list of task names, int `[n]`.
        index: index of each pair in its task, int `[n]`.
        epoch: number of completed passes over the pair's task, int `[n]`; -1 for validation.
        batch: batch number of each pair in the chunk, int `[n]`.
        row: row of each pair in the global batch, int `[n]`.
        lengths: source and target pieces of each pair, int `[n, 2]`.
        noise: kind of noise of each pair, -1 for none, int `[n]`.
        batches: number of batches of the chunk.
        dropped: number of pairs dropped because they are longer than a row, int `[tasks]`.
    """

    task: np.ndarray
    index: np.ndarray
    epoch: np.ndarray
    batch: np.ndarray
    row: np.ndarray
    lengths: np.ndarray
    noise: np.ndarray
    batches: int
    dropped: np.ndarray

    def select(self, pairs: np.ndarray) -> Plan:
        """Return the plan restricted to the pairs of an index or boolean mask."""
        names = ("task", "index", "epoch", "batch", "row", "lengths", "noise")
        return dataclasses.replace(self, **{name: getattr(self, name)[pairs] for name in names})


def assign_batches(plan: Plan, rows: np.ndarray, size: tuple[int, int]) -> Plan:
    """Distribute `size[0]` rows evenly over batches of at most `size[1]` rows.

    An even distribution avoids a nearly empty last batch.
    """
    row_count, rows_per_batch = size
    batch_count = -(-row_count // rows_per_batch)
    order = np.argsort(rows, kind="stable")
    plan = plan.select(order)
    rows = rows[order]
    batch = rows * batch_count // max(1, row_count)
    first_rows = -(-np.arange(batch_count) * row_count // max(1, batch_count))
    return dataclasses.replace(plan, batch=batch, row=rows - first_rows[batch], batches=batch_count)
