"""Input pipeline: packed, host-sharded, seekable batches from a token cache.

The order of examples is split into chunks (`mixing_schedule.py`). For each chunk every host plans
the same rows from lengths alone (`packing.py`), shuffles them by the seed, and assigns them to
batches. Each host then reads and converts only its local rows. A batch is a pure function of the
settings, the chunk number, and the batch number in the chunk. These two numbers are the complete
state; it does not depend on the number of hosts, threads or processes.
"""

from __future__ import annotations

import dataclasses
import logging
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from mnmt_jax.config.sections import Data
from mnmt_jax.data.batch_iterator import BatchIterator
from mnmt_jax.data.cache import Examples, TokenCache, decode_records
from mnmt_jax.data.chunk_plan import ALL_ROWS, Plan, ProcessRows, assign_batches
from mnmt_jax.data.converter import BatchExtras, HostBatch, Segments, make_converter
from mnmt_jax.data.mixing_schedule import MixingSchedule
from mnmt_jax.data.noise import Noise
from mnmt_jax.data.noisy_segments import add_noise
from mnmt_jax.data.packing import first_fit
from mnmt_jax.data.task_weights import weigh_tasks
from mnmt_jax.design.layout import Layout
from mnmt_jax.design.layouts import SOURCE, TARGET
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.seeded_permutation import hash64, text_hash64

TRAIN, VALIDATION = "train", "validation"
_log = logging.getLogger(__name__)
_NOISE = 1  # a purpose of the keys of pairs
_MOST_PLANNED_CHUNKS = 64  # to count an epoch: a million pairs, seconds


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
            UserError: if a task of `data` is not in the cache, or none has training text.
        """
        self._local_rows = process_rows.local_rows(data.rows)
        self._process_rows = process_rows
        self.cache = cache
        names = tuple(data.tasks) or cache.tasks_with(TRAIN)
        if not names:
            raise UserError(f"{cache.directory}: no task has a '{TRAIN}' split to train on")
        try:
            sizes = {name: cache.split(name, TRAIN).examples for name in names}
        except UserError as error:
            remedy = '--gin.Data.tasks="()" trains on all training tasks'
            raise UserError(f"Data.tasks: {error}; {remedy}") from error
        tasks = {name: cache.tasks[name] for name in sizes}
        self.task_names, stages = weigh_tasks(data.weights, tasks, data.chunk_examples)
        self.converter = make_converter(cache.vocabulary, layout, data, extras)
        if data.noise and not {SOURCE, TARGET}.issubset(layout.embedded_roles()):
            raise UserError(
                f"Data.noise={data.noise!r} is for pairs, but layout '{layout.name}' is trained on "
                "single sentences; set Data.noise=()"
            )
        self._data, self._seed, self._noise = data, seed, Noise(data.noise)
        self._rows = process_rows.count(data.rows)
        self._schedule = MixingSchedule(
            self.task_names,
            tuple(sizes[name] for name in self.task_names),
            data.temperature,
            seed,
            data.chunk_examples,
            stages,
            data.min_pairs,
        )

    def train(self) -> BatchIterator:
        """Return the endless training batches of this host, from the start."""
        return BatchIterator(self, workers=self._data.workers)

    def validation(self, tasks: Sequence[str] | None = None) -> Iterator[tuple[str, HostBatch]]:
        """Yield the batches of the validation data, task by task, each pair once.

        Args:
            tasks: task names, with up to `Data.validation_examples` pairs each; None for all tasks
                with validation data. `task` in a batch is an index into this list.

        Yields:
            The task name and a batch with pairs of this task only. The last batch of a task is
            padded with empty rows.
        """
        names = self.cache.tasks_with(VALIDATION) if tasks is None else tuple(tasks)
        converter = dataclasses.replace(self.converter, views=())
        for task_number, name in enumerate(names):
            plan = self._validation_plan(names, task_number)
            if plan.dropped.any():
                _log.warning(
                    "%s %s: skipped %d pairs that are longer than a row",
                    name,
                    VALIDATION,
                    plan.dropped.sum(),
                )
            for segments in self._load(plan, names, VALIDATION, 0):
                yield name, converter.batch(segments, self._rows)

    def tasks_without_validation(self) -> tuple[str, ...]:
        """Return the tasks of which `validation` yields no pair, by the lengths alone."""
        count = self._data.validation_examples
        return tuple(
            name
            for name in self.cache.tasks_with(VALIDATION)
            if not self._fits_row(self.cache.lengths(name, VALIDATION)[:count]).any()
        )

    def plan(self, chunk: int) -> Plan:
        """Plan a training chunk; the plan is the same on every host."""
        scheduled = self._schedule.chunk(chunk)
        keys = hash64(self._seed, chunk, 1, np.arange(len(scheduled[0])))
        shuffled = np.argsort(keys, kind="stable")
        plan, rows = self._pack([column[shuffled] for column in scheduled], self.task_names, TRAIN)
        row_count = int(rows.max(initial=-1)) + 1
        shuffled_row = np.argsort(np.argsort(hash64(self._seed, chunk, 2, np.arange(row_count))))
        return assign_batches(
            plan, shuffled_row[rows] if row_count else rows, (row_count, self._data.rows)
        )

    def iterate_chunk(self, chunk: int, first_batch: int = 0) -> Iterator[HostBatch]:
        """Yield this host's batches of a training chunk, from `first_batch` on."""
        for segments in self._load(self.plan(chunk), self.task_names, TRAIN, first_batch):
            yield self.converter.batch(segments, self._rows)
        following = chunk + max(1, self._data.workers)  # the next one of this process
        self.cache.fetch_ahead(lambda: self._local_examples(following))

    def _local_examples(self, chunk: int) -> Iterator[Examples]:
        """Yield the examples of a training chunk that this host reads."""
        plan = self.plan(chunk)
        is_local = self._local_rows[plan.row] >= 0
        yield from _examples(plan.select(is_local), self.task_names, TRAIN)

    @property
    def new_weights(self) -> tuple[int, ...]:
        """Numbers of drawn pairs at which weights of tasks change, rounded up to chunks."""
        stages = self._schedule.stages[1:]
        return tuple(stage.first_chunk * self._data.chunk_examples for stage in stages)

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
            f"{self.too_long_reason} and left out, most of them in "
            f"{max(counts, key=counts.__getitem__)}"
        )

    def empty_rows_summary(self) -> str:
        """Return a one-line summary of the rows that stay empty; empty if there are none."""
        rows, shards = self._data.rows, self._process_rows.num_shards
        empty = self._process_rows.empty_rows(rows)
        return (
            f"{empty} of {rows + empty} rows of each batch stay empty, because Data.rows={rows} is "
            f"not a multiple of the {shards} parts (data x fsdp) of the mesh"
            if empty
            else ""
        )

    def check_fits(self) -> None:
        """Check from the lengths alone that at least one training pair fits a row.

        Raises:
            UserError: if all pairs are longer than a row, or all chunks of a task with document
                context, which the run would record as trained.
        """
        too_long, sizes = self.too_long(), self._schedule.sizes
        lengths = " and ".join(self._length_settings)
        if sum(too_long.values()) == sum(sizes):
            raise UserError(
                f"all {sum(sizes)} training pairs are {self.too_long_reason}; raise {lengths}"
            )
        for name, size in zip(self.task_names, sizes, strict=True):
            if self.cache.tasks[name].context and too_long[name] == size:
                raise UserError(
                    f"{name}: all {size} training pairs are {self.too_long_reason}; raise "
                    f"{lengths}, or leave the task out of Data.tasks"
                )

    @property
    def too_long_reason(self) -> str:
        """Reason for which a pair is dropped, for messages."""
        lengths = (f"{name}={value}" for name, value in self._length_settings.items())
        return f"longer than a row ({', '.join(lengths)})"

    @property
    def _length_settings(self) -> dict[str, int]:
        """The settings of a row's length, without that of a side which the layout does not have."""
        values = {SOURCE: self._data.source_length, TARGET: self._data.target_length}
        roles = self.converter.roles
        return {f"Data.{side}_length": values[side] for side in values if side in roles}

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
            *filter(
                None,
                [self.converter.mask_shares, self._schedule.stages, data.noise, data.min_pairs],
            ),
        )
        # Checkpoints hold the checksum, and the class was `Schedule` when the first were written.
        return zlib.crc32(repr(settings).replace("MixingSchedule(", "Schedule(").encode())

    def validation_fingerprint(self) -> int:
        """Return a 32-bit checksum of the validation text of all tasks."""
        names = self.cache.tasks_with(VALIDATION)
        contents = [(name, self.cache.split(name, VALIDATION).content) for name in sorted(names)]
        return zlib.crc32(repr(contents).encode())

    def _validation_plan(self, names: Sequence[str], task_number: int) -> Plan:
        available = self.cache.split(names[task_number], VALIDATION).examples
        size = min(self._data.validation_examples, available)
        examples = np.full(size, task_number), np.arange(size), np.full(size, -1)
        plan, rows = self._pack(examples, names, VALIDATION)
        return assign_batches(plan, rows, (int(rows.max(initial=-1)) + 1, self._data.rows))

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
        zeros = np.zeros(int(fits.sum()), np.int64)
        plan = Plan(
            task=task[fits],
            index=index[fits],
            epoch=epoch[fits],
            batch=zeros,
            row=zeros,
            lengths=lengths[fits],
            noise=zeros - 1,
            batches=0,
            dropped=np.bincount(task[~fits], minlength=len(names)),
        )
        if self._noise.shares:
            kinds = self._noise.kinds(self._keys(plan, names, _NOISE))
            plan = dataclasses.replace(plan, noise=np.where(plan.epoch < 0, -1, kinds))
        source, target = self.converter.spans(self._planned_lengths(plan))
        return plan, first_fit(source, target, self.converter.lengths)

    def _planned_lengths(self, plan: Plan) -> np.ndarray:
        """Return the pieces for which each pair has room in its row, int `[n, 2]`."""
        lengths, instruction = self.converter.lengths, self.converter.instruction
        most = lengths.source - instruction.source_extra, lengths.target - instruction.target_extra
        return self._noise.planned_lengths(plan.noise, plan.lengths, most)

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
        self.cache.fetch(_examples(plan, names, split))
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
        segments = Segments(
            row=plan.row,
            source=source,
            source_counts=plan.lengths[:, 0],
            target=target,
            target_counts=plan.lengths[:, 1],
            per_segment=np.concatenate([languages[plan.task].T, plan.task[None].astype(np.int32)]),
            keys=np.zeros(len(plan.task), np.uint64)
            if self.converter.mask_shares is None
            else self._keys(plan, names),
        )
        if not (plan.noise >= 0).any():
            return segments
        return add_noise(
            segments,
            self._noise,
            self.cache.vocabulary,
            kinds=plan.noise,
            keys=self._keys(plan, names, _NOISE),
            planned=self._planned_lengths(plan),
            contexts=[self.cache.tasks[name].context for name in names],
        )

    def _keys(self, plan: Plan, names: Sequence[str], *purpose: int) -> np.ndarray:
        """Return a key of each pair and purpose, uint64 `[n]`; it differs from epoch to epoch."""
        name_hashes = np.array([text_hash64(name) for name in names], np.uint64)
        return hash64(self._seed, name_hashes[plan.task], plan.epoch, plan.index, *purpose)


def _examples(plan: Plan, names: Sequence[str], split: str) -> Iterator[Examples]:
    """Yield the examples of a plan, task by task."""
    for task_number in np.unique(plan.task).tolist():
        yield names[task_number], split, plan.index[plan.task == task_number]
