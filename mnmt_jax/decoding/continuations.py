"""Texts drawn from a model that continues text, from where a prompt ends.

Prompts of one length stand together: what a search is given first, it steps over in all rows at
once. A batch's shape follows from the smallest bucket that holds the prompt, and a draw's random
stream from the seed, the prompt's number and the draw's: batch mates change nothing. How many rows
batches have follows from the draws asked for, as in `mnmt_jax.decoding.lines`.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mnmt_jax.config.sections import Decode
from mnmt_jax.data.converter import segments_from_rows
from mnmt_jax.decoding.generate import make_search
from mnmt_jax.decoding.lines import (
    Line,
    System,
    check_decode,
    check_fit,
    chunks,
    example_of,
    hypotheses_of,
    search_batch,
    spans_of,
)
from mnmt_jax.decoding.search import Hypotheses, Request, sentence_rngs
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


def draw_continuations(
    system: System, draws: Sequence[tuple[Line, int]], decode: Decode
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
    sizes = [len(prefix) for prefix in prefixes]
    check_fit([line for line, _ in draws], sizes, decode)
    widths = [min(bucket for bucket in decode.buckets if bucket >= size) for size in sizes]
    longest = max(widths, default=0) + decode.max_length
    check_decode(system, decode, {system.model.layout.generated: longest})
    decode = system.fitted(decode, len(draws))
    found: dict[int, Continuation] = {}
    for width, members in _groups(sizes, widths, decode.batch):
        own = [draws[i] for i in members]
        given = [prefixes[i] for i in members]
        hypotheses = _draw_batch(system, own, given, width=width, decode=decode)
        for row, i in enumerate(members):
            found[i] = _continuation(
                system,
                hypotheses,
                row,
                draw=draws[i],
                prefix=prefixes[i],
                max_length=decode.max_length,
            )
    return [found[i] for i in range(len(draws))]


def _prefixes(system: System, lines: Sequence[Line]) -> list[tuple[int, ...]]:
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


def _groups(
    sizes: Sequence[int], widths: Sequence[int], batch: int
) -> Iterator[tuple[int, list[int]]]:
    """Yields (width, indices) of batches whose prompts have one length."""
    members: dict[int, list[int]] = defaultdict(list)
    for i, size in enumerate(sizes):
        members[size].append(i)
    for size in sorted(members):
        for chunk in chunks(members[size], batch):
            yield widths[chunk[0]], chunk


def _draw_batch(
    system: System,
    draws: Sequence[tuple[Line, int]],
    prefixes: Sequence[Sequence[int]],
    *,
    width: int,
    decode: Decode,
) -> Hypotheses:
    """Draws one batch of `decode.batch` rows, the last ones empty if prompts are lacking."""
    size, rows = decode.batch, len(draws)
    prefix = np.full((size, width), system.vocabulary.eos_id, np.int32)
    prefix[:rows, : len(prefixes[0])] = prefixes
    numbers = np.zeros((size, 2), np.int32)
    numbers[:rows] = [(line.number, draw) for line, draw in draws]
    rngs = sentence_rngs(decode.seed, jnp.asarray(numbers[:, 0]))
    request = Request(
        prefix=jnp.asarray(prefix),
        prefix_length=jnp.asarray(len(prefixes[0]), jnp.int32),
        max_length=jnp.full(size, decode.max_length, jnp.int32),
        active=jnp.asarray(np.arange(size) < rows),
        rngs=jax.vmap(jax.random.fold_in)(rngs, jnp.asarray(numbers[:, 1])),
        max_steps=decode.max_length + 1,
    )
    segments = segments_from_rows([[example_of(system, line)] for line, _ in draws])
    batch = spans_of(system.converter(width).static_batch(segments, size))
    return search_batch(system, batch, request, make_search(decode))


def _continuation(
    system: System,
    found: Hypotheses,
    row: int,
    *,
    draw: tuple[Line, int],
    prefix: Sequence[int],
    max_length: int,
) -> Continuation:
    """Returns what was drawn in a row."""
    line, number = draw
    before = prefix[system.instruction.target_extra :]
    hypotheses = hypotheses_of(system, found, row, before)
    if not hypotheses:
        raise UserError(
            f"prompt {line.number + 1}: the model's output is not a number; use another checkpoint"
        )
    (best,) = hypotheses
    limited = len(best.tokens) > max_length
    return Continuation(line.number, number, best.text, best.score, best.tokens, limited)
