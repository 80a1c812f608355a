"""Bootstrap over the sentences of an evaluation, with sacreBLEU's resampling.

Source: Koehn 2004, "Statistical significance tests for machine translation evaluation".

The score of a group is a mean over directions. Directions that share sentences (the same German
text in de-en and de-fr) are resampled together, since their errors are not independent; directions
of other sentences are resampled independently.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
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
_PARALLEL = 100  # number of directions from which several processes resample
_RATIOS = ("exact_match", "off_target_nearest", "off_target_lid")
METRICS = ("bleu", "spbleu", "chrf", *_RATIOS)
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
        The scores; none for spBLEU without its tokenizer. Sample i of two directions with common
        sentences, or of two evaluations of the same directions, has the same sentences. Off-target
        ratios and shares of exact matches are resampled from their counts, each direction
        independently.

    Raises:
        UserError: if the translations of a direction are missing or damaged.
    """
    scored = [pair for pair, score in result.values(metric).items() if score is not None]
    if metric in _RATIOS:
        return _resample_ratios(result, metric, scored, samples)
    if metric == "spbleu" and find_tokenizer(flores200_model) is None:
        return {}
    translations = folder / "translations"
    digests = {pair: _digests(read_stored_texts(translations, pair)) for pair in scored}
    clusters = shared_sentences(digests)
    if scorer is None and len(scored) >= _PARALLEL:
        pool = ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"))
    else:
        pool = None
    resample = functools.partial(
        _resample_direction, translations, metric, samples, flores200_model, scorer
    )
    with pool or contextlib.nullcontext():
        draws = (pool.map if pool else map)(resample, scored, [clusters[pair] for pair in scored])
        return dict(zip(scored, draws, strict=True))


def confidence_interval(draws: np.ndarray) -> tuple[float, float]:
    """Return the 95 % percentile interval of resampled scores, [samples]."""
    low, high = np.percentile(draws, (2.5, 97.5))
    return float(low), float(high)


def shared_sentences(digests: Mapping[Direction, tuple[str, str]]) -> dict[Direction, int]:
    """Return the number of each direction's cluster; directions with a common text share it.

    Args:
        digests: hashes of sources and references by direction.
    """
    clusters: dict[Direction, int] = {}
    keys_of: dict[int, set[tuple[str, str]]] = {}
    for number, (pair, hashes) in enumerate(digests.items()):
        keys = set(zip(pair, hashes, strict=True))
        for other in [other for other in keys_of if keys & keys_of[other]]:
            keys |= keys_of.pop(other)
            clusters = {pair: number if c == other else c for pair, c in clusters.items()}
        keys_of[number] = keys
        clusters[pair] = number
    return clusters


def _digests(texts: StoredTexts) -> tuple[str, str]:
    """Return hashes of the sources and of the references."""
    columns = ("\n".join(lines).encode() for lines in (texts.sources, texts.references))
    sources, references = (hashlib.sha256(text).hexdigest() for text in columns)
    return sources, references


def _resample_direction(
    translations: Path,
    metric: str,
    samples: int,
    flores200_model: Path | None,
    scorer: PaperScorer | None,
    direction: Direction,
    cluster: int,
) -> np.ndarray:
    """Resample the corpus score of a direction.

    sacreBLEU draws the same line numbers each time. An order of lines that depends on the cluster
    makes the samples of different clusters independent.
    """
    texts = read_stored_texts(translations, direction)
    if scorer is not None:
        prepared = scorer.texts(direction, texts.sources, texts.hypotheses, texts.references)
        inputs: ScoredTexts = scorer.bleu_inputs(direction, prepared)
    else:
        tokenizer = _tokenizer(flores200_model) if metric == "spbleu" else None
        inputs = _inputs(metric, direction, texts, tokenizer)
    scored_metric, hypotheses, references = inputs
    statistics = scored_metric._extract_corpus_statistics(hypotheses, [references])
    order = np.random.default_rng(cluster).permutation(len(statistics))
    shuffled = [statistics[line] for line in order]
    _, scores = _bootstrap_resample(shuffled, scored_metric, samples)
    return np.array([score.score for score in scores], np.float32)


_tokenizer = functools.cache(find_tokenizer)


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


def _resample_ratios(
    result: RunResult, metric: str, scored: Sequence[Direction], samples: int
) -> Draws:
    """Resample ratios of sentences: the count in a resampled test set is binomial."""
    random = np.random.default_rng(0)
    items = {item.direction: item for item in result.directions}
    draws = {}
    for pair in scored:
        ratio, count = getattr(items[pair], metric), items[pair].sentences
        counts = random.binomial(count, ratio / 100, samples)
        draws[pair] = (100 * counts / count).astype(np.float32)
    return draws
