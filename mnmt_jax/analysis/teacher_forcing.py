"""Teacher-forced sentences and their batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mnmt_jax.data.converter import TASK, Converter, Example, Lengths, segments_from_rows
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.decoding.weight_precision import has_quantized_params
from mnmt_jax.errors import UserError
from mnmt_jax.model.network import build_model
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.normalization import is_blank

_ROWS = 16  # maximum number of sentences in a batch


@dataclasses.dataclass(frozen=True, eq=False)
class ForcedSentences:
    """Sentences of one direction.

    Attributes:
        direction: source and target language.
        sources: source texts.
        targets: target texts for teacher forcing.
        examples: token ids of both.
    """

    direction: Direction
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    examples: tuple[Example, ...]


class ForcedBatch(NamedTuple):
    """A batch of one sentence per row.

    Attributes:
        forced: the sentences that the batch is taken from.
        first: number of the first row's sentence among them.
        size: number of sentences; further rows are padding.
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
    """Pair sources with the targets for teacher forcing.

    Args:
        translator: the model.
        direction: source and target language.
        sources: source texts; blank ones are skipped.
        references: target of each source; None uses the model's own output.
        beam_size: beam size of the model's own output, as in `Translator.translate`.
    """
    source, target = direction
    vocabulary = translator.vocabulary
    numbered_texts = [(text, number) for number, text in enumerate(sources) if not is_blank(text)]
    lines = [text for text, _ in numbered_texts]
    if references is not None:
        targets = [references[number] for _, number in numbered_texts]
        pieces = vocabulary.encode_lines(targets, [target] * len(targets))
    else:
        translations = translator.translate_nbest(
            lines, source=source, target=target, beam_size=beam_size
        )
        targets = [translation.text for translation in translations]
        pieces = [
            [token for token in translation.hypotheses[0].tokens if token != vocabulary.eos_id]
            for translation in translations
        ]
    encoded = vocabulary.encode_lines(lines, [source] * len(lines))
    languages = vocabulary.language_index(source), vocabulary.language_index(target)
    examples = tuple(
        Example(np.asarray(source_ids, np.int32), np.asarray(target_ids, np.int32), *languages)
        for source_ids, target_ids in zip(encoded, pieces, strict=True)
    )
    return ForcedSentences(direction, tuple(lines), tuple(targets), examples)


def to_float32(inference_model: InferenceModel) -> InferenceModel:
    """Return the inference model with computation in float32, the dtype of its parameters.

    Raises:
        UserError: if the parameters are rounded.
    """
    if has_quantized_params(inference_model.params):
        raise UserError(
            "Decode.weights: a model is analysed with its weights as they are stored; pass "
            "--gin.Decode.weights=\"'stored'\""
        )
    config = dataclasses.replace(inference_model.model.config, dtype="float32")
    return dataclasses.replace(
        inference_model, model=build_model(config, inference_model.vocabulary.size)
    )


def iterate_batches(
    inference_model: InferenceModel, sentence_sets: Sequence[ForcedSentences], max_length: int
) -> Iterator[ForcedBatch]:
    """Yield batches of sentences, all in one shape.

    Args:
        inference_model: the model.
        sentence_sets: sentences of several directions; a batch never mixes directions.
        max_length: maximum number of tokens of a span, tags included.

    Raises:
        UserError: if a pair is longer.
    """
    extra = max(inference_model.instruction.source_extra, inference_model.instruction.target_extra)
    width = 1
    for forced in sentence_sets:
        for number, example in enumerate(forced.examples, start=1):
            size = max(len(example.source), len(example.target)) + extra
            if size > max_length:
                raise UserError(
                    f"{'-'.join(forced.direction)}: sentence {number} needs {size} tokens, the "
                    f"largest of Decode.buckets is {max_length}; add a larger bucket to "
                    "--gin.Decode.buckets, or leave it out"
                )
            width = max(width, size)
    converter = dataclasses.replace(inference_model.converter(width), lengths=Lengths(width, width))
    inference_model.model.check_lengths(converter.widths())
    rows = min(_ROWS, max((len(forced.examples) for forced in sentence_sets), default=1))
    for forced in sentence_sets:
        for start in range(0, len(forced.examples), rows):
            chunk = forced.examples[start : start + rows]
            yield ForcedBatch(forced, start, len(chunk), _pad_batch(converter, chunk, rows))


def _pad_batch(converter: Converter, chunk: Sequence[Example], rows: int) -> dict[str, Any]:
    batch = converter.batch(segments_from_rows([[example] for example in chunk]), rows)
    return {name: array for name, array in batch.items() if name != TASK}


def row_tokens(
    inference_model: InferenceModel, rows: ForcedBatch, row: int
) -> dict[str, list[str]]:
    """Return the tokens of a row by role, and the tokens to predict as `predicted`."""
    tokens = {}
    roles = inference_model.model.layout.embedded_roles()
    array_names = {role: f"{role}_tokens" for role in roles} | {"predicted": "target_labels"}
    for name, array in array_names.items():
        role = name if name in roles else inference_model.model.layout.generated
        valid = rows.batch[f"{role}_segment_ids"][row] != 0
        tokens[name] = inference_model.vocabulary.tokens(rows.batch[array][row][valid])
    return tokens
