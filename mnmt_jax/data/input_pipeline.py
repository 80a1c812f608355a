"""Batches from a token cache: planned from lengths alone, sharded by host, seekable.

The order of examples is cut into chunks (`schedule.py`). For a chunk every host plans the same rows
(`packing.py`), shuffles them by the seed and deals them to batches; then each host reads and lays
out only its own rows. A batch is a pure function of the settings, the chunk's number and its place
in the chunk, so that pair of numbers is the whole state, whatever the number of hosts or threads.
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


@dataclasses.dataclass(frozen=True)
class ProcessRows:
    """Which rows of the global batch a process reads: some of the equal runs they are cut into.

    Attributes:
        own: numbers of the runs, ascending.
        runs: how many there are.
    """

    own: tuple[int, ...] = (0,)
    runs: int = 1

    def local_rows(self, rows: int) -> np.ndarray:
        """Returns, for each row of the global batch, its place among the own rows, or -1.

        Raises:
            UserError: if the rows cannot be cut so.
        """
        if rows % self.runs:
            raise UserError(
                f"Data.rows={rows} must be a multiple of the {self.runs} parts (data x fsdp) that "
                "the mesh splits a batch into"
            )
        length = rows // self.runs
        places = np.full((self.runs, length), -1)
        places[list(self.own)] = np.arange(len(self.own) * length).reshape(-1, length)
        return places.reshape(-1)


ALL_ROWS = ProcessRows()


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """The rows of one chunk, sorted by batch and row.

    Attributes:
        task: place of each pair's task in the list planned for, int `[n]`.
        index: the pair's index in its task, int `[n]`.
        epoch: how often all of its task came before, int `[n]`; -1 while validating.
        batch: batch of each pair in the chunk, int `[n]`.
        row: row of each pair in the global batch, int `[n]`.
        lengths: source and target pieces of each pair, int `[n, 2]`.
        batches: batches of the chunk.
        dropped: pairs left out because they are longer than a row, per task, int `[tasks]`.
    """

    task: np.ndarray
    index: np.ndarray
    epoch: np.ndarray
    batch: np.ndarray
    row: np.ndarray
    lengths: np.ndarray
    batches: int
    dropped: np.ndarray

    def select(self, kept: np.ndarray) -> Plan:
        """Returns the plan of some pairs."""
        names = ("task", "index", "epoch", "batch", "row", "lengths")
        return dataclasses.replace(self, **{name: getattr(self, name)[kept] for name in names})


class Pipeline:
    """Turns a cache into batches for one layout.

    Attributes:
        cache: the token cache.
        converter: lays rows out.
        task_names: tasks trained on; `task` in a training batch counts in this list.
    """

    def __init__(
        self,
        cache: TokenCache,
        layout: Layout,
        data: Data,
        *,
        extras: BatchExtras = BatchExtras(),  # noqa: B008 - frozen
        seed: int = 1,
        share: ProcessRows = ALL_ROWS,
    ) -> None:
        """Checks the settings against the cache.

        Args:
            cache: the token cache.
            layout: tells which roles a batch needs.
            data: what to read and how to pack it.
            extras: what batches hold besides.
            seed: of order and mixing.
            share: which rows of the global batch this process reads.
        """
        self._local_row = share.local_rows(data.rows)
        self.cache = cache
        self.task_names = tuple(data.tasks) or cache.tasks_with(TRAIN)
        if not self.task_names:
            raise UserError(f"{cache.directory}: no task has a '{TRAIN}' split to train on")
        self.converter = make_converter(cache.vocabulary, layout, data, extras)
        self._data, self._seed = data, seed
        self._rows = int((self._local_row >= 0).sum())
        self._schedule = MixingSchedule(
            self.task_names,
            tuple(cache.split(name, TRAIN).examples for name in self.task_names),
            data.temperature,
            seed,
            data.chunk_examples,
        )

    def train(self) -> BatchIterator:
        """Returns the endless training batches of this host, from the start."""
        return BatchIterator(self)

    def validation(
        self, tasks: Sequence[str] | None = None, split: str = VALIDATION
    ) -> Iterator[tuple[str, HostBatch]]:
        """Yields the batches of a held-out split, task by task, each pair once.

        Args:
            tasks: their names; None is every task that has the split. `task` in a batch counts in
                this list.
            split: split to read; of each task its first `Data.validation_examples` pairs.

        Yields:
            The task's name and a batch that holds pairs of this task alone. The last batch of a
            task is padded with empty rows.
        """
        names = self.cache.tasks_with(split) if tasks is None else tuple(tasks)
        converter = dataclasses.replace(self.converter, views=())
        for number, name in enumerate(names):
            plan = self._validation_plan(names, number, split)
            if plan.dropped.any():
                _log.warning(
                    "%s %s: %d pairs are longer than a row and left out",
                    name,
                    split,
                    plan.dropped.sum(),
                )
            for part in self._load(plan, names, split, 0):
                yield name, converter.batch(part, self._rows)

    def plan(self, chunk: int) -> Plan:
        """Plans a training chunk: the same on every host."""
        scheduled = self._schedule.chunk(chunk)
        keys = hash64(self._seed, chunk, 1, np.arange(len(scheduled[0])))
        shuffled = np.argsort(keys, kind="stable")
        plan, rows = self._pack([each[shuffled] for each in scheduled], self.task_names, TRAIN)
        count = int(rows.max(initial=-1)) + 1
        place = np.argsort(np.argsort(hash64(self._seed, chunk, 2, np.arange(count))))
        return _deal(plan, place[rows] if count else rows, (count, self._data.rows))

    def chunk_batches(self, chunk: int, first_batch: int = 0) -> list[HostBatch]:
        """Returns this host's batches of a training chunk, from `first_batch` on."""
        parts = self._load(self.plan(chunk), self.task_names, TRAIN, first_batch)
        return [self.converter.batch(part, self._rows) for part in parts]

    def epoch_batches(self) -> int:
        """Counts the batches of an epoch: of as many examples as there are.

        With `Data.temperature=1` each is in them about once.
        """
        size = self._data.chunk_examples
        whole, rest = divmod(sum(self._schedule.sizes), size)
        count = sum(self.plan(chunk).batches for chunk in range(whole))
        return count + (-(-self.plan(whole).batches * rest // size) if rest else 0)

    def too_long(self) -> dict[str, int]:
        """Counts, per training task, the pairs of one epoch that no row can hold."""
        counts = {}
        for name in self.task_names:
            lengths = self.cache.lengths(name, TRAIN)
            counts[name] = len(lengths) - int(self._fits(lengths).sum())
        return counts

    def dropped_summary(self) -> str:
        """Returns a line about the training pairs that no row can hold; empty if there is none."""
        counts = {name: count for name, count in self.too_long().items() if count}
        if not counts:
            return ""
        return (
            f"{sum(counts.values())} of {sum(self._schedule.sizes)} training pairs are "
            f"{self._longer()} and left out, most of them in {max(counts, key=counts.__getitem__)}"
        )

    def check_fits(self) -> None:
        """Check that a row can hold a training pair, from the lengths alone.

        Raises:
            UserError: if all pairs are longer than a row.
        """
        if sum(self.too_long().values()) == sum(self._schedule.sizes):
            raise UserError(
                f"all {sum(self._schedule.sizes)} training pairs are {self._longer()}; raise these "
                "to the length of your sentences in pieces"
            )

    def _longer(self) -> str:
        """Return what makes a pair too long."""
        return (
            f"longer than a row (Data.source_length={self._data.source_length}, "
            f"Data.target_length={self._data.target_length})"
        )

    def fingerprint(self) -> int:
        """Returns 32 bits of all that decides the training batches: settings and data."""
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
        return zlib.crc32(repr(settings).encode())

    def _validation_plan(self, names: Sequence[str], number: int, split: str) -> Plan:
        size = min(self._data.validation_examples, self.cache.split(names[number], split).examples)
        pairs = np.full(size, number), np.arange(size), np.full(size, -1)
        plan, rows = self._pack(pairs, names, split)
        return _deal(plan, rows, (int(rows.max(initial=-1)) + 1, self._data.rows))

    def _pack(
        self, pairs: Sequence[np.ndarray], names: Sequence[str], split: str
    ) -> tuple[Plan, np.ndarray]:
        """Looks up lengths, leaves out what is too long, and packs the rest into rows."""
        task, index, epoch = pairs
        lengths = np.zeros((len(task), 2), np.int64)
        for number in np.unique(task).tolist():
            of_task = np.flatnonzero(task == number)
            lengths[of_task] = self.cache.lengths(names[number], split)[index[of_task]]
        fits = self._fits(lengths)
        source, target = self.converter.spans(lengths[fits])
        rows = first_fit(source, target, self.converter.lengths)
        dropped = np.bincount(task[~fits], minlength=len(names))
        empty = np.zeros(len(rows), np.int64)
        plan = Plan(task[fits], index[fits], epoch[fits], empty, empty, lengths[fits], 0, dropped)
        return plan, rows

    def _fits(self, lengths: np.ndarray) -> np.ndarray:
        (source, target), most = self.converter.spans(lengths), self.converter.lengths
        return (source <= most.source) & (target <= most.target)

    def _load(
        self, plan: Plan, names: Sequence[str], split: str, first_batch: int
    ) -> Iterator[Segments]:
        """Reads this host's rows of a plan, batch by batch."""
        own = self._local_row[plan.row] >= 0
        plan_ = plan.select(own & (plan.batch >= first_batch))
        plan_ = dataclasses.replace(plan_, row=self._local_row[plan_.row])
        segments = self._segments(plan_, names, split)
        bounds = np.searchsorted(plan_.batch, np.arange(first_batch, plan.batches + 1))
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
        for number in np.unique(plan.task).tolist():
            task = self.cache.tasks[names[number]]
            languages[number] = [
                self.cache.vocabulary.language_index(code)
                for code in (task.source_lang, task.target_lang)
            ]
            of_task = np.flatnonzero(plan.task == number)
            found = self.cache.read(task.name, split, plan.index[of_task])
            for place, record in zip(of_task.tolist(), found, strict=True):
                records[place] = record
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
        """Returns what each pair's masks follow from: other ones whenever it comes again."""
        if self.converter.mask_shares is None:
            return np.zeros(len(plan.task), np.uint64)
        of_names = np.array([text_hash64(name) for name in names], np.uint64)
        return hash64(self._seed, of_names[plan.task], plan.epoch, plan.index)


class BatchIterator:
    """Endless training batches whose position can be read and set.

    While the batches of a chunk are used, a background thread (Grain) prepares the next chunk.
    """

    def __init__(self, pipeline: Pipeline, *, threads: int = 1) -> None:
        """Starts at the first batch.

        Args:
            pipeline: plans and loads chunks.
            threads: chunks in preparation at a time; 0 prepares nothing ahead. The order does not
                depend on it.
        """
        self.pipeline = pipeline
        self._threads = threads
        self._chunk, self._batch = 0, 0
        self._chunks: Iterator[list[HostBatch]] | None = None
        self._ready: list[HostBatch] = []

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> HostBatch:
        if self._chunks is None:
            self._chunks = self._open()
            self._ready = next(self._chunks)[::-1]
        for _ in range(_MAX_EMPTY_CHUNKS):
            if self._ready:
                self._batch += 1
                return self._ready.pop()
            self._ready = next(self._chunks)[::-1]
            self._chunk, self._batch = self._chunk + 1, 0
        raise UserError(
            f"{_MAX_EMPTY_CHUNKS} chunks in a row hold no pair that fits a row; raise "
            "Data.source_length and Data.target_length"
        )

    def get_state(self) -> dict[str, int]:
        """Returns the position: integers that `set_state` takes, in this or another process."""
        return {
            "chunk": self._chunk,
            "batch": self._batch,
            "settings": self.pipeline.fingerprint(),
        }

    def set_state(self, state: Mapping[str, int], saved: str = "its run") -> None:
        """Goes to a position; the next batch is the one that would have come there.

        Args:
            state: the position.
            saved: what holds the settings that it was taken under.

        Raises:
            UserError: if the position was taken under settings that give another order.
        """
        if int(state["settings"]) != self.pipeline.fingerprint():
            raise UserError(
                "the data position was saved under other Data settings, tasks, texts or "
                f"vocabulary; restore the cache and the settings of {saved}, or start a new run"
            )
        self._chunk, self._batch = int(state["chunk"]), int(state["batch"])
        self._chunks, self._ready = None, []

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
    share: ProcessRows = ALL_ROWS,
) -> BatchIterator:
    """Returns the endless training batches of one process; arguments as of `Pipeline`."""
    return Pipeline(cache, layout, data, extras=extras, seed=seed, share=share).train()


def padding_fraction(batch: HostBatch) -> dict[str, float]:
    """Returns, per span of a batch, the share of positions that hold no token."""
    suffix = "_segment_ids"
    return {
        name.removesuffix(suffix): float(np.mean(ids == 0))
        for name, ids in batch.items()
        if name.endswith(suffix)
    }


def _deal(plan: Plan, rows: np.ndarray, size: tuple[int, int]) -> Plan:
    """Deals `size[0]` rows evenly to batches of at most `size[1]`: no batch is nearly empty."""
    count, rows_per_batch = size
    batches = -(-count // rows_per_batch)
    order = np.argsort(rows, kind="stable")
    plan = plan.select(order)
    rows = rows[order]
    batch = rows * batches // max(1, count)
    first = -(-np.arange(batches) * count // max(1, batches))
    return dataclasses.replace(plan, batch=batch, row=rows - first[batch], batches=batches)
