"""Word alignment of sources and translations by the attention of the model.

A translation is read by the model once more after the search, under teacher forcing, and the
attention weights of a layer are its alignment (mean over heads). If the target does not see the
source, the weights of two attentions are multiplied: in a register model, those of the target to
the registers and those of the registers to the source.

Source: Garg et al. 2019, "Jointly Learning to Align and Translate", section 4 (attention of a
layer, mean over heads, after the search). Its weights are those of the state that predicts a token;
Chen et al. 2020 ("Accurate Word Alignment Induction from Neural Machine Translation") prefer those
of the state that reads it, which place half as many tags right in our models. The way through
registers is ours. Measurements: docs/serving.md.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mnmt_jax.config.sections import Decode
from mnmt_jax.data.converter import Lengths, segments_from_rows
from mnmt_jax.decoding.encoded_lines import Line, encode_lines, make_example
from mnmt_jax.decoding.inference_model import InferenceModel, model_inputs
from mnmt_jax.decoding.search_settings import length_limit
from mnmt_jax.decoding.translation import Alignment, AlignmentWeights, Translation
from mnmt_jax.design.layouts import SOURCE
from mnmt_jax.design.plan import Plan
from mnmt_jax.model.attention_weights import AttentionSpec, attention_specs, attention_weights
from mnmt_jax.model.network import Network
from mnmt_jax.vocabulary.piece_offsets import decoded_spans, encoded_spans

AttentionPath = tuple[AttentionSpec, ...]
"""Attentions from the target to the source: one, or two with a role between them."""

_ROWS = 8  # translations of a batch


@dataclasses.dataclass(frozen=True, eq=False)
class _Pair:
    """A line and its translation as pieces."""

    line: Line
    source: Sequence[int]
    target: Sequence[int]


def with_alignments(
    inference_model: InferenceModel,
    lines: Sequence[Line],
    translations: Iterable[tuple[int, Translation]],
    decode: Decode,
) -> Iterator[tuple[int, Translation]]:
    """Add the alignment to the translations of lines that ask for it.

    Args:
        inference_model: the model.
        lines: the lines.
        translations: index of each line, and its translation.
        decode: settings of the search.

    Yields:
        The same in any order; a translation waits until there is a batch of them.
    """
    waiting: list[tuple[int, Translation]] = []
    for index, translation in translations:
        if not lines[index].aligned:
            yield index, translation
            continue
        waiting.append((index, translation))
        if len(waiting) == _ROWS:
            yield from _aligned(inference_model, lines, waiting, decode)
            waiting = []
    if waiting:
        yield from _aligned(inference_model, lines, waiting, decode)


def _aligned(
    inference_model: InferenceModel,
    lines: Sequence[Line],
    translations: Sequence[tuple[int, Translation]],
    decode: Decode,
) -> Iterator[tuple[int, Translation]]:
    pairs = [(lines[index], translation) for index, translation in translations]
    alignments = align_lines(inference_model, pairs, decode)
    for (index, translation), alignment in zip(translations, alignments, strict=True):
        yield index, dataclasses.replace(translation, alignment=alignment)


def align_lines(
    inference_model: InferenceModel,
    translated: Sequence[tuple[Line, Translation]],
    decode: Decode,
    path: AttentionPath | None = None,
) -> list[Alignment | None]:
    """Align lines and their best hypotheses.

    Args:
        inference_model: the model; of an ensemble, the first member aligns.
        translated: lines with their translations.
        decode: settings of the search.
        path: attentions to use; None is `alignment_path`.

    Returns:
        The alignment of each line; None if its translation has no pieces, or text that was copied
        to it.
    """
    inference_model = inference_model.first_member
    pairs = _pairs(inference_model, translated, decode)
    alignments: list[Alignment | None] = [None] * len(translated)
    for shape, members in _by_shape(inference_model, pairs, decode).items():
        for start in range(0, len(members), _ROWS):
            chunk = {n: pairs[n] for n in members[start : start + _ROWS]}
            weights = _batch_weights(inference_model, list(chunk.values()), shape, path)
            for (number, pair), matrix in zip(chunk.items(), weights, strict=True):
                alignments[number] = _alignment(inference_model, pair, matrix)
    return alignments


def alignment_path(plan: Plan) -> AttentionPath:
    """Return the attentions of a model that place tags best.

    Measured for models of four layers (docs/serving.md): cross-attention aligns best in the last
    layer, attention of the target to itself and the source in the middle. With a role between them,
    it is the last layer of the target and the first one of the role, where the states of the source
    are nearest to their words.

    Args:
        plan: of the model.
    """
    paths = alignment_paths(plan)
    layers = sorted({path[0].layer for path in paths})
    sees_source_and_itself = paths[0][0].query in paths[0][0].keys and len(paths[0]) == 1
    layer = layers[(len(layers) - 1) // 2] if sees_source_and_itself else layers[-1]
    return next(path for path in paths if path[0].layer == layer)


def alignment_paths(plan: Plan) -> list[AttentionPath]:
    """Return all ways from the target to the source over at most one role between them.

    Args:
        plan: of the model.
    """
    target = plan.layout.generated
    specs = attention_specs(plan)
    to_source = [spec for spec in specs if SOURCE in spec.keys]
    direct: list[AttentionPath] = [(spec,) for spec in to_source if spec.query == target]
    return direct or [
        (first, second)
        for first in specs
        for second in to_source
        if first.query == target and second.query in first.keys and second.layer <= first.layer
    ]


def compose(first: Alignment, second: Alignment) -> Alignment:
    """Return the alignment of a translation through a pivot.

    Args:
        first: of the source and the text in the pivot language.
        second: of this text and the translation.
    """
    shared = overlaps(second.source, first.target)
    weights = second.weights @ shared @ first.weights
    return Alignment(first.source, second.target, _normalized(weights))


def overlaps(
    spans: Sequence[tuple[float, float]], others: Sequence[tuple[float, float]]
) -> Float[np.ndarray, "spans others"]:
    """Return the number of characters that spans share with other spans of the same text."""
    starts, ends = np.array(spans, float).reshape(-1, 2).T
    other_starts, other_ends = np.array(others, float).reshape(-1, 2).T
    shared = np.minimum.outer(ends, other_ends) - np.maximum.outer(starts, other_starts)
    return np.maximum(shared, 0.0)


def _pairs(
    inference_model: InferenceModel,
    translated: Sequence[tuple[Line, Translation]],
    decode: Decode,
) -> dict[int, _Pair]:
    """Return the pieces of lines that can be aligned, by number."""
    lines = {n: line for n, (line, _) in enumerate(translated)}
    pairs = {}
    for n, encoded in encode_lines(inference_model, lines, decode).items():
        hypotheses = translated[n][1].hypotheses
        if hypotheses and encoded.inputs and not encoded.copies:
            eos = inference_model.vocabulary.eos_id
            target = [token for token in hypotheses[0].tokens if token != eos]
            if target:
                pairs[n] = _Pair(lines[n], encoded.inputs[0].source.tolist(), target)
    return pairs


def _by_shape(
    inference_model: InferenceModel, pairs: Mapping[int, _Pair], decode: Decode
) -> dict[Lengths, list[int]]:
    """Group pairs by the smallest bucket that holds the source and the target.

    Longer targets have the largest bucket for the source, and the maximum length of a translation.
    """
    instruction = inference_model.instruction
    longest = length_limit(decode, max(decode.buckets)) + instruction.target_extra
    by_shape: dict[Lengths, list[int]] = {}
    for number, pair in pairs.items():
        source = len(pair.source) + instruction.source_extra
        target = len(pair.target) + instruction.target_extra
        fitting = [bucket for bucket in decode.buckets if bucket >= max(source, target)]
        lengths = Lengths(*[min(fitting)] * 2) if fitting else Lengths(max(decode.buckets), longest)
        by_shape.setdefault(lengths, []).append(number)
    return by_shape


def _batch_weights(
    inference_model: InferenceModel,
    pairs: Sequence[_Pair],
    lengths: Lengths,
    path: AttentionPath | None,
) -> list[AlignmentWeights]:
    """Return the normalised weights of pairs, without padding, tags and eos."""
    model, instruction = inference_model.model, inference_model.instruction
    examples = [
        make_example(inference_model, pair.line, pair.source, pair.target) for pair in pairs
    ]
    converter = dataclasses.replace(inference_model.converter(lengths.source), lengths=lengths)
    segments = segments_from_rows([[example] for example in examples])
    spans = model_inputs(converter.batch(segments, inference_model.on_all_devices(_ROWS)))
    with inference_model.placed(spans) as batch:
        weights = np.asarray(
            path_weights(
                inference_model.params, batch, model=model, path=path or alignment_path(model.plan)
            ),
            np.float64,
        )
    # The state before a token predicts it.
    first_row, first_column = instruction.target_extra - 1, instruction.source_extra - 1
    return [
        _normalized(weights[n, first_row:, first_column:][: len(pair.target), : len(pair.source)])
        for n, pair in enumerate(pairs)
    ]


@functools.partial(jax.jit, static_argnames=("model", "path"))
def path_weights(
    params: Any, batch: Mapping[str, Array], *, model: Network, path: AttentionPath
) -> Float[Array, "batch target source"]:
    """Compute the weights of the source for the target along a path, mean over heads.

    Args:
        params: parameters of the model.
        batch: from `Converter.batch`, one pair per row.
        model: the network.
        path: attentions, whose weights are multiplied.
    """
    matrices = []
    keys = (*(spec.query for spec in path[1:]), SOURCE)
    for spec, key, heads in zip(
        path, keys, attention_weights(params, batch, model=model, specs=path), strict=True
    ):
        before = spec.keys[: spec.keys.index(key)]
        start = sum(batch[f"{role}_tokens"].shape[1] for role in before)
        columns = heads[..., start : start + batch[f"{key}_tokens"].shape[1]]
        matrices.append(jnp.mean(columns, axis=1))
    return functools.reduce(jnp.matmul, matrices)


def _normalized(weights: AlignmentWeights) -> AlignmentWeights:
    """Return weights with rows that sum to 1; a row without weight is uniform."""
    sums = weights.sum(axis=1, keepdims=True)
    uniform = np.full_like(weights, 1 / max(weights.shape[1], 1))
    return np.where(sums > 0, weights / np.where(sums > 0, sums, 1.0), uniform)


def _alignment(
    inference_model: InferenceModel, pair: _Pair, weights: AlignmentWeights
) -> Alignment | None:
    vocabulary, line = inference_model.vocabulary, pair.line
    source = encoded_spans(vocabulary, line.text, line.source_lang)[: len(pair.source)]
    target = decoded_spans(vocabulary, pair.target)
    if len(source) != len(pair.source):
        return None
    return Alignment(tuple(source), tuple(target), weights)
