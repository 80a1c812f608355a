"""Conversion of sentence pairs to model batches: one span per role, packed role-major.

A row of a batch holds up to `max_segments` sentence pairs. The source span of the row holds the
sources of all its pairs, the register span holds all their registers, and so on. Segment ids tell
which positions belong to the same pair. Example: two pairs in a row, register factor 1, and the
`register` instruction:

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
        source: tokens of the source span, including tags and eos.
        target: tokens of the target span.
        max_segments: maximum number of sentence pairs per row.
    """

    source: int
    target: int
    max_segments: int = 1

    def __post_init__(self) -> None:
        """Check that all sizes are at least 1.

        Raises:
            UserError: if one is not.
        """
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise UserError(f"a row's {field.name}={value} must be at least 1")

    def registers(self, register_factor: float) -> int:
        """Return the length of the register span: enough for any packing of the source span.

        Each of m segments of n tokens needs ceil(n / factor), which is less than n / factor + 1. So
        floor(source / factor) + m always suffices; ceil(source / factor) does not.
        """
        return math.floor(self.source / register_factor) + self.max_segments


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """One sentence pair as piece ids, without tags and eos.

    Attributes:
        source: piece ids, int `[n]`.
        target: piece ids, int `[n]`; empty for translation.
        source_lang: index into the vocabulary's languages.
        target_lang: index into the vocabulary's languages.
        task: index into the run's task names; -1 for none.
        key: 64 bits that determine the masks of the pair, for masked language models.
    """

    source: np.ndarray
    target: np.ndarray
    source_lang: int
    target_lang: int
    task: int = -1
    key: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Segments:
    """Sentence pairs as flat arrays, in the order in which they fill rows.

    Attributes:
        row: row of each pair, non-decreasing, int `[n]`.
        source: source pieces of all pairs, concatenated.
        source_counts: number of source pieces of each pair, int `[n]`.
        target: target pieces of all pairs, concatenated.
        target_counts: number of target pieces of each pair, int `[n]`.
        per_segment: `source_lang`, `target_lang` and `task` of each pair, int `[3, n]`.
        keys: mask key of each pair, uint64 `[n]`.
    """

    row: np.ndarray
    source: np.ndarray
    source_counts: np.ndarray
    target: np.ndarray
    target_counts: np.ndarray
    per_segment: np.ndarray
    keys: np.ndarray


def segments_from_rows(rows: Sequence[Sequence[Example]]) -> Segments:
    """Flatten rows of examples."""
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
    """Converter from sentence pairs to the spans of a layout.

    Attributes:
        vocabulary: vocabulary with the ids of eos and the tags.
        instruction: positions of the language tags.
        roles: roles of the layout (`Layout.embedded_roles()`).
        lengths: sizes of a row.
        register_factor: source tokens per register, if the layout has registers.
        views: additional views that `batch` includes.
        mask_shares: masking rates of a masked language model; None for an autoregressive layout.
    """

    vocabulary: Vocabulary
    instruction: Instruction
    roles: tuple[str, ...]
    lengths: Lengths
    register_factor: float = 1.0
    views: tuple[View, ...] = ()
    mask_shares: MaskShares | None = None

    def __post_init__(self) -> None:
        """Use a single row length for a language model, which has one span."""
        if not {SOURCE, TARGET}.issubset(self.roles):
            length = self.lengths.target if TARGET in self.roles else self.lengths.source
            lengths = dataclasses.replace(self.lengths, source=length, target=length)
            object.__setattr__(self, "lengths", lengths)

    def spans(self, pieces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lengths of the source and target spans of pairs.

        A language model has one span, so both results are the length of that span.

        Args:
            pieces: numbers of source and target pieces, int `[n, 2]`.
        """
        if SOURCE not in self.roles:
            return (self.target_tokens(pieces[:, 1]),) * 2
        if TARGET not in self.roles:
            return (self.source_tokens(pieces[:, 1]),) * 2
        return self.source_tokens(pieces[:, 0]), self.target_tokens(pieces[:, 1])

    def source_tokens(self, pieces: np.ndarray) -> np.ndarray:
        """Return the length of the source span for given numbers of pieces."""
        return np.asarray(pieces) + self.instruction.source_extra

    def target_tokens(self, pieces: np.ndarray) -> np.ndarray:
        """Return the length of the target span for given numbers of pieces."""
        return np.asarray(pieces) + self.instruction.target_extra

    def registers(self, source_tokens: np.ndarray) -> np.ndarray:
        """Return ceil(n / register_factor), computed in float32 as in the published code.

        Source: MITRE paper, section 3.2; released code, `encoder.forward_scriptable`.
        """
        tokens = np.asarray(source_tokens, np.float32)
        return np.ceil(tokens / np.float32(self.register_factor)).astype(np.int64)

    def batch(self, segments: Segments, rows: int) -> HostBatch:
        """Convert segments to a batch with all roles, for training and scoring.

        Args:
            segments: the pairs and their rows.
            rows: number of rows of the batch; rows without a pair are padding.

        Returns:
            int32 arrays: `{role}_tokens`, `{role}_positions`, `{role}_segment_ids` per role of the
            layout and the labels of the generated role (`target_labels`), all `[rows, span
            length]`; `source_lang`, `target_lang`, `task` `[rows, max_segments]`, -1 where there is
            no segment. The static roles of each view as `{view}_{role}_tokens` and so on. With
            masks, the labels are `source_labels`, and -1 where no token is predicted.

        Raises:
            ValueError: if a row does not fit its spans.
        """
        if self.mask_shares is not None:
            return self._masked_batch(segments, rows, self.mask_shares)
        batch = self.static_batch(segments, rows)
        tags = self.vocabulary.tag_ids[segments.per_segment[1]]
        counts = self.target_tokens(segments.target_counts)
        packed = _pack_span(segments.row, counts, (rows, self.lengths.target), TARGET)
        tokens = np.empty(packed.total, np.int32)
        labels = np.empty(packed.total, np.int32)
        is_piece = np.ones(packed.total, bool)
        is_piece[packed.starts] = False
        tokens[packed.starts] = self.trigger_tokens(tags)
        if self.instruction.target_tag:
            is_piece[packed.starts + 1] = False
            tokens[packed.starts + 1] = tags
        tokens[is_piece] = segments.target
        labels[:-1] = tokens[1:]
        labels[packed.ends] = self.vocabulary.eos_id
        batch |= _role_arrays(TARGET, packed, tokens, (rows, self.lengths.target))
        batch["target_labels"] = packed.scatter(labels, (rows, self.lengths.target))
        for view in self.views:
            batch |= self._view_batch(view, segments, rows)
        return batch

    def static_batch(self, segments: Segments, rows: int) -> HostBatch:
        """Convert segments to a batch without the target role, for translation.

        Args and shapes as in `batch`; the targets of the segments are ignored.
        """
        tags = self.vocabulary.tag_ids[segments.per_segment[1]]
        counts = self.source_tokens(segments.source_counts)
        batch = self._source_span(segments, counts, rows) if SOURCE in self.roles else {}
        if REGISTER in self.roles:
            registers, shape = self.registers(counts), self._shape(REGISTER, rows)
            packed = _pack_span(segments.row, registers, shape, REGISTER)
            batch |= _role_arrays(REGISTER, packed, np.repeat(tags, registers), shape)
        if TRIGGER in self.roles:
            shape = self._shape(TRIGGER, rows)
            packed = _pack_span(segments.row, np.ones_like(counts), shape, TRIGGER)
            batch |= _role_arrays(TRIGGER, packed, self.trigger_tokens(tags), shape)
        shape = (rows, self.lengths.max_segments)
        packed = _pack_span(segments.row, np.ones_like(counts), shape, "segments")
        for name, values in zip(PER_SEGMENT, segments.per_segment, strict=True):
            batch[name] = packed.scatter(values, shape, fill=-1)
        return batch

    def view_lengths(self, view: View, lengths: Lengths) -> Lengths:
        """Return the row sizes of a view.

        A target sentence used as a source may need one more token for the tag. So the length of the
        target span plus one token per segment always suffices.

        Args:
            view: one of `views`.
            lengths: sizes of the rows that the view belongs to.
        """
        if view.side == SOURCE:
            return lengths
        instruction = self.instruction_of(view)
        extra_per_segment = max(0, instruction.source_extra - instruction.target_extra)
        return dataclasses.replace(
            lengths, source=lengths.target + extra_per_segment * lengths.max_segments
        )

    def instruction_of(self, view: View) -> Instruction:
        """Return the instruction of a view."""
        if not view.keep_tag:
            return self.instruction
        tag = TARGET if self.instruction.target_tag else None
        return dataclasses.replace(self.instruction, source_tag=tag)

    def _view_batch(self, view: View, segments: Segments, rows: int) -> HostBatch:
        """Convert one sentence of each pair as its source, in the same rows and segments."""
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

    def _masked_batch(self, segments: Segments, rows: int, mask_shares: MaskShares) -> HostBatch:
        """Convert the targets to masked input and labels; language tags stay."""
        segments = dataclasses.replace(
            segments, source=segments.target, source_counts=segments.target_counts
        )
        batch, vocabulary = self.static_batch(segments, rows), self.vocabulary
        counts, shape = self.source_tokens(segments.source_counts), self._shape(SOURCE, rows)
        packed = _pack_span(segments.row, counts, shape, SOURCE)
        tokens = batch[f"{SOURCE}_tokens"].reshape(-1)[packed.cells]
        has_tag = bool(self.instruction.source_tag)
        is_tag, is_label = np.zeros((2, packed.total), bool)
        is_tag[packed.starts] = has_tag
        masked = tokens.copy()
        masked[~is_tag], is_label[~is_tag] = mask(
            tokens[~is_tag],
            counts - has_tag,
            segments.keys,
            mask_shares=mask_shares,
            symbol=vocabulary.mask_id,
            random_ids=range(vocabulary.mask_id + 1, vocabulary.size),
        )
        batch[f"{SOURCE}_tokens"] = packed.scatter(masked, shape)
        batch[f"{SOURCE}_labels"] = packed.scatter(np.where(is_label, tokens, -1), shape, fill=-1)
        return batch

    def _source_span(self, segments: Segments, counts: np.ndarray, rows: int) -> HostBatch:
        shape = self._shape(SOURCE, rows)
        packed = _pack_span(segments.row, counts, shape, SOURCE)
        tokens = np.empty(packed.total, np.int32)
        is_piece = np.ones(packed.total, bool)
        is_piece[packed.ends] = False
        tokens[packed.ends] = self.vocabulary.eos_id
        if self.instruction.source_tag:
            is_piece[packed.starts] = False
            language = 0 if self.instruction.source_tag == "source" else 1
            tokens[packed.starts] = self.vocabulary.tag_ids[segments.per_segment[language]]
        tokens[is_piece] = segments.source
        return _role_arrays(SOURCE, packed, tokens, shape)

    def trigger_tokens(self, tags: np.ndarray) -> np.ndarray:
        """Return the first target input of sentences, by the tags of their target languages."""
        if self.instruction.trigger == "tag":
            return tags
        return np.full_like(tags, self.vocabulary.eos_id)

    def widths(self) -> dict[str, int]:
        """Return the length of the span of each role."""
        widths = {
            SOURCE: self.lengths.source,
            REGISTER: self.lengths.registers(self.register_factor),
            TRIGGER: self.lengths.max_segments,
            TARGET: self.lengths.target,
        }
        return {role: widths[role] for role in self.roles}

    def _shape(self, role: str, rows: int) -> tuple[int, int]:
        return rows, self.widths()[role]


def required_views(config: Config) -> tuple[View, ...]:
    """Return the views that the objectives of a run read and that need additional arrays."""
    inputs = [
        model_input
        for objective in all_objectives(config.methods)
        for model_input in objective.inputs
    ]
    views = dict.fromkeys(
        model_input.view
        for model_input in inputs
        if isinstance(model_input, States) and model_input.view
    )
    return tuple(view for view in views if not view.is_batch)


@dataclasses.dataclass(frozen=True)
class BatchExtras:
    """Contents of a run's batches beyond those of every layout.

    Attributes:
        register_factor: source tokens per register.
        views: additional views of training batches.
        mask_shares: masking rates, for masked language models.
    """

    register_factor: float = 1.0
    views: tuple[View, ...] = ()
    mask_shares: MaskShares = MaskShares()

    @classmethod
    def of(cls, config: Config) -> BatchExtras:
        """Return the extras that a run's configuration requires."""
        candidates = (method.mask_shares() for method in config.methods)
        shares = next(
            (mask_shares for mask_shares in candidates if mask_shares is not None), MaskShares()
        )
        return cls(config.model.register_factor, required_views(config), shares)


def make_converter(
    vocabulary: Vocabulary, layout: Layout, data: Data, extras: BatchExtras = BatchExtras()
) -> Converter:
    """Return the converter for a layout.

    Args:
        vocabulary: vocabulary of the cache.
        layout: layout that determines the roles of a batch.
        data: packing settings.
        extras: additional contents of a batch.
    """
    return Converter(
        vocabulary,
        get_instruction(data.instruction),
        layout.embedded_roles(),
        Lengths(data.source_length, data.target_length, data.max_segments),
        extras.register_factor,
        extras.views,
        None if layout.is_autoregressive else extras.mask_shares,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _PackedSpan:
    """Positions of packed segments: a map from flat token order to cells of `[rows, width]`.

    Attributes:
        total: number of tokens.
        starts: flat index of the first token of each segment.
        ends: flat index of the last token of each segment.
        cells: cell of each token, row * width + column.
        positions: position of each token in its segment.
        segment_ids: segment id of each token, from 1.
    """

    total: int
    starts: np.ndarray
    ends: np.ndarray
    cells: np.ndarray
    positions: np.ndarray
    segment_ids: np.ndarray

    def scatter(self, values: np.ndarray, shape: tuple[int, int], fill: int = 0) -> np.ndarray:
        array = np.full(shape, fill, np.int32)
        array.reshape(-1)[self.cells] = values
        return array


def _pack_span(
    row: np.ndarray, counts: np.ndarray, shape: tuple[int, int], role: str
) -> _PackedSpan:
    """Place segments side by side in their rows, in order.

    Raises:
        ValueError: if a row is longer than the span.
    """
    ends = np.cumsum(counts)
    starts = ends - counts
    first_segment = np.searchsorted(row, row)  # of each segment's row
    columns = starts - starts[first_segment] if len(row) else starts
    too_long = columns + counts > shape[1]
    if too_long.any():
        raise ValueError(
            f"row {row[too_long][0]} holds {(columns + counts)[too_long][0]} {role} positions, the "
            f"span has {shape[1]}; plan rows with the same lengths and instruction"
        )
    total = int(ends[-1]) if len(ends) else 0
    positions = np.arange(total) - np.repeat(starts, counts)
    return _PackedSpan(
        total=total,
        starts=starts,
        ends=ends - 1,
        cells=np.repeat(row * shape[1] + columns, counts) + positions,
        positions=positions,
        segment_ids=np.repeat(np.arange(len(row)) - first_segment + 1, counts),
    )


def _role_arrays(
    role: str, packed: _PackedSpan, tokens: np.ndarray, shape: tuple[int, int]
) -> HostBatch:
    return {
        f"{role}_tokens": packed.scatter(tokens, shape),
        f"{role}_positions": packed.scatter(packed.positions, shape),
        f"{role}_segment_ids": packed.scatter(packed.segment_ids, shape),
    }


def _concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
    if not arrays:
        return np.zeros(0, np.int32)
    return np.concatenate([np.asarray(array, np.int32) for array in arrays])
