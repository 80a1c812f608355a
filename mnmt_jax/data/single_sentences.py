"""Batches of one source sentence per row, for translation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnmt_jax.data.converter import Converter, Example, HostBatch
from mnmt_jax.design.layouts import LANGUAGES, REGISTER, SOURCE, TRIGGER


def single_sentence_batch(
    converter: Converter, examples: Sequence[Example], rows: int
) -> HostBatch:
    """Convert the source of one example per row.

    The result is that of `Converter.static_batch`, without the task, by a third of its array
    operations: a server builds a batch for each program that it runs.

    Args:
        converter: converter to the spans of a layout.
        examples: the examples, at least one; their targets are ignored.
        rows: number of rows of the batch; those after the examples are padding.

    Raises:
        ValueError: if a source is longer than its span.
    """
    count, instruction = len(examples), converter.instruction
    pieces = np.array([len(example.source) for example in examples])
    counts = converter.source_tokens(pieces)
    languages = np.full((2, rows, 1), -1, np.int32)
    languages[0, :count, 0] = [example.source_lang for example in examples]
    languages[1, :count, 0] = [example.target_lang for example in examples]
    source_tags, tags = converter.vocabulary.tag_ids[languages[:, :count]]
    widths, batch = converter.widths(), HostBatch()
    if SOURCE in widths:
        if (longest := counts.max()) > widths[SOURCE]:
            raise ValueError(f"a source of {longest} tokens; the span has {widths[SOURCE]}")
        tokens = np.zeros((count, widths[SOURCE]), np.int32)
        first = int(instruction.source_tag is not None)
        for row, (example, end) in enumerate(zip(examples, (counts - 1).tolist(), strict=True)):
            tokens[row, first:end] = example.source
            tokens[row, end] = converter.vocabulary.eos_id
        if first:
            tokens[:, :1] = source_tags if instruction.source_tag == "source" else tags
        batch |= _span(SOURCE, tokens, counts, rows)
    if REGISTER in widths:
        tokens = np.broadcast_to(tags, (count, widths[REGISTER]))
        batch |= _span(REGISTER, tokens, converter.registers(counts), rows)
    if TRIGGER in widths:
        tokens = converter.trigger_tokens(tags)
        batch |= _span(TRIGGER, tokens, np.ones(count, np.int64), rows)
    return batch | dict(zip(LANGUAGES, languages, strict=True))


def _span(role: str, tokens: np.ndarray, counts: np.ndarray, rows: int) -> HostBatch:
    """Return the arrays of a role: the first `counts` positions of each row are valid."""
    count, width = tokens.shape
    spans = np.zeros((3, rows, width), np.int32)
    positions = np.arange(width, dtype=np.int32)
    spans[2, :count] = is_valid = positions < counts[:, None]
    np.multiply(tokens, is_valid, out=spans[0, :count])
    np.multiply(positions, is_valid, out=spans[1, :count])
    return {
        f"{role}_tokens": spans[0],
        f"{role}_positions": spans[1],
        f"{role}_segment_ids": spans[2],
    }
