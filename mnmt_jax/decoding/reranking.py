"""Reranking of hypotheses by an estimate of their quality, without references.

Source: Fernandes et al., "Quality-Aware Decoding for Neural Machine Translation", NAACL 2022 (arXiv
2205.00978), section 3.1, for quality estimation; Yee, Dauphin, Auli, "Simple and Effective Noisy
Channel Modeling for Neural Machine Translation", EMNLP 2019 (arXiv 1908.05731), for the backward
model, here the same model in the other direction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mnmt_jax.decoding.encoded_lines import Line

if TYPE_CHECKING:
    from mnmt_jax.decoding.candidate_ranking import Candidates, LogProbs

QualityMetric = Callable[[Sequence[Line], Sequence[str]], Sequence[float]]
"""From lines and a translation of each to estimates of quality; higher is better."""


@dataclasses.dataclass(frozen=True)
class EstimatedQuality:
    """Quality of hypotheses by a metric; all hypotheses are scored in one call.

    Attributes:
        metric: estimates the quality of translations.
    """

    metric: QualityMetric

    def __call__(
        self, lines: Sequence[Line], candidates: Sequence[Candidates], log_probs: LogProbs
    ) -> Sequence[np.ndarray]:
        """Return the estimates for all candidates; see `Utility`."""
        pairs = _pairs(lines, candidates)
        return _by_line(self.metric(*map(list, zip(*pairs, strict=True))), candidates)


def forward_and_backward(
    lines: Sequence[Line], candidates: Sequence[Candidates], log_probs: LogProbs
) -> Sequence[np.ndarray]:
    """Return score(y | x) + log p(x | y) / tokens of x of each candidate y; see `Utility`.

    It is -inf for all candidates of a line if one of its pairs is longer than the largest bucket.
    """
    pairs = _pairs(lines, candidates)
    reversed_lines = [
        dataclasses.replace(
            line, text=text, source_lang=line.target_lang, target_lang=line.source_lang
        )
        for line, text in pairs
    ]
    backward = log_probs(reversed_lines, [line.text for line, _ in pairs])
    values = [-np.inf if one is None else one.normalized(1.0) for one in backward]
    return [
        part + np.array([one.score for one in hypotheses])
        if np.isfinite(part).all()
        else np.full(len(hypotheses), -np.inf)
        for part, hypotheses in zip(_by_line(values, candidates), candidates, strict=True)
    ]


def _pairs(lines: Sequence[Line], candidates: Sequence[Candidates]) -> list[tuple[Line, str]]:
    return [
        (line, one.text)
        for line, hypotheses in zip(lines, candidates, strict=True)
        for one in hypotheses
    ]


def _by_line(values: Sequence[float], candidates: Sequence[Candidates]) -> Sequence[np.ndarray]:
    """Split the values of all candidates by line."""
    ends = np.cumsum([len(hypotheses) for hypotheses in candidates])[:-1]
    return np.split(np.asarray(values, float), ends)
