"""Ranking of the hypotheses of a line by a utility instead of the model's score."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.scoring import Score
from mnmt_jax.decoding.terms import missing_terms

if TYPE_CHECKING:
    from mnmt_jax.decoding.translation import Hypothesis

    Candidates = tuple[Hypothesis, ...]

LogProbs = Callable[[Sequence[Line], Sequence[str]], Sequence[Score | None]]
"""From lines and a translation of each to its log-probability under the model; None if a pair is
longer than the largest bucket."""

_LINES_AT_A_TIME = 64  # lines whose candidates a utility gets together


class Utility(Protocol):
    """Utility of translations, such as their expected similarity or their estimated quality."""

    def __call__(
        self, lines: Sequence[Line], candidates: Sequence[Candidates], log_probs: LogProbs
    ) -> Sequence[np.ndarray]:
        """Return the utility of each candidate; higher is better.

        Args:
            lines: the sources.
            candidates: hypotheses of each line, at least one.
            log_probs: scores of other pairs under the model.
        """


def rank_candidates(
    results: Iterator[tuple[int, Candidates]],
    lines: Sequence[Line],
    utility: Utility,
    log_probs: LogProbs,
) -> Iterator[tuple[int, Candidates]]:
    """Order the hypotheses of lines by their utility; equal ones stay in order of their scores.

    Those that lack fewer required terms come first, as in the search.
    A line's order depends on that line alone.

    Args:
        results: the index of each line and its hypotheses, by descending score.
        lines: the lines.
        utility: the utility, which becomes `Hypothesis.utility` where it is finite.
        log_probs: scores of other pairs under the model.
    """
    while chunk := list(itertools.islice(results, _LINES_AT_A_TIME)):
        yield from ((i, candidates) for i, candidates in chunk if not candidates)
        indices = [i for i, candidates in chunk if candidates]
        searched = [candidates for _, candidates in chunk if candidates]
        if searched:
            values = utility([lines[i] for i in indices], searched, log_probs)
            missing = [
                [_missing(lines[i], candidate) for candidate in candidates]
                for i, candidates in zip(indices, searched, strict=True)
            ]
            yield from zip(indices, map(_ordered, searched, values, missing), strict=True)


def _missing(line: Line, candidate: Hypothesis) -> int:
    """Return the number of required terms that a hypothesis lacks."""
    return len(missing_terms(line.terms, candidate.text, line.target_lang))


def _ordered(candidates: Candidates, utilities: np.ndarray, missing: Sequence[int]) -> Candidates:
    order = np.lexsort((-utilities, np.asarray(missing)))  # the last key is the first to count
    return tuple(
        dataclasses.replace(
            candidates[rank],
            utility=float(utilities[rank]) if np.isfinite(utilities[rank]) else None,
        )
        for rank in order
    )
