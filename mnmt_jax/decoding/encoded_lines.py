"""Lines, and what is read of each: its own input and those that it is contrasted with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from mnmt_jax.config.sections import Decode
from mnmt_jax.data.converter import Example, HostBatch, segments_from_rows
from mnmt_jax.decoding.contrastive_decoding import (
    Contrast,
    draw_contrast_sources,
    language_contrast_weights,
)
from mnmt_jax.decoding.copy_unknown import CopiedText, extract_unknown
from mnmt_jax.decoding.generate import length_limit
from mnmt_jax.decoding.inference_model import InferenceModel, model_inputs
from mnmt_jax.decoding.input_checks import check_text
from mnmt_jax.decoding.search import Request, sentence_rngs
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.byte_fallback import drop_incomplete_character
from mnmt_jax.vocabulary.normalization import normalize_lines
from mnmt_jax.vocabulary.unknown_characters import unknown_characters, unknown_runs

_OTHERS = 1  # lines that a source is contrasted with, as published


@dataclasses.dataclass(frozen=True)
class Line:
    """A line to translate.

    Attributes:
        number: its place in the whole input, from 0; seeds sampling.
        text: the source text.
        source_lang: code of its language.
        target_lang: code of the language wanted.
        others: texts that its source is contrasted with, of the same language.
    """

    number: int
    text: str
    source_lang: str
    target_lang: str
    others: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class EncodedLine:
    """What is read of a line.

    Attributes:
        inputs: its own first, then those that it is contrasted with; sources have at most as many
            pieces as the largest bucket holds. Empty if there is nothing to read.
        weights: of their probabilities; 0 where there is nothing to contrast with.
        truncated: its own source had more pieces.
        size: of the longest source, with tags and eos.
        limit: generated tokens at most, without eos.
        unknown: characters of its source that no piece covers.
        copies: those of them that are to be put into the translation.
    """

    inputs: tuple[Example, ...] = ()
    weights: tuple[float, ...] = ()
    truncated: bool = False
    size: int = 0
    limit: int = 0
    unknown: str = ""
    copies: tuple[CopiedText, ...] = ()


def number_lines(
    lines: Iterable[str], sources: Iterator[str], targets: Iterator[str]
) -> Iterator[Line]:
    """Gives texts their numbers and languages.

    Args:
        lines: one text each.
        sources: code of the language of each, from `match_line_codes`.
        targets: code of the language wanted of each.

    Raises:
        UserError: if a line is no text, or there are more than codes.
    """
    for number, text in enumerate(lines):
        check_text(text, f"line {number + 1}")
        source, target = next(sources, None), next(targets, None)
        if source is None or target is None:
            raise UserError(f"line {number + 1} has no language; give one code or one per line")
        yield Line(number, text, source, target)


def with_contrast_sources(lines: Sequence[Line], decode: Decode) -> list[Line]:
    """Gives lines the others that their sources are contrasted with, if `decode` does that.

    Args:
        lines: all that may be drawn from; a line without another of its language, and a blank one,
            stays without.
        decode: how many to draw, and the seed.
    """
    if not decode.source_contrast:
        return list(lines)
    texts = [(line.number, line.source_lang, line.text) for line in lines]
    drawn = draw_contrast_sources(texts, _OTHERS, decode.seed)
    return [dataclasses.replace(line, others=o) for line, o in zip(lines, drawn, strict=True)]


def encode_lines(
    system: InferenceModel, lines: Mapping[int, Line], decode: Decode
) -> dict[int, EncodedLine]:
    """Returns what is read of each line.

    All have as many inputs, so that they have one shape.
    """
    texts = dict.fromkeys(
        (text, line.source_lang) for line in lines.values() for text in (line.text, *line.others)
    )
    sources = _encode_sources(system, list(texts), decode)
    extra = system.instruction.source_extra
    room = max(decode.buckets) - extra

    def reading(line: Line) -> EncodedLine:
        source, *others = (sources[text, line.source_lang] for text in (line.text, *line.others))
        unread = EncodedLine(unknown=source.unknown, copies=source.copies)
        if not source.pieces:
            return unread
        cut = [_first_pieces(system, each.pieces, room) for each in (source, *others)]
        inputs, weights = zip(*_inputs(system, line, cut, decode), strict=True)
        size = max(len(example.source) for example in inputs) + extra
        limit = length_limit(decode, min(len(source.pieces), room) + extra)
        return dataclasses.replace(
            unread,
            inputs=inputs,
            weights=weights,
            truncated=len(source.pieces) > room,
            size=size,
            limit=limit,
        )

    return {i: reading(line) for i, line in lines.items()}


def _inputs(
    system: InferenceModel, line: Line, sources: Sequence[Sequence[int]], decode: Decode
) -> list[tuple[Example, float]]:
    """Returns a line's own input and those it is contrasted with, and their weights."""
    count = _OTHERS if decode.source_contrast else 0
    own, *others = (make_example(system, line, source) for source in sources[: count + 1])
    inputs = [(own, 1.0)]
    inputs += [(other, decode.source_contrast / len(others)) for other in others]
    inputs += [(own, 0.0)] * (count - len(others))
    if decode.language_contrast:
        names = decode.contrast_languages
        for code, weight in language_contrast_weights(
            [
                name if name == "source" else system.vocabulary.vocabulary_code_of(name)
                for name in names
            ],
            decode.language_contrast,
            source_lang=line.source_lang,
            target_lang=line.target_lang,
        ):
            target_lang = system.vocabulary.language_index(code)
            inputs.append((dataclasses.replace(own, target_lang=target_lang), weight))
    return inputs


def make_batch(
    system: InferenceModel,
    lines: Sequence[tuple[int, EncodedLine]],
    decode: Decode,
    *,
    bucket: int,
    steps: int,
    size: int,
) -> tuple[HostBatch, Request]:
    """Lays out lines side by side.

    Args:
        system: the model.
        lines: numbers in the whole input, and what is read of each.
        decode: how to search.
        bucket: length of the sources.
        steps: generated tokens that there is room for, with eos.
        size: rows, the last of them empty if lines are lacking.
    """
    vocabulary, instruction = system.vocabulary, system.instruction
    inputs = len(lines[0][1].inputs)
    prefix = np.full((size, inputs, instruction.target_extra), vocabulary.eos_id, np.int32)
    weights = np.zeros((size, inputs), np.float32)
    limits, ids = np.ones(size, np.int32), np.zeros(size, np.int32)
    for row, (number, reading) in enumerate(lines):
        for place, example in enumerate(reading.inputs):
            language = vocabulary.languages[example.target_lang]
            trigger = instruction.trigger_id(vocabulary, language)
            prefix[row, place] = (trigger, *instruction.forced_ids(vocabulary, language))
        weights[row], limits[row], ids[row] = reading.weights, reading.limit, number
    contrast = Contrast(jnp.asarray(prefix[:, 1:]), jnp.asarray(weights[:, 1:]))
    request = Request(
        prefix=jnp.asarray(prefix[:, 0]),
        max_length=jnp.asarray(limits),
        active=jnp.asarray(np.arange(size) < len(lines)),
        rngs=sentence_rngs(decode.seed, jnp.asarray(ids)) if decode.method == "sample" else None,
        contrast=contrast if inputs > 1 else None,
        max_steps=steps,
        allow_unk=decode.allow_unk,
    )
    segments = segments_from_rows([[example] for _, reading in lines for example in reading.inputs])
    return model_inputs(system.converter(bucket).static_batch(segments, size * inputs)), request


class _Source(NamedTuple):
    """A text as it is read; see `EncodedLine`."""

    pieces: Sequence[int]
    unknown: str
    copies: tuple[CopiedText, ...] = ()


def _encode_sources(
    system: InferenceModel, texts: Sequence[tuple[str, str]], decode: Decode
) -> dict[tuple[str, str], _Source]:
    """Encode texts, each with its language, and find the characters that no piece covers."""
    vocabulary, sources = system.vocabulary, {}
    for (text, language), pieces in zip(texts, _encode(system, texts), strict=True):
        unknown = unknown_characters(vocabulary, text, pieces, language)
        sources[text, language] = _Source(pieces, unknown)
        if unknown and decode.copy_unknown:
            (normalized,) = normalize_lines([text], vocabulary.normalization)
            runs = unknown_runs(vocabulary, normalized, language)
            left, copies = extract_unknown(normalized, runs)
            (pieces,) = _encode(system, [(left, language)])
            sources[text, language] = _Source(pieces, unknown, copies)
    return sources


def _first_pieces(system: InferenceModel, pieces: Sequence[int], room: int) -> Sequence[int]:
    """Return the first pieces of a source, as many whole characters as there is room for."""
    if len(pieces) <= room:
        return pieces
    return drop_incomplete_character(pieces[:room], system.vocabulary.byte_values)


def _encode(system: InferenceModel, texts: Sequence[tuple[str, str]]) -> list[list[int]]:
    """Returns the pieces of texts, each with its language; none of blank ones.

    Whatever SentencePiece makes of those.
    """
    shown = [text if text.strip() else "" for text, _ in texts]
    return system.vocabulary.encode_lines(shown, [language for _, language in texts])


def make_example(
    system: InferenceModel, line: Line, source: Sequence[int] = (), target: Sequence[int] = ()
) -> Example:
    """Returns the pieces of a line with its languages."""
    index = system.vocabulary.language_index
    pieces = np.asarray(source, np.int32), np.asarray(target, np.int32)
    return Example(*pieces, index(line.source_lang), index(line.target_lang))
