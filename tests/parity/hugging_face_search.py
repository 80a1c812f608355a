"""A slow, plain transcription of `transformers`' beam search, with a forced first token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Hypothesis = tuple[float, list[int]]


def slow_hugging_face_search(
    log_probs: Callable[[Sequence[Sequence[int]]], np.ndarray],
    *,
    forced: int,
    eos: int,
    beam: int,
    max_length: int,
    length_penalty: float,
) -> list[Hypothesis]:
    """Search as `generate(num_beams=..., early_stopping=False)`; best first.

    What differs from this project's search, which follows fairseq: the forced tag counts as a token
    of probability one; at the length limit hypotheses end without eos; pad may be generated, and
    eos at once; a finished hypothesis gives way to a better one, and the search goes on until no
    live one can beat the worst finished.

    Args:
        log_probs: of the next token after each of these histories, [histories, vocab].
        forced: the first token.
        eos: what ends a hypothesis.
        beam: hypotheses.
        max_length: tokens with the decoder's start token, which is not in the histories.
        length_penalty: score = sum / (tokens without the start token) ** length_penalty.
    """
    live: list[Hypothesis] = [(0.0, [forced])]
    finished: list[Hypothesis] = []
    if max_length <= 2:
        return live
    while True:
        scores = log_probs([tokens for _, tokens in live])
        totals = np.float32([total for total, _ in live])[:, None] + scores
        order = np.argsort(-totals, axis=None, kind="stable")[: 2 * beam]
        candidates = []
        for flat in order:
            parent, token = divmod(int(flat), scores.shape[1])
            tokens = [*live[parent][1], token]
            candidates.append((float(totals[parent, token]), tokens))
        length = len(candidates[0][1])
        at_limit = length + 1 >= max_length
        ends = [at_limit or tokens[-1] == eos for _, tokens in candidates]
        finished += [
            (total / length**length_penalty, tokens)
            for (total, tokens), end in zip(candidates[:beam], ends[:beam], strict=True)
            if end
        ]
        finished = sorted(finished, key=lambda hypothesis: -hypothesis[0])[:beam]
        going_on = [c for c, end in zip(candidates, ends, strict=True) if not end]
        live = going_on[:beam]
        if at_limit or not live:
            return finished
        best_live = live[0][0] / length**length_penalty
        if len(finished) == beam and best_live <= finished[-1][0]:
            return finished
