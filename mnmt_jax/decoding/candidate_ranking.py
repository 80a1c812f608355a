"""Ranking of the hypotheses of a line by a utility instead of the model's score."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.scoring import Score

if TYPE_CHECKING:
    from mnmt_jax.decoding.translate_lines import Hypothesis

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
            yield from zip(indices, map(_ordered, searched, values), strict=True)


def _ordered(candidates: Candidates, utilities: np.ndarray) -> Candidates:
    order = np.argsort(-np.asarray(utilities), kind="stable")
    return tuple(
        dataclasses.replace(
            candidates[rank],
            utility=float(utilities[rank]) if np.isfinite(utilities[rank]) else None,
        )
        for rank in order
    )
