"""All scores of one direction, and the translations of it to show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mnmt_jax.data.pair_checks import has_words_on_one_side
from mnmt_jax.evaluation.benchmark import Benchmark, TestSet
from mnmt_jax.evaluation.metrics import Scores, corpus_scores
from mnmt_jax.evaluation.result import DirectionResult, Sample
from mnmt_jax.evaluation.translations import TranslatedSentence
from mnmt_jax.vocabulary.languages import Direction
from mnmt_jax.vocabulary.unknown_characters import describe_unknown

SAMPLE_DIRECTIONS = 24
SAMPLES = 5  # sentences shown per direction


@dataclass(frozen=True)
class ScoredDirection:
    """Holds what there is to say about one direction.

    Attributes:
        result: the numbers.
        scores: the quality scores with their signatures.
        samples: a few of its translations.
    """

    result: DirectionResult
    scores: Scores
    samples: tuple[Sample, ...]


def score_direction(
    direction: Direction,
    texts: TestSet,
    *,
    outputs: Sequence[TranslatedSentence],
    benchmark: Benchmark,
    supervised: Collection[Direction] | None,
    first_sample: int = 0,
) -> ScoredDirection:
    """Score the translations of one direction.

    Args:
        direction: source and target.
        texts: its sentences.
        outputs: their translations.
        benchmark: has the language detector, and the exact one if there is one.
        supervised: directions trained on; None if unknown.
        first_sample: number of the first sentence to show; counted on from the start at the end.
    """
    source, target = direction
    hypotheses = [output.text for output in outputs]
    scores = corpus_scores(hypotheses, texts.references, target)
    lid = benchmark.detector.off_target(hypotheses, target)
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
        off_target_lid_reference=benchmark.detector.off_target(texts.references, target).ratio,
        empty=sum(not text.strip() for text in hypotheses),
        unknown_characters=unknown.total(),
        detected=dict(Counter(detected).most_common()),
        notes=tuple(note for note in notes if note),
        text_fingerprint=texts.fingerprint,
    )
    rows = list(zip(texts.sources, hypotheses, texts.references, detected, strict=True))
    shown = sorted({(first_sample + place) % len(rows) for place in range(SAMPLES)})
    samples = [Sample(source, target, index, *rows[index]) for index in shown]
    return ScoredDirection(result, scores, tuple(samples))


def _text_notes(
    texts: TestSet, outputs: Sequence[TranslatedSentence], unknown: Counter[str]
) -> list[str]:
    """Say what is odd about the texts themselves."""
    cut = sum(output.truncated for output in outputs)
    alone = sum(map(has_words_on_one_side, texts.sources, texts.references))
    return [
        f"{cut} sources were too long and were cut" if cut else "",
        f"sources with characters unknown to the vocabulary, {describe_unknown(unknown)}"
        if unknown
        else "",
        f"{alone} pairs have words on one side alone, the other is punctuation" if alone else "",
    ]


def sampled_directions(
    directions: Sequence[Direction], supervised: Collection[Direction] | None
) -> frozenset[Direction]:
    """Choose directions to show samples of: a few of all kinds, zero-shot ones first.

    Args:
        directions: what was evaluated.
        supervised: directions trained on; None if unknown.
    """
    trained = [pair for pair in directions if supervised is not None and pair in supervised]
    others = [pair for pair in directions if pair not in set(trained)]
    rest = max(SAMPLE_DIRECTIONS - len(others), SAMPLE_DIRECTIONS // 4 if trained else 0)
    chosen = _evenly(trained, rest)
    return frozenset([*chosen, *_evenly(others, SAMPLE_DIRECTIONS - len(chosen))])


def _evenly(pairs: Sequence[Direction], count: int) -> list[Direction]:
    """Take at most `count` items at even distances."""
    if len(pairs) <= count:
        return list(pairs)
    return [pairs[index * len(pairs) // count] for index in range(count)]
