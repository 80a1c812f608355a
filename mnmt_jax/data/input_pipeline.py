"""Input pipeline: packed, host-sharded, seekable batches from a token cache.

The order of examples is split into chunks (`mixing_schedule.py`). For each chunk every host plans
the same rows from lengths alone (`packing.py`), shuffles them by the seed, and assigns them to
batches. Each host then reads and converts only its local rows. A batch is a pure function of the
settings, the chunk number, and the batch number in the chunk. These two numbers are the complete
state; it does not depend on the number of hosts or threads.
"""

from __future__ import annotations

import dataclasses
import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mnmt_jax.config.sections import Data
from mnmt_jax.data.cache import TokenCache, decode_records
from mnmt_jax.data.converter import BatchExtras, HostBatch, Segments, make_converter
from mnmt_jax.data.mixing_schedule import MixingSchedule
from mnmt_jax.data.packing import first_fit
from mnmt_jax.design.layout import Layout
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.seeded_permutation import hash64, text_hash64

TRAIN, VALIDATION = "train", "validation"
_log = logging.getLogger(__name__)
_LAST_CHUNK = 2**40
_MAX_EMPTY_CHUNKS = 100
_MOST_PLANNED_CHUNKS = 64  # to count an epoch: a million pairs, seconds


@dataclasses.dataclass(frozen=True)
class ProcessRows:
    """The rows of the global batch that a process reads.

    The global batch is split into `num_shards` contiguous shards of equal size.

    Attributes:
        shards: numbers of the shards that the process reads, ascending.
        num_shards: number of shards.
    """

    shards: tuple[int, ...] = (0,)
    num_shards: int = 1

    def local_rows(self, rows: int) -> np.ndarray:
        """Return the local row number of each row of the global batch, or -1 if it is not local.

        Args:
            rows: rows of the global batch.

        Raises:
            UserError: if `rows` is not a multiple of `num_shards`.
        """
        if rows % self.num_shards:
            raise UserError(
                f"Data.rows={rows} must be a multiple of the {self.num_shards} parts (data x fsdp) "
                "that the mesh splits a batch into"
            )
        shard_rows = rows // self.num_shards
        local = np.full((self.num_shards, shard_rows), -1)
        count = len(self.shards) * shard_rows
        local[list(self.shards)] = np.arange(count).reshape(-1, shard_rows)
        return local.reshape(-1)


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
        batches: number of batches of the chunk.
        dropped: number of pairs dropped because they are longer than a row, int `[tasks]`.
    """

    task: np.ndarray
    index: np.ndarray
    epoch: np.ndarray
    batch: np.ndarray
    row: np.ndarray
    lengths: np.ndarray
    batches: int
    dropped: np.ndarray

    def select(self, pairs: np.ndarray) -> Plan:
        """Return the plan restricted to the pairs of an index or boolean mask."""
        names = ("task", "index", "epoch", "batch", "row", "lengths")
        return dataclasses.replace(self, **{name: getattr(self, name)[pairs] for name in names})


class Pipeline:
    """Training and validation batches of a cache for one layout.

    Attributes:
        cache: the token cache.
        converter: converts segments to batches.
        task_names: training tasks; `task` in a training batch is an index into this list.
    """

    def __init__(
        self,
        cache: TokenCache,
        layout: Layout,
        data: Data,
        *,
        extras: BatchExtras = BatchExtras(),  # noqa: B008 - frozen
        seed: int = 1,
        process_rows: ProcessRows = ALL_ROWS,
    ) -> None:
        """Check the settings against the cache.

        Args:
            cache: the token cache.
            layout: layout that determines the roles of a batch.
            data: tasks to read and packing settings.
            extras: additional contents of a batch.
            seed: seed of shuffling and mixing.
            process_rows: rows of the global batch that this process reads.

        Raises:
            UserError: if no task has training text, or the rows cannot be split evenly.
        """
        self._local_rows = process_rows.local_rows(data.rows)
        self.cache = cache
        self.task_names = tuple(data.tasks) or cache.tasks_with(TRAIN)
        if not self.task_names:
            raise UserError(f"{cache.directory}: no task has a '{TRAIN}' split to train on")
        self.converter = make_converter(cache.vocabulary, layout, data, extras)
        self._data, self._seed = data, seed
        self._rows = int((self._local_rows >= 0).sum())
        self._schedule = MixingSchedule(
            self.task_names,
            tuple(cache.split(name, TRAIN).examples for name in self.task_names),
            data.temperature,
            seed,
            data.chunk_examples,
        )

    def train(self) -> BatchIterator:
        """Return the endless training batches of this host, from the start."""
        return BatchIterator(self)

    def validation(
        self, tasks: Sequence[str] | None = None, split: str = VALIDATION
    ) -> Iterator[tuple[str, HostBatch]]:
        """Yield the batches of a held-out split, task by task, each pair once.

        Args:
            tasks: task names; None for all tasks that have the split. `task` in a batch is an index
                into this list.
            split: split to read, up to `Data.validation_examples` pairs per task.

        Yields:
            The task name and a batch with pairs of this task only. The last batch of a task is
            padded with empty rows.
        """
        names = self.cache.tasks_with(split) if tasks is None else tuple(tasks)
        converter = dataclasses.replace(self.converter, views=())
        for task_number, name in enumerate(names):
            plan = self._validation_plan(names, task_number, split)
            if plan.dropped.any():
                _log.warning(
                    "%s %s: skipped %d pairs that are longer than a row",
                    name,
                    split,
                    plan.dropped.sum(),
                )
            for segments in self._load(plan, names, split, 0):
                yield name, converter.batch(segments, self._rows)

    def plan(self, chunk: int) -> Plan:
        """Plan a training chunk; the plan is the same on every host."""
        scheduled = self._schedule.chunk(chunk)
        keys = hash64(self._seed, chunk, 1, np.arange(len(scheduled[0])))
        shuffled = np.argsort(keys, kind="stable")
        plan, rows = self._pack([column[shuffled] for column in scheduled], self.task_names, TRAIN)
        row_count = int(rows.max(initial=-1)) + 1
        shuffled_row = np.argsort(np.argsort(hash64(self._seed, chunk, 2, np.arange(row_count))))
        return _assign_batches(
            plan, shuffled_row[rows] if row_count else rows, (row_count, self._data.rows)
        )

    def chunk_batches(self, chunk: int, first_batch: int = 0) -> list[HostBatch]:
        """Return this host's batches of a training chunk, from `first_batch` on."""
        batch_segments = self._load(self.plan(chunk), self.task_names, TRAIN, first_batch)
        return [self.converter.batch(segments, self._rows) for segments in batch_segments]

    @property
    def epoch_examples(self) -> int:
        """Number of pairs drawn in an epoch, those that are longer than a row included."""
        return self._schedule.epoch_examples

    def count_batches(self, examples: int) -> int:
        """Return the number of batches of the first examples drawn from the mixture.

        The first `_MOST_PLANNED_CHUNKS` chunks are planned; more are assumed to have as many
        batches on average.
        """
        chunk_examples = self._data.chunk_examples
        full_chunks, remaining_examples = divmod(examples, chunk_examples)
        planned = min(full_chunks, _MOST_PLANNED_CHUNKS)
        batch_count = sum(self.plan(chunk).batches for chunk in range(planned))
        if full_chunks > planned:
            return -(-batch_count * examples // (planned * chunk_examples))
        return batch_count + (
            -(-self.plan(full_chunks).batches * remaining_examples // chunk_examples)
            if remaining_examples
            else 0
        )

    def too_long(self) -> dict[str, int]:
        """Return, per training task, the number of pairs that are longer than a row."""
        counts = {}
        for name in self.task_names:
            lengths = self.cache.lengths(name, TRAIN)
            counts[name] = len(lengths) - int(self._fits_row(lengths).sum())
        return counts

    def dropped_summary(self) -> str:
        """Return a one-line summary of the dropped training pairs; empty if there are none."""
        counts = {name: count for name, count in self.too_long().items() if count}
        if not counts:
            return ""
        return (
            f"{sum(counts.values())} of {sum(self._schedule.sizes)} training pairs are "
            f"{self._reason()} and left out, most of them in {max(counts, key=counts.__getitem__)}"
        )

    def check_fits(self) -> None:
        """Check from the lengths alone that at least one training pair fits a row.

        Raises:
            UserError: if all pairs are longer than a row.
        """
        if sum(self.too_long().values()) == sum(self._schedule.sizes):
            raise UserError(
                f"all {sum(self._schedule.sizes)} training pairs are {self._reason()}; raise these "
                "lengths"
            )

    def _reason(self) -> str:
        """Return the reason for which a pair is dropped, for messages."""
        return (
            f"longer than a row (Data.source_length={self._data.source_length}, "
            f"Data.target_length={self._data.target_length})"
        )

    def fingerprint(self) -> int:
        """Return a 32-bit checksum of the settings and data that determine the training batches."""
        data = self._data
        settings = (
            self.cache.vocabulary.fingerprint,
            [self.cache.split(name, TRAIN).content for name in self.task_names],
            self._schedule,
            self.converter.instruction,
            self.converter.lengths,
            data.rows,
            *filter(None, [self.converter.mask_shares]),
        )
        # Checkpoints hold the checksum, and the class was `Schedule` when the first were written.
        return zlib.crc32(repr(settings).replace("MixingSchedule(", "Schedule(").encode())

    def _validation_plan(self, names: Sequence[str], task_number: int, split: str) -> Plan:
        size = min(
            self._data.validation_examples, self.cache.split(names[task_number], split).examples
        )
        examples = np.full(size, task_number), np.arange(size), np.full(size, -1)
        plan, rows = self._pack(examples, names, split)
        return _assign_batches(plan, rows, (int(rows.max(initial=-1)) + 1, self._data.rows))

    def _pack(
        self, examples: Sequence[np.ndarray], names: Sequence[str], split: str
    ) -> tuple[Plan, np.ndarray]:
        """Look up lengths, drop pairs that are too long, and pack the remaining ones into rows."""
        task, index, epoch = examples
        lengths = np.zeros((len(task), 2), np.int64)
        for task_number in np.unique(task).tolist():
            task_rows = np.flatnonzero(task == task_number)
            lengths[task_rows] = self.cache.lengths(names[task_number], split)[index[task_rows]]
        fits = self._fits_row(lengths)
        source, target = self.converter.spans(lengths[fits])
        rows = first_fit(source, target, self.converter.lengths)
        dropped = np.bincount(task[~fits], minlength=len(names))
        zeros = np.zeros(len(rows), np.int64)
        plan = Plan(task[fits], index[fits], epoch[fits], zeros, zeros, lengths[fits], 0, dropped)
        return plan, rows

    def _fits_row(self, lengths: np.ndarray) -> np.ndarray:
        (source, target), limits = self.converter.spans(lengths), self.converter.lengths
        return (source <= limits.source) & (target <= limits.target)

    def _load(
        self, plan: Plan, names: Sequence[str], split: str, first_batch: int
    ) -> Iterator[Segments]:
        """Yield the local segments of a plan, batch by batch."""
        is_local = self._local_rows[plan.row] >= 0
        local_plan = plan.select(is_local & (plan.batch >= first_batch))
        local_plan = dataclasses.replace(local_plan, row=self._local_rows[local_plan.row])
        segments = self._segments(local_plan, names, split)
        bounds = np.searchsorted(local_plan.batch, np.arange(first_batch, plan.batches + 1))
        source_ends = np.concatenate(([0], np.cumsum(segments.source_counts)))
        target_ends = np.concatenate(([0], np.cumsum(segments.target_counts)))
        for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
            yield Segments(
                row=segments.row[start:stop],
                source=segments.source[source_ends[start] : source_ends[stop]],
                source_counts=segments.source_counts[start:stop],
                target=segments.target[target_ends[start] : target_ends[stop]],
                target_counts=segments.target_counts[start:stop],
                per_segment=segments.per_segment[:, start:stop],
                keys=segments.keys[start:stop],
            )

    def _segments(self, plan: Plan, names: Sequence[str], split: str) -> Segments:
        records: list[bytes] = [b""] * len(plan.task)
        languages = np.zeros((len(names), 2), np.int32)
        for task_number in np.unique(plan.task).tolist():
            task = self.cache.tasks[names[task_number]]
            languages[task_number] = [
                self.cache.vocabulary.language_index(code)
                for code in (task.source_lang, task.target_lang)
            ]
            task_pairs = np.flatnonzero(plan.task == task_number)
            task_records = self.cache.read(task.name, split, plan.index[task_pairs])
            for pair, record in zip(task_pairs.tolist(), task_records, strict=True):
                records[pair] = record
        source, target = decode_records(records, plan.lengths)
        return Segments(
            row=plan.row,
            source=source,
            source_counts=plan.lengths[:, 0],
            target=target,
            target_counts=plan.lengths[:, 1],
            per_segment=np.concatenate([languages[plan.task].T, plan.task[None].astype(np.int32)]),
            keys=self._keys(plan, names),
        )

    def _keys(self, plan: Plan, names: Sequence[str]) -> np.ndarray:
        """Return the mask key of each pair, uint64 `[n]`; it differs from epoch to epoch."""
        if self.converter.mask_shares is None:
            return np.zeros(len(plan.task), np.uint64)
        name_hashes = np.array([text_hash64(name) for name in names], np.uint64)
        return hash64(self._seed, name_hashes[plan.task], plan.epoch, plan.index)


class BatchIterator:
    """Endless training batches with a position that can be saved and restored.

    A background thread (Grain) prepares the next chunk while the current one is consumed.
    """

    def __init__(self, pipeline: Pipeline, *, threads: int = 1) -> None:
        """Start at the first batch.

        Args:
            pipeline: plans and loads chunks.
            threads: number of chunks to prepare in parallel; 0 disables prefetching. It does not
                affect the order of batches.
        """
        self.pipeline = pipeline
        self._threads = threads
        self._chunk, self._batch = 0, 0
        self._chunks: Iterator[list[HostBatch]] | None = None
        self._reversed_batches: list[HostBatch] = []

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> HostBatch:
        if self._chunks is None:
            self._chunks = self._open()
            self._reversed_batches = next(self._chunks)[::-1]
        for _ in range(_MAX_EMPTY_CHUNKS):
            if self._reversed_batches:
                self._batch += 1
                return self._reversed_batches.pop()
            self._reversed_batches = next(self._chunks)[::-1]
            self._chunk, self._batch = self._chunk + 1, 0
        raise UserError(
            f"{_MAX_EMPTY_CHUNKS} consecutive chunks have no pair that fits into a row; raise "
            "Data.source_length and Data.target_length"
        )

    def get_state(self) -> dict[str, int]:
        """Return the position as integers for `set_state`, in this or another process."""
        return {
            "chunk": self._chunk,
            "batch": self._batch,
            "settings": self.pipeline.fingerprint(),
        }

    def set_state(self, state: Mapping[str, int], saved: str = "its run") -> None:
        """Restore a position; the next batch is the one that followed it.

        Args:
            state: position from `get_state`.
            saved: name of the run that holds the settings of the position, for errors.

        Raises:
            UserError: if the position was saved under settings that give a different order.
        """
        if int(state["settings"]) != self.pipeline.fingerprint():
            raise UserError(
                "the data position was saved under other Data settings, tasks, texts or "
                f"vocabulary; restore the cache and the settings of {saved}, or start a new run"
            )
        self._chunk, self._batch = int(state["chunk"]), int(state["batch"])
        self._chunks, self._reversed_batches = None, []

    def _open(self) -> Iterator[list[HostBatch]]:
        import grain

        chunk, batch, pipeline = self._chunk, self._batch, self.pipeline

        def load(number: int) -> list[HostBatch]:
            return pipeline.chunk_batches(number, batch if number == chunk else 0)

        options = grain.ReadOptions(
            num_threads=self._threads, prefetch_buffer_size=max(1, self._threads)
        )
        chunks = grain.MapDataset.range(chunk, _LAST_CHUNK).map(load)
        return iter(chunks.to_iter_dataset(options))


def batches(
    cache: TokenCache,
    layout: Layout,
    data: Data,
    *,
    extras: BatchExtras = BatchExtras(),  # noqa: B008 - frozen
    seed: int = 1,
    process_rows: ProcessRows = ALL_ROWS,
) -> BatchIterator:
    """Return the endless training batches of one process; see `Pipeline` for the arguments."""
    return Pipeline(
        cache, layout, data, extras=extras, seed=seed, process_rows=process_rows
    ).train()


def padding_fraction(batch: HostBatch) -> dict[str, float]:
    """Return the fraction of padding positions of each span of a batch."""
    suffix = "_segment_ids"
    return {
        name.removesuffix(suffix): float(np.mean(ids == 0))
        for name, ids in batch.items()
        if name.endswith(suffix)
    }


def _assign_batches(plan: Plan, rows: np.ndarray, size: tuple[int, int]) -> Plan:
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
