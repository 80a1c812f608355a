"""Slow, plain transcriptions of the search rules: one sentence, Python lists, no JAX.

They take `log_probs(tokens generated so far) -> float32 [vocab]` and know nothing of batches,
caches or fixed shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

PAD, EOS = 0, 1
LogProbs = Callable[[Sequence[int]], np.ndarray]
Hypothesis = tuple[float, list[int]]


def slow_beam_search(
    log_probs: LogProbs, *, beam: int, max_length: int, length_penalty: float = 1.0
) -> list[Hypothesis]:
    """Beam search as fairseq's SequenceGenerator does it; returns (score, tokens), best first."""
    live: list[Hypothesis] = [(0.0, [])]
    finished: list[Hypothesis] = []
    for step in range(max_length + 1):
        candidates = [
            (np.float32(total) + np.float32(value), tokens, token)
            for total, tokens in live
            for token, value in enumerate(_allowed(log_probs(tokens), step, max_length))
            if value > -np.inf
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        live = []
        for rank, (total, tokens, token) in enumerate(candidates[: 2 * beam]):
            if token != EOS:
                live.append((total, [*tokens, token]))
            elif rank < beam and len(finished) < beam:
                finished.append((float(total) / (step + 1) ** length_penalty, [*tokens, EOS]))
        live = live[:beam]
        if len(finished) == beam:
            break
    return sorted(finished, key=lambda hypothesis: -hypothesis[0])


def _allowed(scores: np.ndarray, step: int, max_length: int) -> np.ndarray:
    scores = scores.copy()
    scores[PAD] = -np.inf
    if step == max_length:
        scores[np.arange(len(scores)) != EOS] = -np.inf
    elif step == 0:
        scores[EOS] = -np.inf
    return scores


def slow_greedy(log_probs: LogProbs, *, max_length: int) -> Hypothesis:
    """Take the best token until eos; return (mean log-probability, tokens)."""
    tokens: list[int] = []
    total = np.float32(0)
    while not tokens or tokens[-1] != EOS:
        scores = _allowed(log_probs(tokens), len(tokens), max_length)
        best = int(np.argmax(scores))
        total += scores[best]
        tokens.append(best)
    return float(total) / len(tokens), tokens


def exhaustive(
    log_probs: LogProbs, *, vocab: int, max_length: int, length_penalty: float = 1.0
) -> list[Hypothesis]:
    """Score every sequence of 1 to `max_length` tokens followed by eos; best first."""
    words = [token for token in range(vocab) if token not in (PAD, EOS)]
    actual = []
    for length in range(1, max_length + 1):
        for middle in itertools.product(words, repeat=length):
            tokens = [*middle, EOS]
            steps = [log_probs(tokens[:i])[token] for i, token in enumerate(tokens)]
            actual.append((float(sum(steps)) / len(tokens) ** length_penalty, tokens))
    return sorted(actual, key=lambda hypothesis: -hypothesis[0])


def contrasted(
    each: Sequence[LogProbs], weights: Sequence[float], max_length: int, spared: list | None = None
) -> LogProbs:
    """Return log(p - sum of weight * contrast's p) by the definition, in probabilities.

    Args:
        each: of a sentence's own input, then of the contrasts.
        weights: of the contrasts.
        max_length: tokens at most, without eos.
        spared: takes the hypotheses of which the contrasts exclude all that may follow; each
            token is then left with a millionth of its probability.
    """

    def scores(tokens: Sequence[int]) -> np.ndarray:
        own, *others = (np.exp(one(tokens).astype(np.float64)) for one in each)
        left = own - sum(w * other for w, other in zip(weights, others, strict=True))
        scored = np.log(left, out=np.full_like(left, -np.inf), where=left > 0)
        if not (_allowed(scored, len(tokens), max_length) > -np.inf).any():
            scored = np.log(own) + np.log(1e-6)
            if spared is not None:
                spared.append(tuple(tokens))
        return scored.astype(np.float32)

    return scores
