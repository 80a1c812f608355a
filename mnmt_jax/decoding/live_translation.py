"""Translation of lines that arrive at any time, by continuous batching.

Lines of one shape share the slots of a batch, as in `mnmt_jax.decoding.translate_lines`. Few lines
are searched together in a smaller batch, as in a small file; on CPUs it has 1, 2, 4 and so on rows.
If more lines wait than a batch has slots, they enter the slots of finished ones. The next program
is that of the shape with most lines, so that batches are full; no shape waits for more than a few.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeGuard, TypeVar

from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding.alignment import with_alignments
from mnmt_jax.decoding.continuous_batching import (
    Admission,
    Finished,
    Slots,
    search_together,
    slots_per_admission,
)
from mnmt_jax.decoding.encoded_lines import EncodedLine, Line, encode_lines, make_batch
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.decoding.search_arrays import StopAfter
from mnmt_jax.decoding.search_limits import check_memory, memory_errors
from mnmt_jax.decoding.search_settings import initial_step_limit, length_limit, make_search
from mnmt_jax.decoding.terms import TermsShape
from mnmt_jax.decoding.translate_lines import (
    check_search,
    decode_hypotheses,
    to_translation,
    untranslated,
    without_repeats,
)
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.distributed.sharding import platform
from mnmt_jax.errors import UserError

_MAX_STEPS = 64  # of a program
_PATIENCE = 3  # programs of other shapes that the lines of a shape wait for
_MANY = 1 << 20  # lines of a shape that fill its largest batch
_WORTH = 0.75  # share of the rows of a batch that lines must fill, or fewer are searched

Key = TypeVar("Key")


def batch_sizes(inference_model: InferenceModel, decode: Decode) -> list[int]:
    """Return the numbers of rows of batches whose lines are searched together, ascending.

    On CPUs a row costs time whether it is used or not, so sizes are closer than elsewhere.
    """
    largest = inference_model.rows(decode.batch, _MANY)
    growth = 2 if platform() == "cpu" else 4
    sizes = {largest}
    size = 1
    while size < largest:
        sizes.add(min(inference_model.on_all_devices(size), largest))
        size *= growth
    return sorted(sizes)


def fitting_size(sizes: Sequence[int], lines: int) -> int:
    """Return the size of a batch for some lines, of which it may hold only a part.

    Args:
        sizes: possible sizes, ascending.
        lines: number of lines that wait, at least 1.
    """
    holds_all = next((size for size in sizes if size >= lines), sizes[-1])
    if lines >= _WORTH * holds_all or lines < sizes[0]:
        return holds_all
    return max(size for size in sizes if size <= lines)


class Shape(NamedTuple):
    """The shape of a search.

    Attributes:
        bucket: length of the sources.
        steps: maximum number of generated tokens, with eos.
        terms: sizes of the arrays of terms; None for plain search.
    """

    bucket: int
    steps: int
    terms: TermsShape | None = None


@dataclasses.dataclass(frozen=True)
class _Entry(Generic[Key]):
    """A line in the search; `key` is the caller's."""

    key: Key
    line: Line
    encoded: EncodedLine


class LiveTranslation(Generic[Key]):
    """Lines of one job in their slots.

    Args:
        job: the model and settings of the search, without a pivot and without source contrast.

    Raises:
        UserError: if the settings do not fit the model.
    """

    def __init__(self, job: TranslationJob) -> None:
        self._model, self._decode = job.pretrained.inference_model, job.decode
        check_search(self._model, self._decode)
        self._pools: dict[Shape, _Pool[Key]] = {}
        self._blank: list[_Entry[Key]] = []
        self._finished: dict[Key, _Entry[Key]] = {}  # lines that left their pool in this program
        self._refused: list[_Entry[Key]] = []

    def __len__(self) -> int:
        """Number of lines that wait or are searched."""
        waiting = len(self._blank) + len(self._finished) + len(self._refused)
        return waiting + sum(map(len, self._pools.values()))

    def add(self, lines: Sequence[tuple[Key, Line]], *, longest: bool = False) -> None:
        """Add lines.

        Args:
            lines: lines, each with a key that `run` returns.
            longest: whether they are searched at once in the shape of the second search.

        Raises:
            UserError: if the vocabulary does not have a language, or the search of a line would not
                fit the memory; then no line is added.
        """
        encoded = encode_lines(
            self._model, {n: line for n, (_, line) in enumerate(lines)}, self._decode
        )
        shape_of = self._largest if longest else self._shape
        entries = [_Entry(key, line, encoded[n]) for n, (key, line) in enumerate(lines)]
        pools = [
            self._pool(shape_of(entry.encoded)) if entry.encoded.inputs else None
            for entry in entries
        ]
        for entry, pool in zip(entries, pools, strict=True):
            if pool is None:
                self._blank.append(entry)
            else:
                pool.add(entry)

    def run(self) -> Iterator[tuple[Key, Translation | UserError]]:
        """Run one program.

        Yields:
            Each line that is complete, with its translation, or the error that concerns it alone.

        Raises:
            Exception: whatever a program raises, also the alignment; the lines cannot go on
                (`abandon`).
        """
        for entry in self._blank:
            yield entry.key, untranslated(entry.encoded)
        self._blank = []
        shape = self._next_shape()
        if shape is None:
            return
        with memory_errors(self._decode):
            finished = self._pools[shape].run()
        self._finished = {entry.key: entry for entry, _ in finished}
        complete = []
        for entry, end in finished:
            largest = self._largest(entry.encoded)
            if end.done or shape == largest:
                complete.append((entry, self._translation(entry, end)))
                continue
            try:
                self._pool(largest).add(entry)
            except UserError:  # the longer search does not fit the memory
                self._refused.append(entry)
            del self._finished[entry.key]
        for key, result in self._with_alignments(complete):
            del self._finished[key]
            yield key, result

    def take_refused(self) -> list[tuple[Key, Line]]:
        """Drop the lines that need a longer search than fits the memory, and return them."""
        entries, self._refused = self._refused, []
        return [(entry.key, entry.line) for entry in entries]

    def abandon(self) -> list[tuple[Key, Line]]:
        """Drop all lines that have no result yet, and return them with their keys."""
        searched = (entry for pool in self._pools.values() for entry in pool)
        entries = [*self._blank, *self._finished.values(), *searched]
        self._blank = []
        self._finished.clear()
        self._pools.clear()
        return [(entry.key, entry.line) for entry in entries]

    def _next_shape(self) -> Shape | None:
        """Return the shape with most lines, or one that has been passed over often enough."""
        pools = {shape: pool for shape, pool in self._pools.items() if len(pool)}
        if not pools:
            return None
        chosen = max(pools, key=lambda shape: (pools[shape].passed >= _PATIENCE, len(pools[shape])))
        for shape, pool in pools.items():
            pool.passed = 0 if shape == chosen else pool.passed + 1
        return chosen

    def _largest(self, encoded: EncodedLine) -> Shape:
        """Return the shape of a line whose first search did not suffice."""
        bucket = max(self._decode.buckets)
        return Shape(bucket, length_limit(self._decode, bucket) + 1, encoded.terms_shape)

    def _shape(self, encoded: EncodedLine) -> Shape:
        """Return the shape of the first search of a line."""
        bucket = min(bucket for bucket in self._decode.buckets if bucket >= encoded.size)
        limit = length_limit(self._decode, bucket) + 1
        return Shape(bucket, initial_step_limit(bucket, limit), encoded.terms_shape)

    def _pool(self, shape: Shape) -> _Pool[Key]:
        if shape not in self._pools:
            self._pools[shape] = _Pool(self, shape)
        return self._pools[shape]

    def _translation(self, entry: _Entry[Key], end: Finished) -> Translation | UserError:
        try:
            hypotheses = decode_hypotheses(self._model, end.hypotheses, end.row)
            distinct = without_repeats(hypotheses, self._decode)
            return to_translation(entry.encoded, distinct, entry.line)
        except UserError as error:
            return error

    def _with_alignments(
        self, results: Sequence[tuple[_Entry[Key], Translation | UserError]]
    ) -> Iterator[tuple[Key, Translation | UserError]]:
        """Yield the translations, aligned if their lines ask for it, and the errors."""
        translations = [(n, end) for n, (_, end) in enumerate(results) if _is_translation(end)]
        yield from ((entry.key, end) for entry, end in results if not _is_translation(end))
        lines = [entry.line for entry, _ in results]
        for n, translation in with_alignments(self._model, lines, translations, self._decode):
            yield results[n][0].key, translation


def _is_translation(result: Translation | UserError) -> TypeGuard[Translation]:
    return isinstance(result, Translation)


class _Pool(Generic[Key]):
    """The lines of one shape: those that wait, and those in slots.

    Attributes:
        passed: programs of other shapes since the last one of this shape.
    """

    def __init__(self, owner: LiveTranslation[Key], shape: Shape) -> None:
        self._model, self._decode, self._shape = owner._model, owner._decode, shape
        self._search = make_search(self._decode, has_terms=shape.terms is not None)
        self._waiting: collections.deque[_Entry[Key]] = collections.deque()
        self._searched: dict[int, _Entry[Key]] = {}
        self._sizes = batch_sizes(self._model, self._decode)
        self._rows = self._sizes[-1]
        self._size = slots_per_admission(self._model, self._rows, _MANY)
        self._slots = self._new_slots()
        self._next_number, self.passed = 0, 0
        check_memory(self._model, self._decode, rows=self._rows, steps=shape.steps)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._searched)

    def __iter__(self) -> Iterator[_Entry[Key]]:
        yield from self._searched.values()
        yield from self._waiting

    def add(self, entry: _Entry[Key]) -> None:
        """Let a line wait."""
        self._waiting.append(entry)

    def run(self) -> list[tuple[_Entry[Key], Finished]]:
        """Run one program, and return the lines whose search has ended."""
        count = len(self._waiting)
        if not self._searched and (count <= self._rows or self._size == self._rows):
            rows = fitting_size(self._sizes, count)
            ended = search_together(self._model, self._search, self._admission(rows, rows))
        elif self._waiting and len(self) > self._smaller_batch:
            admission = self._admission(self._size, self._slots.free)
            wanted = min(len(self._waiting), self._size)  # free slots of the next admission
            ended = self._slots.admit(admission, self._stop(wanted or self._next_end))
        else:  # few lines leave the slots, and do not pay for all of them
            ended = self._slots.advance(self._stop(self._rows if self._waiting else self._next_end))
        results = [(self._searched.pop(end.number), end) for end in ended]
        if not self._searched:
            self._slots = self._new_slots()  # frees the memory of their state
        return results

    def _new_slots(self) -> Slots:
        return Slots(self._model, self._search, self._rows)

    @property
    def _smaller_batch(self) -> int:
        """Number of lines that are too few for the slots: those of a batch of a quarter."""
        return self._model.rows(self._decode.batch, self._rows // 4)

    @property
    def _next_end(self) -> int:
        """Number of free slots when one more line has ended."""
        return self._rows - len(self._searched) + 1

    def _stop(self, free: int) -> StopAfter:
        return StopAfter(free, _MAX_STEPS)

    def _admission(self, size: int, free: int) -> Admission:
        """Take waiting lines, and return them as an admission of `size` sentences."""
        count = min(len(self._waiting), size, free)
        entries = [self._waiting.popleft() for _ in range(count)]
        numbers = range(self._next_number, self._next_number + count)
        self._next_number += count
        self._searched.update(zip(numbers, entries, strict=True))
        seeded = [(entry.line.seed, entry.encoded) for entry in entries]
        shape = {"bucket": self._shape.bucket, "steps": self._shape.steps, "size": size}
        batch = make_batch(self._model, seeded, self._decode, **shape)
        return Admission(numbers, *batch)
