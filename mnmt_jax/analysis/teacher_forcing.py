"""Sentences whose targets a model is forced along, and the batches that it reads them in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mnmt_jax.data.converter import TASK, Converter, Example, Lengths, segments_from_rows
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.decoding.weight_precision import is_rounded_params
from mnmt_jax.errors import UserError
from mnmt_jax.model.network import build_model
from mnmt_jax.vocabulary.languages import Direction
from mnmt_jax.vocabulary.normalization import is_blank

_ROWS = 16  # sentences of a batch at most


@dataclasses.dataclass(frozen=True, eq=False)
class ForcedSentences:
    """Sentences of one direction.

    Attributes:
        direction: source and target.
        sources: texts that are read.
        targets: texts that are written under teacher forcing.
        examples: the pieces of both.
    """

    direction: Direction
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    examples: tuple[Example, ...]


class ForcedBatch(NamedTuple):
    """A batch of one sentence per row.

    Attributes:
        forced: the sentences that it is of.
        first: number of the first among them.
        size: number of its sentences; further rows are padding.
        batch: from `Converter.batch`.
    """

    forced: ForcedSentences
    first: int
    size: int
    batch: dict[str, np.ndarray]


def make_forced_sentences(
    translator: Translator,
    direction: Direction,
    sources: Sequence[str],
    references: Sequence[str] | None = None,
    beam_size: int | None = None,
) -> ForcedSentences:
    """Pairs sources with the targets to force.

    Args:
        translator: the model.
        direction: source and target.
        sources: blank ones are left out.
        references: the target of each; None takes the model's own output.
        beam_size: of the search for that, as in `Translator.translate`.
    """
    source, target = direction
    vocabulary = translator.vocabulary
    texts = [(text, number) for number, text in enumerate(sources) if not is_blank(text)]
    lines = [text for text, _ in texts]
    if references is not None:
        targets = [references[number] for _, number in texts]
        pieces = vocabulary.encode_lines(targets, [target] * len(targets))
    else:
        found = translator.translate_nbest(lines, source=source, target=target, beam_size=beam_size)
        targets = [translation.text for translation in found]
        pieces = [
            [token for token in translation.hypotheses[0].tokens if token != vocabulary.eos_id]
            for translation in found
        ]
    encoded = vocabulary.encode_lines(lines, [source] * len(lines))
    languages = vocabulary.language_index(source), vocabulary.language_index(target)
    examples = tuple(
        Example(np.asarray(read, np.int32), np.asarray(written, np.int32), *languages)
        for read, written in zip(encoded, pieces, strict=True)
    )
    return ForcedSentences(direction, tuple(lines), tuple(targets), examples)


def to_float32(system: InferenceModel) -> InferenceModel:
    """Returns the system with a model that computes in float32, as its parameters are.

    Raises:
        UserError: if they are rounded.
    """
    if is_rounded_params(system.params):
        raise UserError(
            "Decode.weights: a model is analysed with its weights as they are stored; pass "
            "--gin.Decode.weights=\"'stored'\""
        )
    config = dataclasses.replace(system.model.config, dtype="float32")
    return dataclasses.replace(system, model=build_model(config, system.vocabulary.size))


def iterate_batches(
    system: InferenceModel, every: Sequence[ForcedSentences], longest: int
) -> Iterator[ForcedBatch]:
    """Lays sentences out, all batches in one shape.

    Args:
        system: the model.
        every: sentences of several directions, which share no batch.
        longest: tokens with tags that a span may have.

    Raises:
        UserError: if a pair is longer.
    """
    extra = max(system.instruction.source_extra, system.instruction.target_extra)
    width = 1
    for forced in every:
        for number, one in enumerate(forced.examples, start=1):
            size = max(len(one.source), len(one.target)) + extra
            if size > longest:
                raise UserError(
                    f"{'-'.join(forced.direction)}: sentence {number} needs {size} tokens, the "
                    f"largest of Decode.buckets is {longest}; add a larger bucket to "
                    "--gin.Decode.buckets, or leave it out"
                )
            width = max(width, size)
    converter = dataclasses.replace(system.converter(width), lengths=Lengths(width, width))
    system.model.check_lengths(converter.widths())
    rows = min(_ROWS, max((len(forced.examples) for forced in every), default=1))
    for forced in every:
        for first in range(0, len(forced.examples), rows):
            chunk = forced.examples[first : first + rows]
            yield ForcedBatch(forced, first, len(chunk), _laid_out(converter, chunk, rows))


def _laid_out(converter: Converter, chunk: Sequence[Example], rows: int) -> dict[str, Any]:
    batch = converter.batch(segments_from_rows([[one] for one in chunk]), rows)
    return {name: array for name, array in batch.items() if name != TASK}


def row_tokens(system: InferenceModel, rows: ForcedBatch, row: int) -> dict[str, list[str]]:
    """Returns the tokens of a row by role, and as `predicted` those that the target predicts."""
    found = {}
    roles = system.model.layout.embedded_roles()
    named = {role: f"{role}_tokens" for role in roles} | {"predicted": "target_labels"}
    for name, array in named.items():
        role = name if name in roles else system.model.layout.generated
        valid = rows.batch[f"{role}_segment_ids"][row] != 0
        found[name] = system.vocabulary.tokens(rows.batch[array][row][valid])
    return found
