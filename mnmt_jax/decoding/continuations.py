"""Sampling of texts that continue prompts, with a model that continues text.

A batch has prompts of one length, since a search steps over the prefix in all rows at once. The
shape of a batch follows from the smallest bucket that holds the prompt, and the random stream of a
draw from the seed, the prompt's number and the draw's number: other rows have no influence. The
number of rows follows from the number of draws, as in `mnmt_jax.decoding.translate_lines`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mnmt_jax.config.sections import Decode
from mnmt_jax.data.converter import HostBatch, segments_from_rows
from mnmt_jax.decoding.continuous_batching import Admission, Finished, search_continuously
from mnmt_jax.decoding.encoded_lines import Line, make_example
from mnmt_jax.decoding.inference_model import InferenceModel, model_inputs
from mnmt_jax.decoding.search import Request, sentence_rngs
from mnmt_jax.decoding.search_limits import check_memory, with_memory_errors
from mnmt_jax.decoding.search_settings import make_search
from mnmt_jax.decoding.translate_lines import (
    check_decode,
    check_lengths_fit_bucket,
    chunks,
    decode_hypotheses,
)
from mnmt_jax.errors import nan_output_error


@dataclasses.dataclass(frozen=True)
class Continuation:
    """A sampled text.

    Attributes:
        prompt: number of the prompt, from 0.
        draw: number of the draw for this prompt, from 0.
        text: the prompt and its continuation, without line breaks.
        log_prob: log-probability of the continuation, eos included, in nats, by the model's own
            distribution: without temperature, `top_k` and `top_p`.
        tokens: ids of the continuation, ending in eos.
        limited: whether the text has the length `Decode.max_length`, so its end may be missing. Its
            eos was not drawn: `log_prob` and `tokens` are those of a text that ends there, as in
            `score`.
    """

    prompt: int
    draw: int
    text: str
    log_prob: float
    tokens: tuple[int, ...]
    limited: bool


class _Draw(NamedTuple):
    line: Line
    number: int  # among the draws of the prompt
    prefix: tuple[int, ...]


def draw_continuations(
    inference_model: InferenceModel, draws: Sequence[tuple[Line, int]], decode: Decode
) -> list[Continuation]:
    """Draw a continuation for each pair of a prompt and the number of a draw.

    Args:
        inference_model: a model that continues text.
        draws: prompts, as targets of lines without source text, with the numbers of their draws.
        decode: settings; beam size and length penalty are not used.

    Returns:
        One continuation per pair, in order. None is empty: eos is not drawn first.

    Raises:
        UserError: if a prompt does not fit the largest bucket, or the model's output is not finite.
    """
    decode = dataclasses.replace(decode, beam_size=1, length_penalty=0.0)
    prefixes = _prefixes(inference_model, [line for line, _ in draws])
    prefixed_draws = [_Draw(*draw, prefix) for draw, prefix in zip(draws, prefixes, strict=True)]
    lengths = [len(prefix) for prefix in prefixes]
    check_lengths_fit_bucket([line for line, _ in draws], lengths, decode)
    widths = [min(bucket for bucket in decode.buckets if bucket >= size) for size in lengths]
    longest = max(widths, default=0) + decode.max_length
    check_decode(inference_model, decode, {inference_model.model.layout.generated: longest})
    rows = inference_model.rows(decode.batch, len(draws))
    check_memory(inference_model, decode, rows=rows, steps=decode.max_length + 1)
    continuations: dict[int, Continuation] = {}
    for width in sorted(set(widths)):
        members = [i for i in range(len(draws)) if widths[i] == width]
        admissions = (
            Admission(
                chunk,
                *_make_batch(
                    inference_model, [prefixed_draws[i] for i in chunk], decode, width, rows
                ),
            )
            for chunk in _groups(lengths, members, rows)
        )
        results = search_continuously(inference_model, make_search(decode), admissions, rows)
        for finished in with_memory_errors(results, decode):
            continuations[finished.number] = _continuation(
                inference_model, finished, prefixed_draws[finished.number], decode
            )
    return [continuations[i] for i in range(len(draws))]


def _prefixes(inference_model: InferenceModel, lines: Sequence[Line]) -> list[tuple[int, ...]]:
    """Return the decoder prefix of each prompt: trigger, tag if there is one, and pieces."""
    vocabulary, instruction = inference_model.vocabulary, inference_model.instruction
    texts = list(dict.fromkeys((line.text, line.target_lang) for line in lines))
    encoded = vocabulary.encode_lines([text for text, _ in texts], [code for _, code in texts])
    pieces = dict(zip(texts, encoded, strict=True))

    def prefix(line: Line) -> tuple[int, ...]:
        trigger = instruction.trigger_id(vocabulary, line.target_lang)
        forced = instruction.forced_ids(vocabulary, line.target_lang)
        return (trigger, *forced, *pieces[line.text, line.target_lang])

    return [prefix(line) for line in lines]


def _groups(sizes: Sequence[int], members: Sequence[int], max_size: int) -> Iterator[list[int]]:
    """Yield groups of at most `max_size` members whose prompts have the same length."""
    for size in sorted({sizes[i] for i in members}):
        yield from chunks([i for i in members if sizes[i] == size], max_size)


def _make_batch(
    inference_model: InferenceModel, draws: Sequence[_Draw], decode: Decode, width: int, rows: int
) -> tuple[HostBatch, Request]:
    """Build a batch of `rows` rows; rows without a prompt are empty and come last."""
    count, length = len(draws), len(draws[0].prefix)
    prefix = np.full((rows, width), inference_model.vocabulary.eos_id, np.int32)
    prefix[:count, :length] = [draw.prefix for draw in draws]
    numbers = np.zeros((rows, 2), np.int32)
    numbers[:count] = [(draw.line.number, draw.number) for draw in draws]
    rngs = sentence_rngs(decode.seed, jnp.asarray(numbers[:, 0]))
    request = Request(
        prefix=jnp.asarray(prefix),
        prefix_length=jnp.asarray(length, jnp.int32),
        max_length=jnp.full(rows, decode.max_length, jnp.int32),
        active=jnp.asarray(np.arange(rows) < count),
        rngs=jax.vmap(jax.random.fold_in)(rngs, jnp.asarray(numbers[:, 1])),
        max_steps=decode.max_length + 1,
        allow_unk=decode.allow_unk,
    )
    segments = segments_from_rows([[make_example(inference_model, line)] for line, *_ in draws])
    return model_inputs(inference_model.converter(width).static_batch(segments, rows)), request


def _continuation(
    inference_model: InferenceModel, finished: Finished, draw: _Draw, decode: Decode
) -> Continuation:
    """Return the continuation of a finished draw."""
    prompt_ids = draw.prefix[inference_model.instruction.target_extra :]
    hypotheses = decode_hypotheses(inference_model, finished.hypotheses, finished.row, prompt_ids)
    prompt = draw.line.number
    if not hypotheses:
        raise nan_output_error(f"prompt {prompt + 1}")
    (best,) = hypotheses
    limited = len(best.tokens) > decode.max_length
    return Continuation(prompt, draw.number, best.text, best.score, best.tokens, limited)
