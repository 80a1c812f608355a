"""Ranking of the hypotheses of a line by a utility instead of the model's score."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mnmt_jax.decoding.encoded_lines import Line

if TYPE_CHECKING:
    from mnmt_jax.decoding.translate_lines import Hypothesis

    Candidates = tuple[Hypothesis, ...]

_LINES_AT_A_TIME = 64  # lines whose candidates a utility gets together


class Utility(Protocol):
    """Utility of translations, such as their expected similarity or their estimated quality."""

    def __call__(
        self, lines: Sequence[Line], candidates: Sequence[Candidates]
    ) -> Sequence[np.ndarray]:
        """Return the utility of each candidate; higher is better.

        Args:
            lines: the sources.
            candidates: hypotheses of each line, at least one.
        """


def rank_candidates(
    results: Iterator[tuple[int, Candidates]], lines: Sequence[Line], utility: Utility
) -> Iterator[tuple[int, Candidates]]:
    """Order the hypotheses of lines by their utility; equal ones stay in order of their scores.

    A line's order depends on that line alone.

    Args:
        results: the index of each line and its hypotheses, by descending score.
        lines: the lines.
        utility: the utility, which becomes `Hypothesis.utility`.
    """
    while chunk := list(itertools.islice(results, _LINES_AT_A_TIME)):
        searched = [(i, candidates) for i, candidates in chunk if candidates]
        values = (
            utility([lines[i] for i, _ in searched], [candidates for _, candidates in searched])
            if searched
            else []
        )
        yield from ((i, candidates) for i, candidates in chunk if not candidates)
        for (i, candidates), utilities in zip(searched, values, strict=True):
            order = np.argsort(-np.asarray(utilities), kind="stable")
            yield (
                i,
                tuple(
                    dataclasses.replace(candidates[rank], utility=float(utilities[rank]))
                    for rank in order
                ),
            )
