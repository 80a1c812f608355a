"""Bootstrap over the sentences of an evaluation, with sacreBLEU's resampling.

Source: Koehn 2004, "Statistical significance tests for machine translation evaluation".

The score of a group is a mean over directions. Directions that share sentences (the same German
text in de-en and de-fr) are resampled together, since their errors are not independent; directions
of other sentences are resampled independently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import _bootstrap_resample

from mnmt_jax.evaluation.published_procedures import PaperScorer
from mnmt_jax.evaluation.result import RunResult
from mnmt_jax.evaluation.spbleu import FloresTokenizer, find_tokenizer
from mnmt_jax.evaluation.translations import StoredTexts, read_stored_texts
from mnmt_jax.vocabulary.languages import Direction, get_language

SAMPLES = 1000
METRICS = ("bleu", "spbleu", "chrf", "off_target_lid")
"""Fields of `DirectionResult` that can be resampled; the others have no score per sentence."""
ScoredTexts = tuple[Any, Sequence[str], Sequence[str]]
"""A metric of sacreBLEU, hypotheses and references."""
Draws = Mapping[Direction, np.ndarray]
"""Scores of the resampled test sets in percent, [samples], by direction."""


def resample_scores(
    result: RunResult,
    folder: Path,
    metric: str,
    *,
    samples: int = SAMPLES,
    flores200_model: Path | None = None,
    scorer: PaperScorer | None = None,
) -> Draws:
    """Return the scores of resampled test sets, for each direction that has a score.

    Args:
        result: the evaluation.
        folder: its folder.
        metric: one of `METRICS`.
        samples: number of resampled test sets.
        flores200_model: tokenizer of spBLEU; None looks into sacreBLEU's cache.
        scorer: scorer of BLEU by a published procedure that does not swap; None for sacreBLEU's.

    Returns:
        The scores. Sample i of two directions with common sentences, or of two evaluations of the
        same directions, has the same sentences. The off-target ratio is resampled from its count,
        each direction independently.

    Raises:
        UserError: if the translations of a direction are missing or damaged.
    """
    scored = [pair for pair, score in result.values(metric).items() if score is not None]
    if metric == "off_target_lid":
        return _resample_ratios(result, scored, samples)
    texts = {pair: read_stored_texts(folder / "translations", pair) for pair in scored}
    tokenizer = find_tokenizer(flores200_model) if metric == "spbleu" else None
    clusters = shared_sentences(texts)
    draws = {}
    for pair in scored:
        if scorer is not None:
            prepared = scorer.texts(
                pair, texts[pair].sources, texts[pair].hypotheses, texts[pair].references
            )
            inputs: ScoredTexts = scorer.bleu_inputs(pair, prepared)
        elif metric != "spbleu" or tokenizer is not None:
            inputs = _inputs(metric, pair, texts[pair], tokenizer)
        else:
            continue
        draws[pair] = _resample(inputs, clusters[pair], samples)
    return draws


def confidence_interval(draws: np.ndarray) -> tuple[float, float]:
    """Return the 95 % percentile interval of resampled scores, [samples]."""
    low, high = np.percentile(draws, (2.5, 97.5))
    return float(low), float(high)


def shared_sentences(texts: Mapping[Direction, StoredTexts]) -> dict[Direction, int]:
    """Return the number of each direction's cluster; directions with a common text share it.

    Args:
        texts: sources and references by direction.
    """
    clusters: dict[Direction, int] = {}
    keys_of: dict[int, set[tuple[str, str]]] = {}
    for number, ((source, target), lines) in enumerate(texts.items()):
        keys = {(source, _digest(lines.sources)), (target, _digest(lines.references))}
        for other in [other for other in keys_of if keys & keys_of[other]]:
            keys |= keys_of.pop(other)
            clusters = {pair: number if c == other else c for pair, c in clusters.items()}
        keys_of[number] = keys
        clusters[source, target] = number
    return clusters


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _inputs(
    name: str, direction: Direction, texts: StoredTexts, tokenizer: FloresTokenizer | None
) -> ScoredTexts:
    """Return the metric, and the texts that it compares."""
    if name == "chrf":
        return CHRF(word_order=2), texts.hypotheses, texts.references
    if tokenizer is None:
        scheme = get_language(direction[1]).sacrebleu_tokenizer
        return BLEU(tokenize=scheme, force=True), texts.hypotheses, texts.references
    hypotheses = list(map(tokenizer, texts.hypotheses))
    return BLEU(tokenize="none", force=True), hypotheses, list(map(tokenizer, texts.references))


def _resample(inputs: ScoredTexts, cluster: int, samples: int) -> np.ndarray:
    """Resample the corpus score of a direction.

    sacreBLEU draws the same line numbers each time. An order of lines that depends on the cluster
    makes the samples of different clusters independent.
    """
    metric, hypotheses, references = inputs
    statistics = metric._extract_corpus_statistics(hypotheses, [references])
    order = np.random.default_rng(cluster).permutation(len(statistics))
    _, scores = _bootstrap_resample([statistics[line] for line in order], metric, samples)
    return np.array([score.score for score in scores], np.float32)


def _resample_ratios(result: RunResult, scored: Sequence[Direction], samples: int) -> Draws:
    """Resample ratios of sentences: the count in a resampled test set is binomial."""
    random = np.random.default_rng(0)
    items = {item.direction: item for item in result.directions}
    draws = {}
    for pair in scored:
        ratio, count = items[pair].off_target_lid, items[pair].sentences
        counts = random.binomial(count, (ratio or 0.0) / 100, samples)
        draws[pair] = (100 * counts / count).astype(np.float32)
    return draws
