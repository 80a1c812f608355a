"""Utilities by which hypotheses are ranked: the values of `Decode.utility`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from mnmt_jax.decoding.candidate_ranking import Utility
from mnmt_jax.decoding.minimum_bayes_risk import (
    ExpectedMetric,
    SegmentMetric,
    pairwise,
    pairwise_chrf,
    sentence_metric,
)
from mnmt_jax.decoding.reranking import EstimatedQuality, QualityMetric, forward_and_backward
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.languages import get_language

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU

_NEURAL = "mnmt_jax.evaluation.neural_utilities"
_UTILITIES: dict[str, Utility] = {}
_WITH_MODEL: dict[str, Callable[[str], Utility]] = {}


@functools.cache
def get_utility(name: str) -> Utility | None:
    """Return the utility of a name; None for "", the model's score.

    Args:
        name: `NAME`, or `NAME:MODEL` for a utility with a model.

    Raises:
        UserError: if there is none of this name.
    """
    kind, colon, model = name.partition(":")
    if not name:
        return None
    if not colon and name in _UTILITIES:
        return _UTILITIES[name]
    if model and kind in _WITH_MODEL:
        return _WITH_MODEL[kind](model)
    names = ", ".join([*_UTILITIES, *(f"{kind}:MODEL" for kind in _WITH_MODEL)])
    raise UserError(
        f"Decode.utility='{name}': must be one of {names}, or '' for the model's score; "
        f"--module_import={_NEURAL} (in Python: import it) adds neural metrics"
    )


def register_utility(name: str, utility: Utility) -> None:
    """Register a utility as a value of `Decode.utility`."""
    _UTILITIES[name] = utility
    get_utility.cache_clear()


def register_utility_with_model(name: str, make: Callable[[str], Utility]) -> None:
    """Register utilities `NAME:MODEL`.

    Args:
        name: their name.
        make: returns the utility of a model's path.
    """
    _WITH_MODEL[name] = make
    get_utility.cache_clear()


def register_mbr_metric(name: str, metric: SegmentMetric) -> None:
    """Register a metric for minimum Bayes risk decoding as a value of `Decode.utility`.

    Example:
        >>> def score(lines, hypotheses, references):
        ...     return model.predict([line.text for line in lines], hypotheses, references)
        >>> register_mbr_metric("mine", score)
    """
    register_utility(name, ExpectedMetric(pairwise(metric)))


def register_quality_metric(name: str, metric: QualityMetric) -> None:
    """Register a metric without references for reranking as a value of `Decode.utility`."""
    register_utility(name, EstimatedQuality(metric))


def _bleu(language: str) -> BLEU:
    from sacrebleu.metrics import BLEU

    tokenizer = get_language(language).sacrebleu_tokenizer
    return BLEU(tokenize=tokenizer, effective_order=True)


register_utility("chrf", ExpectedMetric(pairwise_chrf()))
register_utility("chrf++", ExpectedMetric(pairwise_chrf(word_order=2)))
register_mbr_metric("bleu", sentence_metric(_bleu))
register_utility("backward", forward_and_backward)
