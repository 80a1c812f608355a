"""Slow, plain transcriptions of the search rules: one sentence, Python lists, no JAX.

They take `log_probs(tokens generated so far) -> float32 [vocab]` and know nothing of batches,
caches or fixed shapes.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Sequence

import numpy as np

PAD, EOS = 0, 1
LogProbs = Callable[[Sequence[int]], np.ndarray]
Hypothesis = tuple[float, list[int]]
SlowTerm = tuple[Sequence[Sequence[int]], int]  # alternatives, and how often one is required


def without_token(log_probs: LogProbs, token: int) -> LogProbs:
    """Return `log_probs` without the probability of a token."""

    def masked(tokens: Sequence[int]) -> np.ndarray:
        values = np.array(log_probs(tokens))
        values[token] = -np.inf
        return values

    return masked


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


def slow_diverse_search(
    log_probs: LogProbs,
    *,
    beam: int,
    groups: int,
    penalty: float,
    max_length: int,
    length_penalty: float = 1.0,
) -> list[Hypothesis]:
    """Diverse beam search: a beam per group, one after the other in each step."""
    width = beam // groups
    live: list[list[Hypothesis]] = [[(0.0, [])] for _ in range(groups)]
    finished: list[list[Hypothesis]] = [[] for _ in range(groups)]
    for step in range(max_length + 1):
        used: collections.Counter[int] = collections.Counter()
        for group in range(groups):
            if len(finished[group]) == width:
                continue
            candidates = [
                (np.float32(total) + np.float32(value), tokens, token)
                for total, tokens in live[group]
                for token, value in enumerate(_allowed(log_probs(tokens), step, max_length))
                if value > -np.inf
            ]
            candidates.sort(key=lambda one: -(one[0] - np.float32(penalty * used[one[2]])))
            live[group] = []
            for rank, (total, tokens, token) in enumerate(candidates[: 2 * width]):
                if token != EOS:
                    live[group].append((total, [*tokens, token]))
                elif rank < width and len(finished[group]) < width:
                    score = float(total) / (step + 1) ** length_penalty
                    finished[group].append((score, [*tokens, EOS]))
            live[group] = live[group][:width]
            used.update(tokens[-1] for _, tokens in live[group])
    return sorted(itertools.chain(*finished), key=lambda hypothesis: -hypothesis[0])


def sequence_probabilities(
    log_probs: LogProbs,
    *,
    max_length: int,
    epsilon_cutoff: float = 0.0,
    tokens: tuple[int, ...] = (),
) -> dict[tuple[int, ...], float]:
    """Return the probability of each sequence that sampling can draw after `tokens`."""
    probs = np.exp(_allowed(log_probs(tokens), len(tokens), max_length).astype(np.float64))
    probs /= probs.sum()
    probs = np.where((probs >= epsilon_cutoff) | (probs == probs.max()), probs, 0)
    sequences: collections.Counter[tuple[int, ...]] = collections.Counter()
    for token in np.flatnonzero(probs).tolist():
        longer = (*tokens, token)
        settings = {"max_length": max_length, "epsilon_cutoff": epsilon_cutoff, "tokens": longer}
        ends = {longer: 1.0} if token == EOS else sequence_probabilities(log_probs, **settings)
        for sequence, prob in ends.items():
            sequences[sequence] += prob * probs[token] / probs.sum()
    return sequences


def slow_constrained_search(
    log_probs: LogProbs,
    terms: Sequence[SlowTerm],
    forbidden: Sequence[Sequence[int]] = (),
    *,
    beam: int,
    max_length: int,
    length_penalty: float = 1.0,
) -> list[Hypothesis]:
    """Beam search in banks by the number of missing tokens; complete hypotheses first."""
    live: list[Hypothesis] = [(0.0, [])]
    finished: list[tuple[bool, float, list[int]]] = []
    for step in range(max_length + 1):
        candidates = []
        for total, tokens in live:
            values = _allowed(log_probs(tokens), step, max_length)
            if missing_tokens(terms, tokens) and step < max_length:
                values[EOS] = -np.inf
            for sequence in forbidden:
                if _ends_with(tokens, sequence[:-1]):
                    values[sequence[-1]] = -np.inf
            candidates += _constrained_candidates(terms, (total, tokens), values, 2 * beam)
        candidates.sort(key=lambda candidate: (candidate[1], -candidate[0]))
        ranked = (candidates if step == max_length else _rank_by_banks(candidates))[: 2 * beam]
        live = []
        for rank, (total, _, tokens, token) in enumerate(ranked):
            if token != EOS:
                live.append((total, [*tokens, token]))
            elif rank < beam and len(finished) < beam:
                score = float(total) / (step + 1) ** length_penalty
                finished.append((missing_tokens(terms, tokens) > 0, score, [*tokens, EOS]))
        live = live[:beam]
        if len(finished) == beam:
            break
    finished.sort(key=lambda hypothesis: (hypothesis[0], -hypothesis[1]))
    return [(score, tokens) for _, score, tokens in finished]


def _constrained_candidates(
    terms: Sequence[SlowTerm], hypothesis: Hypothesis, values: np.ndarray, count: int
) -> list[tuple]:
    """Return (score, missing tokens, tokens, next token) of the best and of terms."""
    total, tokens = hypothesis
    best = [int(token) for token in np.argsort(-values, kind="stable")[:count]]
    return [
        (
            np.float32(total) + np.float32(values[token]),
            missing_tokens(terms, [*tokens, token]),
            tokens,
            token,
        )
        for token in dict.fromkeys([*best, *_continuing(terms, tokens)])
        if values[token] > -np.inf
    ]


def _rank_by_banks(candidates: Sequence[tuple]) -> list[tuple]:
    banks: dict[int, list[tuple]] = {}
    for candidate in candidates:
        banks.setdefault(candidate[1], []).append(candidate)
    rounds = itertools.zip_longest(*(banks[missing] for missing in sorted(banks)))
    return [candidate for one_round in rounds for candidate in one_round if candidate]


def _ends_with(tokens: Sequence[int], end: Sequence[int]) -> bool:
    return not end or list(tokens[-len(end) :]) == list(end)


def _count(alternatives: Sequence[Sequence[int]], tokens: Sequence[int]) -> tuple[int, int]:
    """Return how often a term occurs without overlap, and where its last occurrence ends."""
    count = start = 0
    for end in range(1, len(tokens) + 1):
        if any(len(a) <= end - start and _ends_with(tokens[:end], a) for a in alternatives):
            count, start = count + 1, end
    return count, start


def _matched(alternative: Sequence[int], tokens: Sequence[int]) -> int:
    """Return how many tokens of an alternative the tokens end with."""
    sizes = range(min(len(alternative) - 1, len(tokens)), 0, -1)
    return next((size for size in sizes if _ends_with(tokens, alternative[:size])), 0)


def missing_tokens(terms: Sequence[SlowTerm], tokens: Sequence[int]) -> int:
    """Return the number of missing tokens; matched ones count for one term alone."""
    total, best = 0, 0
    for alternatives, required in terms:
        count, start = _count(alternatives, tokens)
        if count < required:
            least = min(map(len, alternatives))
            total += (required - count) * least
            for one in alternatives:
                best = max(best, least - len(one) + _matched(one, tokens[start:]))
    return total - best


def _continuing(terms: Sequence[SlowTerm], tokens: Sequence[int]) -> list[int]:
    following = []
    for alternatives, required in terms:
        count, start = _count(alternatives, tokens)
        if count < required:
            following += [one[_matched(one, tokens[start:])] for one in alternatives]
    return following


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
