"""Encoded lines: pieces of each source, and of the inputs it is contrasted with."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mnmt_jax.config.sections import Decode
from mnmt_jax.data.converter import Example, HostBatch
from mnmt_jax.data.document_context import Context
from mnmt_jax.data.instruction import join_auxiliary
from mnmt_jax.data.single_sentences import single_sentence_batch
from mnmt_jax.decoding.contrastive_decoding import (
    Contrast,
    draw_contrast_sources,
    language_contrast_weights,
)
from mnmt_jax.decoding.copy_unknown import Copies, extract_copies
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.decoding.input_checks import check_text
from mnmt_jax.decoding.search import Request, sentence_rngs
from mnmt_jax.decoding.search_settings import length_limit
from mnmt_jax.decoding.terms import (
    NO_TERMS,
    EncodedTerms,
    LineTerms,
    TermsShape,
    encode_terms,
    search_terms,
)
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.byte_fallback import drop_incomplete_character
from mnmt_jax.vocabulary.normalization import is_blank, normalize_lines
from mnmt_jax.vocabulary.unknown_characters import unknown_characters

_CONTRAST_SOURCES = 1  # lines that a source is contrasted with, as published


@dataclasses.dataclass(frozen=True)
class Line:
    """A line to translate.

    Attributes:
        number: index in the full input, from 0.
        text: the source text.
        source_lang: code of the source language.
        target_lang: code of the target language.
        contrast_sources: texts of the same language that the source is contrasted with.
        aligned: whether its translation is aligned to it (`mnmt_jax.decoding.alignment`).
        terms: texts that the translation must or must not have.
        auxiliary: translation of the text that the source has too, and its language; None for a
            plain source (`mnmt_jax.data.parallel_prompts`).
        sampling_index: seeds sampling; None is the number.
        context: how the sentences of the text are joined, if it is a chunk of several.
    """

    number: int
    text: str
    source_lang: str
    target_lang: str
    contrast_sources: tuple[str, ...] = ()
    aligned: bool = False
    terms: LineTerms = NO_TERMS
    auxiliary: tuple[str, str] | None = None
    sampling_index: int | None = None
    context: Context | None = None

    @property
    def seed(self) -> int:
        """What seeds sampling of the line, beside `Decode.seed`."""
        return self.number if self.sampling_index is None else self.sampling_index


@dataclasses.dataclass(frozen=True)
class EncodedLine:
    """The inputs of the model for a line.

    Attributes:
        inputs: the line's own input, then those it is contrasted with; sources have at most as many
            pieces as the largest bucket holds. Empty for a line without pieces.
        weights: weights of the inputs' probabilities; 0 where there is no contrast.
        truncated: whether the line's source had more pieces.
        size: length of the longest source, with tags and eos.
        limit: maximum number of generated tokens, without eos.
        unknown: characters of the source that no piece covers.
        copies: those of them that are copied to the translation.
        terms: token sequences of the line's terms; None for plain search.
    """

    inputs: tuple[Example, ...] = ()
    weights: tuple[float, ...] = ()
    truncated: bool = False
    size: int = 0
    limit: int = 0
    unknown: str = ""
    copies: Copies = ()
    terms: EncodedTerms | None = None

    @property
    def terms_shape(self) -> TermsShape | None:
        """Sizes of the arrays of terms; None for plain search."""
        return None if self.terms is None else self.terms.shape


def number_lines(
    lines: Iterable[str], sources: Iterator[str], targets: Iterator[str]
) -> Iterator[Line]:
    """Yield texts as lines with numbers and languages.

    Args:
        lines: texts.
        sources: source language code of each text, from `match_line_codes`.
        targets: target language code of each text.

    Raises:
        UserError: if a line is not text, or there are more lines than codes, or fewer.
    """
    for number, text in enumerate(lines):
        check_text(text, f"line {number + 1}")
        source, target = next(sources, None), next(targets, None)
        if source is None or target is None:
            raise UserError(f"line {number + 1} has no language; give one code or one per line")
        yield Line(number, text, source, target)
    for codes in (sources, targets):
        if not isinstance(codes, itertools.repeat) and next(codes, None) is not None:
            raise UserError("more languages than lines are given; give one code or one per line")


def with_contrast_sources(lines: Sequence[Line], decode: Decode) -> list[Line]:
    """Return lines with sources to contrast with, if `decode` uses source contrast.

    Args:
        lines: lines to draw from. Blank lines, and lines without another one of the same language,
            get none.
        decode: settings, of which `source_contrast` and `seed` are used.
    """
    if not decode.source_contrast:
        return list(lines)
    texts = [(line.number, line.source_lang, line.text) for line in lines]
    drawn = draw_contrast_sources(texts, _CONTRAST_SOURCES, decode.seed)
    return [
        dataclasses.replace(line, contrast_sources=sources)
        for line, sources in zip(lines, drawn, strict=True)
    ]


def encode_lines(
    inference_model: InferenceModel, lines: Mapping[int, Line], decode: Decode
) -> dict[int, EncodedLine]:
    """Return encoded lines by the same keys.

    All lines have the same number of inputs, so that they have the same shape.
    """
    texts = dict.fromkeys(
        text
        for line in lines.values()
        for text in (
            *_source_texts(line),
            *((_Text(*line.auxiliary),) if line.auxiliary else ()),
        )
    )
    sources = _encode_sources(inference_model, list(texts), decode)
    extra = inference_model.instruction.source_extra
    max_pieces = max(decode.buckets) - extra

    def encode(line: Line) -> EncodedLine:
        source, *others = (sources[text] for text in _source_texts(line))
        if not source.pieces:
            return EncodedLine(unknown=source.unknown, copies=source.copies)
        pieces = source.pieces
        if line.auxiliary and (auxiliary := sources[_Text(*line.auxiliary)].pieces):
            pieces = join_auxiliary(
                inference_model.vocabulary, pieces, line.auxiliary[1], auxiliary
            )
        truncated = [
            _truncate(inference_model, text, max_pieces)
            for text in (pieces, *(other.pieces for other in others))
        ]
        inputs, weights = zip(*_inputs(inference_model, line, truncated, decode), strict=True)
        size = max(len(example.source) for example in inputs) + extra
        limit = length_limit(decode, min(len(source.pieces), max_pieces) + extra)
        return EncodedLine(
            inputs=inputs,
            weights=weights,
            truncated=len(pieces) > max_pieces,
            size=size,
            limit=limit,
            unknown=source.unknown,
            copies=source.copies,
            terms=encode_terms(line.terms, inference_model.vocabulary, line.target_lang)
            if line.terms
            else None,
        )

    return {i: encode(line) for i, line in lines.items()}


def _inputs(
    inference_model: InferenceModel, line: Line, sources: Sequence[Sequence[int]], decode: Decode
) -> list[tuple[Example, float]]:
    """Return a line's own input and those it is contrasted with, with their weights."""
    count = _CONTRAST_SOURCES if decode.source_contrast else 0
    example, *others = (
        make_example(inference_model, line, source) for source in sources[: count + 1]
    )
    inputs = [(example, 1.0)]
    inputs += [(other, decode.source_contrast / len(others)) for other in others]
    inputs += [(example, 0.0)] * (count - len(others))
    if decode.language_contrast:
        names = decode.contrast_languages
        for code, weight in language_contrast_weights(
            [
                name if name == "source" else inference_model.vocabulary.vocabulary_code_of(name)
                for name in names
            ],
            decode.language_contrast,
            source_lang=line.source_lang,
            target_lang=line.target_lang,
        ):
            target_lang = inference_model.vocabulary.language_index(code)
            inputs.append((dataclasses.replace(example, target_lang=target_lang), weight))
    return inputs


def make_batch(
    inference_model: InferenceModel,
    lines: Sequence[tuple[int, EncodedLine]],
    decode: Decode,
    *,
    bucket: int,
    steps: int,
    size: int,
) -> tuple[HostBatch, Request]:
    """Build the batch and the search request of lines.

    Args:
        inference_model: the model.
        lines: seed (`Line.seed`) and encoding of each line; all with terms of one shape, or without
            terms.
        decode: settings of the search.
        bucket: length of the sources.
        steps: maximum number of generated tokens, with eos.
        size: sentences of the batch; rows without a line are empty and come last.
    """
    inputs = len(lines[0][1].inputs)
    examples = [example for _, encoded in lines for example in encoded.inputs]
    prefix = _prefixes(inference_model, examples, size * inputs).reshape(size, inputs, -1)
    limits, active = np.ones(size, np.int32), np.zeros(size, bool)
    limits[: len(lines)] = [encoded.limit for _, encoded in lines]
    active[: len(lines)] = True
    terms = [encoded.terms for _, encoded in lines if encoded.terms is not None]
    request = Request(
        prefix=prefix[:, 0],
        max_length=limits,
        active=active,
        rngs=_rngs(lines, decode, size) if decode.method == "sample" else None,
        contrast=_contrast(lines, prefix) if inputs > 1 else None,
        terms=search_terms(terms, size) if terms else None,
        max_steps=steps,
        allow_unk=decode.allow_unk,
    )
    converter = inference_model.converter(bucket)
    return single_sentence_batch(converter, examples, size * inputs), request


def _prefixes(
    inference_model: InferenceModel, examples: Sequence[Example], rows: int
) -> np.ndarray:
    """Return the first target inputs of sentences, int32 `[rows, prefix]`; eos in empty rows."""
    vocabulary, instruction = inference_model.vocabulary, inference_model.instruction
    prefixes = np.full((rows, instruction.target_extra), vocabulary.eos_id, np.int32)
    for row, example in enumerate(examples):
        language = vocabulary.languages[example.target_lang]
        trigger = instruction.trigger_id(vocabulary, language)
        prefixes[row] = (trigger, *instruction.forced_ids(vocabulary, language))
    return prefixes


def _contrast(lines: Sequence[tuple[int, EncodedLine]], prefix: np.ndarray) -> Contrast:
    """Return the contrasts of lines with inputs beside their own."""
    weights = np.zeros(prefix.shape[:2], np.float32)
    weights[: len(lines)] = [encoded.weights for _, encoded in lines]
    return Contrast(prefix[:, 1:], weights[:, 1:])


def _rngs(lines: Sequence[tuple[int, EncodedLine]], decode: Decode, size: int) -> jax.Array:
    """Return the key of each line, by its seed."""
    ids = np.zeros(size, np.int32)
    ids[: len(lines)] = [seed for seed, _ in lines]
    return sentence_rngs(decode.seed, jnp.asarray(ids))


class _Text(NamedTuple):
    """A text to encode; attributes as in `Line`."""

    text: str
    language: str
    context: Context | None = None


def _source_texts(line: Line) -> list[_Text]:
    """Return the text of a line, and those it is contrasted with."""
    contrast_sources = (_Text(text, line.source_lang) for text in line.contrast_sources)
    return [_Text(line.text, line.source_lang, line.context), *contrast_sources]


class _Source(NamedTuple):
    """An encoded text; attributes as in `EncodedLine`."""

    pieces: Sequence[int]
    unknown: str
    copies: Copies = ()


def _encode_sources(
    inference_model: InferenceModel, texts: Sequence[_Text], decode: Decode
) -> dict[_Text, _Source]:
    """Encode texts, and collect characters that no piece covers."""
    vocabulary, sources = inference_model.vocabulary, {}
    for text, pieces in zip(texts, _encode(inference_model, texts), strict=True):
        unknown = unknown_characters(vocabulary, text.text, pieces, text.language)
        sources[text] = _Source(pieces, unknown)
        if unknown and decode.copy_unknown:
            (normalized,) = normalize_lines([text.text], vocabulary.normalization)
            remaining, copies = extract_copies(normalized, vocabulary, *text[1:])
            (pieces,) = _encode(inference_model, [text._replace(text=remaining)])
            sources[text] = _Source(pieces, unknown, copies)
    return sources


def _truncate(
    inference_model: InferenceModel, pieces: Sequence[int], max_pieces: int
) -> Sequence[int]:
    """Truncate a source to at most `max_pieces` pieces, without an incomplete character."""
    if len(pieces) <= max_pieces:
        return pieces
    return drop_incomplete_character(pieces[:max_pieces], inference_model.vocabulary.byte_values)


def _encode(inference_model: InferenceModel, texts: Sequence[_Text]) -> list[list[int]]:
    """Return the pieces of texts; none for blank texts.

    SentencePiece may return pieces for blank texts; they are dropped.
    """
    non_blank = ["" if is_blank(text.text) else text.text for text in texts]
    languages = [text.language for text in texts]
    return inference_model.vocabulary.encode_lines(non_blank, languages)


def make_example(
    inference_model: InferenceModel,
    line: Line,
    source: Sequence[int] = (),
    target: Sequence[int] = (),
) -> Example:
    """Return a line's pieces and language indices as an example."""
    index = inference_model.vocabulary.language_index
    pieces = np.asarray(source, np.int32), np.asarray(target, np.int32)
    return Example(*pieces, index(line.source_lang), index(line.target_lang))
