"""Scoring of one direction, and selection of sample translations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mnmt_jax.data.document_context import WITHOUT_CONTEXT
from mnmt_jax.data.pair_checks import has_words_on_one_side
from mnmt_jax.decoding.guards import is_copy, is_empty, is_repetitive, must_differ_from_source
from mnmt_jax.errors import pluralize
from mnmt_jax.evaluation.benchmark import Benchmark, TestSet
from mnmt_jax.evaluation.metrics import Scores, corpus_scores, is_exact
from mnmt_jax.evaluation.off_target import OffTargetResult, detect_off_target
from mnmt_jax.evaluation.result import DirectionResult, Sample
from mnmt_jax.evaluation.sentence_statistics import MetricStatistics, mean_statistics
from mnmt_jax.evaluation.translations import TranslatedSentence
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.language_detectors import LanguageDetector
from mnmt_jax.vocabulary.unknown_characters import describe_unknown

SAMPLE_DIRECTIONS = 24
SAMPLES = 5  # number of sentences shown per direction


@dataclass(frozen=True)
class ScoredDirection:
    """Result of one direction with signatures and sample translations.

    Attributes:
        result: all scores.
        scores: the quality scores with their signatures.
        samples: sample translations.
        statistics: statistics of the sentences by metric.
    """

    result: DirectionResult
    scores: Scores
    samples: tuple[Sample, ...]
    statistics: MetricStatistics


def score_direction(
    direction: Direction,
    texts: TestSet,
    *,
    outputs: Sequence[TranslatedSentence],
    benchmark: Benchmark,
    supervised: Collection[Direction] | None,
    has_context: bool = False,
    has_vocabulary: bool = True,
) -> ScoredDirection:
    """Score the translations of one direction.

    Args:
        direction: source and target.
        texts: the test set.
        outputs: translations of its sources.
        benchmark: benchmark with the language detectors.
        supervised: directions that the model was trained on; None if unknown.
        has_context: whether documents were translated with context.
        has_vocabulary: whether characters without a piece in the model's vocabulary are known.
    """
    source, target = direction
    hypotheses = [output.text for output in outputs]
    scores = corpus_scores(hypotheses, texts.references, target)
    lid, reference_lid = (
        detect_off_target(benchmark.detector, lines, target)
        for lines in (hypotheses, texts.references)
    )
    nearest = benchmark.nearest.off_target(hypotheses, target) if benchmark.nearest else None
    detected = (nearest or lid).detected
    unknown = Counter("".join(output.unknown_characters for output in outputs))
    notes = [scores.note, lid.note, *_text_notes(texts, outputs, unknown)]
    result = DirectionResult(
        source=source,
        target=target,
        supervised=None if supervised is None else direction in supervised,
        sentences=scores.sentences,
        bleu=scores.bleu,
        chrf=scores.chrf,
        exact_match=scores.exact_match,
        off_target_nearest=nearest.ratio if nearest else None,
        off_target_lid=lid.ratio,
        off_target_lid_reference=reference_lid.ratio,
        unknown_characters=unknown.total() if has_vocabulary else None,
        detected=dict(Counter(detected).most_common()),
        notes=tuple(note for note in notes if note),
        text_fingerprint=texts.fingerprint,
        without_context=sum(item.without_context for item in outputs) if has_context else None,
        **_flags(direction, texts, hypotheses, benchmark),
        **_joint_ratios("", benchmark.second_detector, lid, hypotheses, target),
        **_joint_ratios(
            "_reference", benchmark.second_detector, reference_lid, texts.references, target
        ),
    )
    rows = list(zip(texts.sources, hypotheses, texts.references, detected, strict=True))
    first_sample = SAMPLES * benchmark.number(direction)
    sample_indices = sorted({(first_sample + offset) % len(rows) for offset in range(SAMPLES)})
    samples = [Sample(source, target, index, *rows[index]) for index in sample_indices]
    exact = [100 * is_exact(*pair) for pair in zip(hypotheses, texts.references, strict=True)]
    statistics = {**scores.statistics, "exact_match": mean_statistics(exact)}
    ratios = {"off_target_lid": lid, "off_target_nearest": nearest}
    statistics |= _ratio_statistics(ratios, target)
    return ScoredDirection(result, scores, tuple(samples), statistics)


def _flags(
    direction: Direction, texts: TestSet, hypotheses: Sequence[str], benchmark: Benchmark
) -> dict[str, Any]:
    """Return the fields of quality flags of a result."""
    source, target = direction
    pairs = list(zip(texts.sources, hypotheses, strict=True))
    may_copy = not must_differ_from_source(benchmark.detector, source, target)
    characters = sum(map(len, texts.references))
    return {
        "empty": sum(not output.strip() or is_empty(text, output) for text, output in pairs),
        "copied": 0 if may_copy else sum(is_copy(*pair) for pair in pairs),
        "repeated": sum(is_repetitive(text, source, output, target) for text, output in pairs),
        "length_ratio": 100 * sum(map(len, hypotheses)) / characters if characters else None,
    }


def _joint_ratios(
    suffix: str,
    detector: LanguageDetector | None,
    first: OffTargetResult,
    lines: Sequence[str],
    target: str,
) -> dict[str, Any]:
    """Return the fields of a second detector's ratio of some lines, and of both detectors'.

    Args:
        suffix: end of the names of the fields.
        detector: the second detector; None for no fields.
        first: what the first detector finds.
        lines: hypotheses or references.
        target: code of the language that they should be in.
    """
    if detector is None:
        return {}
    second = detect_off_target(detector, lines, target)
    pairs = zip(first.detected, second.detected, strict=True)
    both = sum(not {"", target}.intersection(codes) for codes in pairs)
    is_known = None not in (first.ratio, second.ratio)
    return {
        f"off_target_second{suffix}": second.ratio,
        f"off_target_both{suffix}": 100 * both / len(lines) if is_known else None,
    }


def _ratio_statistics(
    results: Mapping[str, OffTargetResult | None], target_language: str
) -> dict[str, np.ndarray]:
    """Return the statistics of off-target ratios, of those that were computed."""
    return {
        name: mean_statistics(
            [100 * (code not in ("", target_language)) for code in result.detected]
        )
        for name, result in results.items()
        if result is not None and result.ratio is not None
    }


def _text_notes(
    texts: TestSet, outputs: Sequence[TranslatedSentence], unknown: Counter[str]
) -> list[str]:
    """Return notes on irregularities of the texts; empty strings for none."""
    truncated_count = sum(output.truncated for output in outputs)
    alone_count = sum(output.without_context for output in outputs)
    one_sided_count = sum(map(has_words_on_one_side, texts.sources, texts.references))
    return [
        f"{truncated_count} sources were too long and were cut" if truncated_count else "",
        f"{pluralize(alone_count, 'source')} {WITHOUT_CONTEXT}" if alone_count else "",
        f"sources with characters unknown to the vocabulary, {describe_unknown(unknown)}"
        if unknown
        else "",
        f"{one_sided_count} pairs have words on one side alone, the other is punctuation"
        if one_sided_count
        else "",
    ]


def sampled_directions(
    directions: Sequence[Direction], supervised: Collection[Direction] | None
) -> frozenset[Direction]:
    """Choose directions for samples: supervised and zero-shot ones, mainly the latter.

    Args:
        directions: the evaluated directions.
        supervised: directions that the model was trained on; None if unknown.
    """
    trained = [pair for pair in directions if supervised is not None and pair in supervised]
    others = [pair for pair in directions if pair not in set(trained)]
    trained_count = max(SAMPLE_DIRECTIONS - len(others), SAMPLE_DIRECTIONS // 4 if trained else 0)
    sampled = _evenly_spaced(trained, trained_count)
    return frozenset([*sampled, *_evenly_spaced(others, SAMPLE_DIRECTIONS - len(sampled))])


def _evenly_spaced(pairs: Sequence[Direction], count: int) -> list[Direction]:
    """Select at most `count` evenly spaced directions."""
    if len(pairs) <= count:
        return list(pairs)
    return [pairs[index * len(pairs) // count] for index in range(count)]
