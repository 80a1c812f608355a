"""Utilities by which hypotheses are ranked: the values of `Decode.utility`."""

from __future__ import annotations

from sacrebleu.metrics import BLEU

from mnmt_jax.decoding.candidate_ranking import Utility
from mnmt_jax.decoding.minimum_bayes_risk import (
    ExpectedMetric,
    SegmentMetric,
    pairwise,
    pairwise_chrf,
    sentence_metric,
)
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.languages import get_language

_UTILITIES: dict[str, Utility] = {}


def get_utility(name: str) -> Utility | None:
    """Return the utility of a name; None for "", the model's score.

    Raises:
        UserError: if there is none of this name.
    """
    if not name:
        return None
    if name not in _UTILITIES:
        raise UserError(
            f"Decode.utility='{name}': must be one of {', '.join(_UTILITIES)}, or '' for the "
            "model's score"
        )
    return _UTILITIES[name]


def register_utility(name: str, utility: Utility) -> None:
    """Register a utility as a value of `Decode.utility`."""
    _UTILITIES[name] = utility


def register_mbr_metric(name: str, metric: SegmentMetric) -> None:
    """Register a metric for minimum Bayes risk decoding as a value of `Decode.utility`.

    Example:
        >>> def score(lines, hypotheses, references):
        ...     return model.predict([line.text for line in lines], hypotheses, references)
        >>> register_mbr_metric("mine", score)
    """
    register_utility(name, ExpectedMetric(pairwise(metric)))


def _bleu(language: str) -> BLEU:
    tokenizer = get_language(language).sacrebleu_tokenizer
    return BLEU(tokenize=tokenizer, effective_order=True)


register_utility("chrf", ExpectedMetric(pairwise_chrf()))
register_utility("chrf++", ExpectedMetric(pairwise_chrf(word_order=2)))
register_mbr_metric("bleu", sentence_metric(_bleu))
