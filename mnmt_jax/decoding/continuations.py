"""Texts drawn from a model that continues text, from where a prompt ends.

Prompts of one length have a batch to themselves: what a search is given first, it steps over in all
rows at once. A batch's shape follows from the smallest bucket that holds the prompt, and a draw's
random stream from the seed, the prompt's number and the draw's: batch mates change nothing. How
many rows batches have follows from the draws asked for, as in `mnmt_jax.decoding.translate_lines`.
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
from mnmt_jax.decoding.generate import make_search
from mnmt_jax.decoding.inference_model import InferenceModel, model_inputs
from mnmt_jax.decoding.search import Request, sentence_rngs
from mnmt_jax.decoding.search_limits import check_memory, with_memory_errors
from mnmt_jax.decoding.translate_lines import (
    check_decode,
    check_lengths_fit_bucket,
    chunks,
    decode_hypotheses,
)
from mnmt_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Continuation:
    """A text that was drawn.

    Attributes:
        prompt: number of what it continues, from 0.
        draw: its number among those of the prompt, from 0.
        text: the prompt and what follows, without line breaks.
        log_prob: of what follows, eos included, in nats, by the model's own distribution: without
            temperature, `top_k` and `top_p`.
        tokens: ids of what follows, ending in eos.
        limited: it is as long as `Decode.max_length` allows; its end may be missing. Its eos was
            not drawn: `log_prob` and `tokens` are those of the text if it ends there, as `score`
            has them.
    """

    prompt: int
    draw: int
    text: str
    log_prob: float
    tokens: tuple[int, ...]
    limited: bool


class _Draw(NamedTuple):
    line: Line
    number: int  # among those of the prompt
    prefix: tuple[int, ...]


def draw_continuations(
    system: InferenceModel, draws: Sequence[tuple[Line, int]], decode: Decode
) -> list[Continuation]:
    """Draws a continuation for each prompt and number of a draw.

    Args:
        system: a model that continues text.
        draws: prompts, as targets of lines without source text, with the numbers of their draws.
        decode: how to draw; its beam and length penalty are not read.

    Returns:
        One each, in order. None is empty: eos is not drawn first.

    Raises:
        UserError: if a prompt does not fit the largest bucket, or the model's output is not finite.
    """
    decode = dataclasses.replace(decode, beam_size=1, length_penalty=0.0)
    prefixes = _prefixes(system, [line for line, _ in draws])
    asked = [_Draw(*draw, prefix) for draw, prefix in zip(draws, prefixes, strict=True)]
    lengths = [len(prefix) for prefix in prefixes]
    check_lengths_fit_bucket([line for line, _ in draws], lengths, decode)
    widths = [min(bucket for bucket in decode.buckets if bucket >= size) for size in lengths]
    longest = max(widths, default=0) + decode.max_length
    check_decode(system, decode, {system.model.layout.generated: longest})
    rows = system.rows(decode.batch, len(draws))
    check_memory(system, decode, rows=rows, steps=decode.max_length + 1)
    found: dict[int, Continuation] = {}
    for width in sorted(set(widths)):
        members = [i for i in range(len(draws)) if widths[i] == width]
        turns = (
            Admission(chunk, *_laid_out(system, [asked[i] for i in chunk], decode, width, rows))
            for chunk in _groups(lengths, members, rows)
        )
        searched = search_continuously(system, make_search(decode), turns, rows)
        for ended in with_memory_errors(searched, decode):
            found[ended.number] = _continuation(system, ended, asked[ended.number], decode)
    return [found[i] for i in range(len(draws))]


def _prefixes(system: InferenceModel, lines: Sequence[Line]) -> list[tuple[int, ...]]:
    """Returns what the model is given of each prompt: trigger, tag if there is one, and pieces."""
    vocabulary, instruction = system.vocabulary, system.instruction
    texts = list(dict.fromkeys((line.text, line.target_lang) for line in lines))
    encoded = vocabulary.encode_lines([text for text, _ in texts], [code for _, code in texts])
    pieces = dict(zip(texts, encoded, strict=True))

    def prefix(line: Line) -> tuple[int, ...]:
        trigger = instruction.trigger_id(vocabulary, line.target_lang)
        forced = instruction.forced_ids(vocabulary, line.target_lang)
        return (trigger, *forced, *pieces[line.text, line.target_lang])

    return [prefix(line) for line in lines]


def _groups(sizes: Sequence[int], members: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yields so many members at most whose prompts have one length."""
    for size in sorted({sizes[i] for i in members}):
        yield from chunks([i for i in members if sizes[i] == size], most)


def _laid_out(
    system: InferenceModel, draws: Sequence[_Draw], decode: Decode, width: int, rows: int
) -> tuple[HostBatch, Request]:
    """Lays out so many rows, the last ones empty if prompts are lacking."""
    count, length = len(draws), len(draws[0].prefix)
    prefix = np.full((rows, width), system.vocabulary.eos_id, np.int32)
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
    segments = segments_from_rows([[make_example(system, line)] for line, *_ in draws])
    return model_inputs(system.converter(width).static_batch(segments, rows)), request


def _continuation(
    system: InferenceModel, ended: Finished, draw: _Draw, decode: Decode
) -> Continuation:
    """Returns what was drawn."""
    before = draw.prefix[system.instruction.target_extra :]
    hypotheses = decode_hypotheses(system, ended.found, ended.row, before)
    prompt = draw.line.number
    if not hypotheses:
        raise UserError(
            f"prompt {prompt + 1}: the model's output is not a number; use another checkpoint"
        )
    (best,) = hypotheses
    limited = len(best.tokens) > decode.max_length
    return Continuation(prompt, draw.number, best.text, best.score, best.tokens, limited)
