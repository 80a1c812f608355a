"""From sentence pairs to the arrays a model reads: spans per role, packed role-major.

A row of a batch holds up to `max_segments` sentence pairs. All their sources stand together in the
row's source span, all their registers in its register span, and so on; segment ids tell which
positions belong together. With two pairs in a row, factor 1 and the `register` instruction:

    source    [y] x x </s> [y] x x x </s> .     segment ids  1 1 1 1 2 2 2 2 2 0
    register  [y] [y] [y] [y] [y] ... [y] . .                1 1 1 1 2 2 2 2 2 0 0
    target    [y] y y [y] y y y . .                          1 1 1 2 2 2 2 0 0
    label      y  y </s> y y y </s> . .

Positions count from 0 in every segment and span. Segment ids count from 1; 0 is padding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from mnmt_jax.config.sections import Config, Data
from mnmt_jax.data.instruction import Instruction, get_instruction
from mnmt_jax.data.token_masking import mask
from mnmt_jax.design.layout import Layout
from mnmt_jax.design.layouts import LANGUAGES, REGISTER, SOURCE, TARGET, TRIGGER
from mnmt_jax.design.mask_shares import MaskShares
from mnmt_jax.design.method import all_objectives
from mnmt_jax.design.objective import States
from mnmt_jax.design.views import View
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.vocabulary import Vocabulary

HostBatch = dict[str, np.ndarray]
TASK = "task"
PER_SEGMENT = (*LANGUAGES, TASK)


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Sizes of a row.

    Attributes:
        source: tokens of the source span, tags and eos included.
        target: tokens of the target span.
        max_segments: sentence pairs per row at most.
    """

    source: int
    target: int
    max_segments: int = 1

    def __post_init__(self) -> None:
        """Checks that a row can hold anything."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise UserError(f"a row's {field.name}={value} must be at least 1")

    def registers(self, register_factor: float) -> int:
        """Returns the tokens of the register span: room for any packing of the source span.

        Each of m segments of n tokens needs ceil(n / factor), which is less than n / factor + 1, so
        floor(source / factor) + m always suffices; ceil(source / factor) would not.
        """
        return math.floor(self.source / register_factor) + self.max_segments


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """One sentence pair as piece ids, without tags and eos.

    Attributes:
        source: piece ids, int `[n]`.
        target: piece ids, int `[n]`; empty while translating.
        source_lang: index into the vocabulary's languages.
        target_lang: index into the vocabulary's languages.
        task: index into the run's task names; -1 is none.
        key: 64 bits that its masks follow from, if the model fills masks.
    """

    source: np.ndarray
    target: np.ndarray
    source_lang: int
    target_lang: int
    task: int = -1
    key: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Segments:
    """Many sentence pairs as flat arrays, in the order in which they fill rows.

    Attributes:
        row: row of each pair, non-decreasing, int `[n]`.
        source: all source pieces, one pair after the other.
        source_counts: source pieces of each pair, int `[n]`.
        target: all target pieces, one pair after the other.
        target_counts: target pieces of each pair, int `[n]`.
        per_segment: `source_lang`, `target_lang` and `task` of each pair, int `[3, n]`.
        keys: of each pair's masks, uint64 `[n]`.
    """

    row: np.ndarray
    source: np.ndarray
    source_counts: np.ndarray
    target: np.ndarray
    target_counts: np.ndarray
    per_segment: np.ndarray
    keys: np.ndarray


def segments_from_rows(rows: Sequence[Sequence[Example]]) -> Segments:
    """Flattens rows of examples."""
    examples = [example for row in rows for example in row]
    return Segments(
        row=np.repeat(np.arange(len(rows)), [len(row) for row in rows]),
        source=_concatenate([example.source for example in examples]),
        source_counts=np.array([len(example.source) for example in examples], np.int64),
        target=_concatenate([example.target for example in examples]),
        target_counts=np.array([len(example.target) for example in examples], np.int64),
        per_segment=np.array([[e.source_lang, e.target_lang, e.task] for e in examples], np.int32)
        .reshape(-1, 3)
        .T,
        keys=np.array([example.key for example in examples], np.uint64),
    )


@dataclasses.dataclass(frozen=True)
class Converter:
    """Lays sentence pairs out as the spans of a layout.

    Attributes:
        vocabulary: gives eos and the tags.
        instruction: where tags stand.
        roles: roles of the layout (`Layout.embedded_roles()`).
        lengths: sizes of a row.
        register_factor: source tokens per register, if the layout has registers.
        views: that `batch` lays out too.
        mask_shares: of a layout that fills masks; None for one that grows.
    """

    vocabulary: Vocabulary
    instruction: Instruction
    roles: tuple[str, ...]
    lengths: Lengths
    register_factor: float = 1.0
    views: tuple[View, ...] = ()
    mask_shares: MaskShares | None = None

    def __post_init__(self) -> None:
        """Gives a language model's rows one length: there is one span."""
        if not {SOURCE, TARGET}.issubset(self.roles):
            own = self.lengths.target if TARGET in self.roles else self.lengths.source
            lengths = dataclasses.replace(self.lengths, source=own, target=own)
            object.__setattr__(self, "lengths", lengths)

    def spans(self, pieces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the lengths of the source and target spans of pairs.

        A language model reads the target of a pair, so for it both are that of its one span.

        Args:
            pieces: of source and target, int `[n, 2]`.
        """
        if SOURCE not in self.roles:
            return (self.target_tokens(pieces[:, 1]),) * 2
        if TARGET not in self.roles:
            return (self.source_tokens(pieces[:, 1]),) * 2
        return self.source_tokens(pieces[:, 0]), self.target_tokens(pieces[:, 1])

    def source_tokens(self, pieces: np.ndarray) -> np.ndarray:
        """Returns the length of the source span for numbers of pieces."""
        return np.asarray(pieces) + self.instruction.source_extra

    def target_tokens(self, pieces: np.ndarray) -> np.ndarray:
        """Returns the length of the target span for numbers of pieces."""
        return np.asarray(pieces) + self.instruction.target_extra

    def registers(self, source_tokens: np.ndarray) -> np.ndarray:
        """Returns ceil(n / register_factor), in float32 as the published code divides.

        Source: MITRE paper, section 3.2; released code, `encoder.forward_scriptable`.
        """
        tokens = np.asarray(source_tokens, np.float32)
        return np.ceil(tokens / np.float32(self.register_factor)).astype(np.int64)

    def batch(self, segments: Segments, rows: int) -> HostBatch:
        """Lays out every role: what training and scoring read.

        Args:
            segments: the pairs and their rows.
            rows: rows of the batch; rows without a pair are padding throughout.

        Returns:
            int32 arrays: `{role}_tokens`, `{role}_positions`, `{role}_segment_ids` per role of the
            layout and the labels of the one that is generated (`target_labels`), all `[rows, span
            length]`; `source_lang`, `target_lang`, `task` `[rows, max_segments]`, -1 where no
            segment is. The static roles of each view as `{view}_{role}_tokens` and so on. With
            masks, labels are -1 where nothing is asked for.

        Raises:
            ValueError: if a row does not fit its spans.
        """
        if self.mask_shares is not None:
            return self._masked_batch(segments, rows, self.mask_shares)
        batch = self.static_batch(segments, rows)
        tags = self.vocabulary.tag_ids[segments.per_segment[1]]
        counts = self.target_tokens(segments.target_counts)
        place = _place(segments.row, counts, (rows, self.lengths.target), TARGET)
        tokens = np.empty(place.total, np.int32)
        labels = np.empty(place.total, np.int32)
        is_piece = np.ones(place.total, bool)
        is_piece[place.starts] = False
        tokens[place.starts] = self._triggers(tags)
        if self.instruction.target_tag:
            is_piece[place.starts + 1] = False
            tokens[place.starts + 1] = tags
        tokens[is_piece] = segments.target
        labels[:-1] = tokens[1:]
        labels[place.ends] = self.vocabulary.eos_id
        batch |= _span(TARGET, place, tokens, (rows, self.lengths.target))
        batch["target_labels"] = place.scatter(labels, (rows, self.lengths.target))
        for view in self.views:
            batch |= self._view_batch(view, segments, rows)
        return batch

    def static_batch(self, segments: Segments, rows: int) -> HostBatch:
        """Lays out every role but the target: what translation reads before decoding.

        Args and shapes as in `batch`; the segments' targets are ignored.
        """
        tags = self.vocabulary.tag_ids[segments.per_segment[1]]
        counts = self.source_tokens(segments.source_counts)
        batch = self._source(segments, counts, rows) if SOURCE in self.roles else {}
        if REGISTER in self.roles:
            registers, shape = self.registers(counts), self._shape(REGISTER, rows)
            place = _place(segments.row, registers, shape, REGISTER)
            batch |= _span(REGISTER, place, np.repeat(tags, registers), shape)
        if TRIGGER in self.roles:
            shape = self._shape(TRIGGER, rows)
            place = _place(segments.row, np.ones_like(counts), shape, TRIGGER)
            batch |= _span(TRIGGER, place, self._triggers(tags), shape)
        shape = (rows, self.lengths.max_segments)
        place = _place(segments.row, np.ones_like(counts), shape, "segments")
        for name, values in zip(PER_SEGMENT, segments.per_segment, strict=True):
            batch[name] = place.scatter(values, shape, fill=-1)
        return batch

    def view_lengths(self, view: View, lengths: Lengths) -> Lengths:
        """Returns the sizes of a view's rows.

        A target is as a source longer by a tag at most, so the source span that always suffices is
        the target span and a token per segment.

        Args:
            view: one of `views`.
            lengths: of the rows it belongs to.
        """
        if view.side == SOURCE:
            return lengths
        instruction = self.instruction_of(view)
        longer = max(0, instruction.source_extra - instruction.target_extra)
        return dataclasses.replace(lengths, source=lengths.target + longer * lengths.max_segments)

    def instruction_of(self, view: View) -> Instruction:
        """Returns where tags stand in a view."""
        if not view.as_it_stands:
            return self.instruction
        tag = TARGET if self.instruction.target_tag else None
        return dataclasses.replace(self.instruction, source_tag=tag)

    def _view_batch(self, view: View, segments: Segments, rows: int) -> HostBatch:
        """Lays out a sentence of each pair as its source, in the same rows and segments."""
        lengths, instruction = self.view_lengths(view, self.lengths), self.instruction_of(view)
        converter = dataclasses.replace(self, lengths=lengths, instruction=instruction)
        language = segments.per_segment[PER_SEGMENT.index(f"{view.side}_lang")]
        pairs = dataclasses.replace(
            segments,
            source=getattr(segments, view.side),
            source_counts=getattr(segments, f"{view.side}_counts"),
            per_segment=np.stack([language, language, segments.per_segment[2]]),
        )
        batch = converter.static_batch(pairs, rows)
        return {view.prefix + n: array for n, array in batch.items() if n not in PER_SEGMENT}

    def _masked_batch(self, segments: Segments, rows: int, shares: MaskShares) -> HostBatch:
        """Lays out the targets as what a model reads that fills masks."""
        segments = dataclasses.replace(
            segments, source=segments.target, source_counts=segments.target_counts
        )
        batch, vocabulary = self.static_batch(segments, rows), self.vocabulary
        counts, shape = self.source_tokens(segments.source_counts), self._shape(SOURCE, rows)
        place = _place(segments.row, counts, shape, SOURCE)
        tokens = batch[f"{SOURCE}_tokens"].reshape(-1)[place.cells]
        hidden, chosen = mask(
            *(tokens, counts, segments.keys),
            shares=shares,
            symbol=vocabulary.mask_id,
            drawn=range(vocabulary.mask_id + 1, vocabulary.size),
        )
        batch[f"{SOURCE}_tokens"] = place.scatter(hidden, shape)
        batch[f"{SOURCE}_labels"] = place.scatter(np.where(chosen, tokens, -1), shape, fill=-1)
        return batch

    def _source(self, segments: Segments, counts: np.ndarray, rows: int) -> HostBatch:
        shape = self._shape(SOURCE, rows)
        place = _place(segments.row, counts, shape, SOURCE)
        tokens = np.empty(place.total, np.int32)
        is_piece = np.ones(place.total, bool)
        is_piece[place.ends] = False
        tokens[place.ends] = self.vocabulary.eos_id
        if self.instruction.source_tag:
            is_piece[place.starts] = False
            language = 0 if self.instruction.source_tag == "source" else 1
            tokens[place.starts] = self.vocabulary.tag_ids[segments.per_segment[language]]
        tokens[is_piece] = segments.source
        return _span(SOURCE, place, tokens, shape)

    def _triggers(self, tags: np.ndarray) -> np.ndarray:
        if self.instruction.trigger == "tag":
            return tags
        return np.full_like(tags, self.vocabulary.eos_id)

    def widths(self) -> dict[str, int]:
        """Returns the length of each role's span."""
        width = {
            SOURCE: self.lengths.source,
            REGISTER: self.lengths.registers(self.register_factor),
            TRIGGER: self.lengths.max_segments,
            TARGET: self.lengths.target,
        }
        return {role: width[role] for role in self.roles}

    def _shape(self, role: str, rows: int) -> tuple[int, int]:
        return rows, self.widths()[role]


def required_views(config: Config) -> tuple[View, ...]:
    """Returns the views that the objectives of a run read and that need arrays of their own."""
    reads = [read for each in all_objectives(config.methods) for read in each.reads]
    views = dict.fromkeys(r.view for r in reads if isinstance(r, States) and r.view)
    return tuple(view for view in views if not view.is_batch)


@dataclasses.dataclass(frozen=True)
class BatchExtras:
    """What a run's rows hold besides what every layout's do.

    Attributes:
        register_factor: source tokens per register.
        views: that training batches hold too.
        mask_shares: if the layout fills masks.
    """

    register_factor: float = 1.0
    views: tuple[View, ...] = ()
    mask_shares: MaskShares = MaskShares()

    @classmethod
    def of(cls, config: Config) -> BatchExtras:
        """Returns those of a run."""
        named = (method.mask_shares() for method in config.methods)
        shares = next((each for each in named if each is not None), MaskShares())
        return cls(config.model.register_factor, required_views(config), shares)


def make_converter(
    vocabulary: Vocabulary, layout: Layout, data: Data, extras: BatchExtras = BatchExtras()
) -> Converter:
    """Returns the converter of rows.

    Args:
        vocabulary: of the cache.
        layout: tells which roles a batch needs.
        data: how rows are packed.
        extras: what they hold besides.
    """
    return Converter(
        vocabulary,
        get_instruction(data.instruction),
        layout.embedded_roles(),
        Lengths(data.source_length, data.target_length, data.max_segments),
        extras.register_factor,
        extras.views,
        None if layout.grows else extras.mask_shares,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Place:
    """Where the tokens of packed segments go: flat source order to cells of `[rows, width]`."""

    total: int
    starts: np.ndarray  # of each segment in flat order
    ends: np.ndarray  # last token of each segment in flat order
    cells: np.ndarray  # cell of each token, row * width + column
    positions: np.ndarray
    segment_ids: np.ndarray

    def scatter(self, values: np.ndarray, shape: tuple[int, int], fill: int = 0) -> np.ndarray:
        filled = np.full(shape, fill, np.int32)
        filled.reshape(-1)[self.cells] = values
        return filled


def _place(row: np.ndarray, counts: np.ndarray, shape: tuple[int, int], role: str) -> _Place:
    """Puts segments side by side in their rows, in order."""
    ends = np.cumsum(counts)
    starts = ends - counts
    first = np.searchsorted(row, row)  # first segment of each segment's row
    columns = starts - starts[first] if len(row) else starts
    over = columns + counts > shape[1]
    if over.any():
        raise ValueError(
            f"row {row[over][0]} holds {(columns + counts)[over][0]} {role} positions, the span "
            f"has {shape[1]}; plan rows with the same lengths and instruction"
        )
    total = int(ends[-1]) if len(ends) else 0
    positions = np.arange(total) - np.repeat(starts, counts)
    return _Place(
        total=total,
        starts=starts,
        ends=ends - 1,
        cells=np.repeat(row * shape[1] + columns, counts) + positions,
        positions=positions,
        segment_ids=np.repeat(np.arange(len(row)) - first + 1, counts),
    )


def _span(role: str, place: _Place, tokens: np.ndarray, shape: tuple[int, int]) -> HostBatch:
    return {
        f"{role}_tokens": place.scatter(tokens, shape),
        f"{role}_positions": place.scatter(place.positions, shape),
        f"{role}_segment_ids": place.scatter(place.segment_ids, shape),
    }


def _concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
    if not arrays:
        return np.zeros(0, np.int32)
    return np.concatenate([np.asarray(array, np.int32) for array in arrays])
