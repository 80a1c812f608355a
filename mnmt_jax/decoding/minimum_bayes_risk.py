"""Minimum Bayes risk decoding: the hypothesis that is most like the others.

The candidates of a line are also its pseudo-references. The utility of a candidate is the mean of a
metric over all of them, so samples of the model give a Monte Carlo estimate of the expected metric
under the model; a text that was drawn twice counts twice.

Source: Eikema, Aziz, "Is MAP Decoding All You Need?", COLING 2020 (arXiv 2005.10283), equation 9;
Eikema, Aziz, "Sampling-Based Approximations to Minimum Bayes Risk Decoding for Neural Machine
Translation", EMNLP 2022 (arXiv 2108.04718), algorithm 1 with candidates that are the samples;
Freitag et al., "High Quality Rather than High Model Probability", TACL 2022 (arXiv 2111.09388), for
neural metrics.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mnmt_jax.decoding.encoded_lines import Line

if TYPE_CHECKING:
    from sacrebleu.metrics import CHRF
    from sacrebleu.metrics.base import Metric

    from mnmt_jax.decoding.candidate_ranking import Candidates, LogProbs

SegmentMetric = Callable[[Sequence[Line], Sequence[str], Sequence[str]], Sequence[float]]
"""From lines, hypotheses and references to a score for each of them; higher is better."""
PairwiseMetric = Callable[[Sequence[Line], Sequence[Sequence[str]]], Sequence[np.ndarray]]
"""From lines and the texts of each to scores [text, text] of hypotheses and references."""


@dataclasses.dataclass(frozen=True)
class ExpectedMetric:
    """Mean of a metric over the candidates of a line as references.

    Attributes:
        metric: scores of all pairs of distinct candidates.
    """

    metric: PairwiseMetric

    def __call__(
        self, lines: Sequence[Line], candidates: Sequence[Candidates], log_probs: LogProbs
    ) -> Sequence[np.ndarray]:
        """Return the utilities of all candidates; see `Utility`."""
        texts = [[one.text for one in hypotheses] for hypotheses in candidates]
        counts = [collections.Counter(group) for group in texts]
        matrices = self.metric(lines, [list(count) for count in counts])
        utilities = []
        for group, count, scores in zip(texts, counts, matrices, strict=True):
            expected = scores @ np.array(list(count.values())) / len(group)
            by_text = dict(zip(count, expected, strict=True))
            utilities.append(np.array([by_text[text] for text in group]))
        return utilities


def pairwise(metric: SegmentMetric) -> PairwiseMetric:
    """Return the metric of all pairs of texts; the pairs of all lines are scored in one call."""

    def scores(lines: Sequence[Line], groups: Sequence[Sequence[str]]) -> Sequence[np.ndarray]:
        rows = [
            (line, *pair)
            for line, texts in zip(lines, groups, strict=True)
            for pair in itertools.product(texts, repeat=2)
        ]
        values = np.asarray(metric(*map(list, zip(*rows, strict=True))))
        parts = np.split(values, np.cumsum([len(texts) ** 2 for texts in groups])[:-1])
        return [part.reshape(len(texts), -1) for part, texts in zip(parts, groups, strict=True)]

    return scores


def pairwise_chrf(word_order: int = 0) -> PairwiseMetric:
    """Return sacreBLEU's sentence-level chrF of all pairs of texts, in percent.

    The n-grams of a text are counted once, and pairs are compared by matrix products, which takes a
    hundredth of the time of `sentence_chrf` for a hundred texts.

    Args:
        word_order: 2 for chrF++.
    """

    def scores(lines: Sequence[Line], groups: Sequence[Sequence[str]]) -> Sequence[np.ndarray]:
        from sacrebleu.metrics import CHRF

        metric = CHRF(word_order=word_order)
        return [_chrf_matrix(metric, texts) for texts in groups]

    return scores


def _chrf_matrix(metric: CHRF, texts: Sequence[str]) -> np.ndarray:
    """Return chrF [hypothesis, reference]: F of the mean precision and recall over all orders."""
    ngrams = metric._extract_reference_info(texts)["ref_ngrams"]
    precision, recall, orders = np.zeros((3, len(texts), len(texts)))
    for order in range(metric.order):
        counts = [text[order] for text in ngrams]
        lengths = np.array([count.total() for count in counts])
        matches = _common_ngrams(counts)
        # Orders for which one of the texts is too short do not count.
        is_counted = np.minimum.outer(lengths, lengths) > 0
        lengths = np.maximum(lengths, 1)
        precision += np.where(is_counted, matches / lengths[:, None], 0.0)
        recall += np.where(is_counted, matches / lengths[None], 0.0)
        orders += is_counted
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    factor = metric.beta**2
    denominator = factor * precision + recall
    f_score = (1 + factor) * precision * recall / np.where(denominator > 0, denominator, 1.0)
    return 100 * f_score


def _common_ngrams(counts: Sequence[collections.Counter[str]]) -> np.ndarray:
    """Return the number of n-grams that two texts have in common, for all pairs of texts.

    min(a, b) is the sum of [a >= t][b >= t] over t = 1, 2, ..., and each summand a product of
    matrices.
    """
    columns: dict[str, int] = {}
    for count in counts:
        for ngram in count:
            columns.setdefault(ngram, len(columns))
    occurrences = np.zeros((len(counts), len(columns)), np.int32)
    for row, count in enumerate(counts):
        occurrences[row, [columns[ngram] for ngram in count]] = list(count.values())
    matches = np.zeros((len(counts), len(counts)))
    for threshold in range(1, occurrences.max(initial=0) + 1):
        reached = occurrences >= threshold
        indicator = reached[:, reached.any(axis=0)].astype(np.float32)
        matches += indicator @ indicator.T
    return matches


def sentence_metric(make: Callable[[str], Metric]) -> SegmentMetric:
    """Return a metric of sacreBLEU for sentences.

    Args:
        make: returns the metric of a target language.
    """

    def scores(
        lines: Sequence[Line], hypotheses: Sequence[str], references: Sequence[str]
    ) -> list[float]:
        metrics = {line.target_lang: make(line.target_lang) for line in lines}
        return [
            metrics[line.target_lang].sentence_score(hypothesis, [reference]).score
            for line, hypothesis, reference in zip(lines, hypotheses, references, strict=True)
        ]

    return scores
