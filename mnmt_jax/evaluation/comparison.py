"""Direction groups for averaging the scores of one or several evaluations."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mnmt_jax.errors import join_names, pluralize
from mnmt_jax.evaluation.averages import Average
from mnmt_jax.evaluation.neural_metrics import differing_models
from mnmt_jax.evaluation.result import (
    OPTIONAL_METRICS,
    DirectionResult,
    Metric,
    RunResult,
    TestSentence,
    is_undefined,
    name_detectors,
)
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.language_detectors import is_same_detector

ALL, SUPERVISED, ZERO_SHOT, UNSEEN = "all", "supervised", "zero-shot", "unseen language"
_STATUS_ORDER = (SUPERVISED, ZERO_SHOT, UNSEEN)
_MAX_GROUPS = 6  # maximal number of groups shown separately

Items = Mapping[Direction, DirectionResult]
_Training = tuple[frozenset[Direction] | None, Sequence[str] | None]
"""Supervised directions and trained languages, None if unknown."""


@dataclass(frozen=True)
class DirectionGroup:
    """A group of directions that are averaged together.

    Attributes:
        items: results by direction, one mapping per evaluation.
        statuses: status per evaluation, e.g. "supervised", "zero-shot" or "unseen language nl".
        comparable: whether all evaluations have the same directions and sentences.
    """

    items: tuple[Items, ...]
    statuses: tuple[str, ...]
    comparable: bool

    @property
    def mixed(self) -> bool:
        """Whether the directions are e.g. zero-shot for one model and supervised for another."""
        return len(set(self.statuses)) > 1

    @property
    def title(self) -> str:
        """The common status, or an enumeration of the statuses."""
        return f"{self.statuses[0]} or {self._other_statuses()}" if self.mixed else self.statuses[0]

    def _other_statuses(self) -> str:
        statuses = dict.fromkeys(status for status in self.statuses if status != self.statuses[0])
        return join_names(list(statuses), shown=2, separator=" or ")

    def directions(self, number: int) -> int:
        """Return the number of directions of an evaluation in the group."""
        return len(self.items[number])

    def sentences(self, number: int) -> int:
        """Return the number of sentences of an evaluation in the group."""
        return sum(item.sentences for item in self.items[number].values())

    def mean(self, number: int, key: str) -> Average:
        """Average a metric over the directions of an evaluation.

        Args:
            number: index of the evaluation.
            key: `Metric.key`. In a comparable group a direction counts only if all evaluations have
                its score.
        """
        values = [
            getattr(self.items[number][direction], key) for direction in self.scored(number, key)
        ]
        return Average(sum(values) / len(values) if values else None, len(values))

    def scored(self, number: int, key: str) -> list[Direction]:
        """List the directions that `mean` averages; the arguments are the same.

        There are none for the off-target ratio of an evaluation without any detected language.
        """
        if is_undefined(key, self.items[number].values()):
            return []
        return [pair for pair in self.items[number] if self._is_known(pair, number, key)]

    def _is_known(self, direction: Direction, number: int, key: str) -> bool:
        required = self.items if self.comparable else (self.items[number],)
        return all(getattr(items[direction], key) is not None for items in required)

    def best(self, metric: Metric) -> float | None:
        """Return the best mean of a metric; None if there is nothing to compare."""
        means = [self.mean(number, metric.key).mean for number in range(len(self.items))]
        known_means = [value for value in means if value is not None]
        if not self.comparable or len(means) < 2 or not known_means:
            return None
        return max(known_means) if metric.higher_is_better else min(known_means)


def common_directions(results: Sequence[RunResult]) -> frozenset[Direction]:
    """Return the directions that all evaluations scored on the same sentences."""
    baseline, *others = [_by_direction(result) for result in results]
    return frozenset(
        direction
        for direction, item in baseline.items()
        if all(_same_sentences(item, other.get(direction)) for other in others)
    )


def training_reference(results: Sequence[RunResult]) -> RunResult | None:
    """Return the first evaluation whose training directions are known; None if there is none."""
    return next((result for result in results if result.supervised is not None), None)


def direction_groups(results: Sequence[RunResult]) -> tuple[DirectionGroup, ...]:
    """Group directions by whether each model was trained on them.

    Args:
        results: evaluations of one task.

    Returns:
        Groups of the directions that all evaluations scored on the same sentences. If there are
        none, groups of the directions of each evaluation, which are not comparable. A model whose
        training directions are unknown is grouped as the first one where they are known. Without
        one, all directions form one group. The statuses of more than 6 groups do not name the
        unseen languages.
    """
    common = common_directions(results)
    all_items = [_by_direction(result) for result in results]
    if not common:
        return tuple(_separate_groups(results, all_items))
    training = [_training(result, results) for result in results]
    statuses = {
        pair: tuple(_status(pair, *known) for known in training)
        for pair in all_items[0]
        if pair in common
    }
    if len(set(statuses.values())) > _MAX_GROUPS:
        statuses = {pair: tuple(map(_kind, names)) for pair, names in statuses.items()}
    by_status: dict[tuple[str, ...], list[Direction]] = {}
    for pair, names in statuses.items():
        by_status.setdefault(names, []).append(pair)
    if len(by_status) > _MAX_GROUPS:
        by_status = _merge_mixed(by_status)
    rank = {status: number for number, status in enumerate(_STATUS_ORDER)}
    return tuple(
        DirectionGroup(
            tuple({pair: items[pair] for pair in directions} for items in all_items),
            tuple(
                _summarize_statuses(statuses[pair][number] for pair in directions)
                for number in range(len(results))
            ),
            comparable=True,
        )
        for _, directions in sorted(
            by_status.items(), key=lambda item: [rank.get(status, 2) for status in item[0]]
        )
    )


def common_groups(results: Sequence[RunResult]) -> set[str]:
    """Return the groups by training that have the same directions in all evaluations.

    Each evaluation is grouped by its own training.
    """
    directions, *others = [
        {group.title: group.items[0].keys() for group in direction_groups([result])}
        for result in results
    ]
    return {
        title for title, pairs in directions.items() if all(o.get(title) == pairs for o in others)
    }


def common_samples(results: Sequence[RunResult]) -> set[TestSentence]:
    """Return the sample sentences that all evaluations translated, with the same reference."""
    return set.intersection(*({sample.sentence for sample in result.samples} for result in results))


def comparison_notes(results: Sequence[RunResult]) -> list[str]:
    """Return notes on the comparability of the means of several evaluations."""
    if len(results) < 2:
        return []
    common, notes = common_directions(results), _training_notes(results)
    if not common:
        return [
            *notes,
            "No direction was evaluated on the same sentences by all: each mean is over the "
            "evaluation's own directions and sentences, and the means cannot be compared"
            f"{_limit_remedy(results)}.",
        ]
    notes += [*_detector_notes(results), *_model_notes(results)]
    if names := [result.name for result in results if "context" in result.decoding]:
        notes.append(
            f"Sentences of a chunk succeed or fail together, and count as independent: intervals "
            f"and p of {join_names(names, shown=6)}, translated with document context, are too "
            "small."
        )
    union = dict.fromkeys(item.direction for result in results for item in result.directions)
    if left_out := ["-".join(pair) for pair in union if pair not in common]:
        notes.append(
            f"Left out of the means: {pluralize(len(left_out), 'direction')} not evaluated on the "
            f"same sentences by all ({join_names(left_out, shown=6)})."
        )
    return notes


def _detector_notes(results: Sequence[RunResult]) -> Iterable[str]:
    """Yield a note for the first and the second off-target ratio if detectors differ."""
    second = [result.second_detector for result in results if result.second_detector]
    for ratios, signatures in (
        ("off-target ratios", [result.detector for result in results]),
        ("second off-target ratios", second),
    ):
        if any(not is_same_detector(*pair) for pair in itertools.combinations(signatures, 2)):
            yield (
                f"The {ratios} are by different language detectors ({name_detectors(signatures)}) "
                "and cannot be compared."
            )


def _model_notes(results: Sequence[RunResult]) -> Iterable[str]:
    """Yield a note for each optional metric whose signatures name several models."""
    for metric in OPTIONAL_METRICS:
        models = differing_models(result.signatures.get(metric.key) for result in results)
        if models:
            names = ", ".join(model.removeprefix("model:") for model in models)
            yield (
                f"{metric.title} is by models that are not known to be the same ({names}) and "
                "cannot be compared."
            )


def _limit_remedy(results: Sequence[RunResult]) -> str:
    """Return how evaluations become comparable, if one has fewer sentences of a direction."""
    counts: dict[Direction, set[int]] = {}
    for result in results:
        for item in result.directions:
            counts.setdefault(item.direction, set()).add(item.sentences)
    limits = [min(sizes) for sizes in counts.values() if len(sizes) > 1]
    return f"; evaluate all with --limit={min(limits)} in other folders" if limits else ""


def _training_notes(results: Sequence[RunResult]) -> list[str]:
    """Return a note on how directions are grouped if the training of some models is unknown."""
    unknown = [result.name for result in results if result.supervised is None]
    reference = training_reference(results)
    if not unknown or not reference:
        return []
    remedy = "'mnmt evaluate --trained_on' names them"
    how = "not grouped by training"
    if common_directions(results):
        how = f"grouped by the training of {reference.name}"
    return [
        f"Directions are {how}: the training directions of {join_names(unknown, shown=6)} are "
        f"unknown; {remedy}."
    ]


def limit_notes(results: Sequence[RunResult]) -> list[str]:
    """Return a note for each limit of the sentences of a direction (`--limit`)."""
    names: dict[str, list[str]] = {}
    for result in results:
        if text := result.signatures.get("sentences"):
            names.setdefault(str(text), []).append(result.name)
    return [
        f"Sentences: {text}{'' if len(these) == len(results) else f' ({join_names(these)})'}."
        for text, these in names.items()
    ]


def metric_notes(groups: Sequence[DirectionGroup], metrics: Sequence[Metric]) -> list[str]:
    """Return a note for each mean over fewer directions than its group has."""
    notes = []
    for group in groups:
        for metric in metrics:
            counts = {
                (group.mean(number, metric.key).directions, group.directions(number))
                for number in range(len(group.items))
            }
            notes += [
                f"{metric.title}, {group.title}: mean over {count} of "
                f"{pluralize(directions, 'direction')}, the others have no score."
                for count, directions in sorted(counts)
                if 0 < count < directions
            ]
    return notes


def _by_direction(result: RunResult) -> dict[Direction, DirectionResult]:
    return {item.direction: item for item in result.directions}


def _same_sentences(result: DirectionResult, other: DirectionResult | None) -> bool:
    if other is None or result.sentences != other.sentences:
        return False
    both_known = result.text_fingerprint and other.text_fingerprint
    return not both_known or result.text_fingerprint == other.text_fingerprint


def _training(result: RunResult, results: Sequence[RunResult]) -> _Training:
    """Return the training by which the directions of an evaluation are grouped."""
    known = result if result.supervised is not None else training_reference(results)
    return (known.supervised, known.trained_languages) if known else (None, None)


def _status(
    direction: Direction, supervised: frozenset[Direction] | None, languages: Sequence[str] | None
) -> str:
    """Return the status of a direction; "all" if the training is unknown."""
    if supervised is None:
        return ALL
    if direction in supervised:
        return SUPERVISED
    unseen = [] if languages is None else sorted({*direction}.difference(languages))
    return f"{UNSEEN} {' '.join(unseen)}" if unseen else ZERO_SHOT


def _kind(status: str) -> str:
    """Return a status without the names of unseen languages."""
    return UNSEEN if status.startswith(UNSEEN) else status


def _summarize_statuses(statuses: Iterable[str]) -> str:
    """Return the common status of several directions, or the number of directions by status."""
    counts = Counter(statuses)
    kinds = Counter(map(_kind, counts.elements()))
    for common in (counts, kinds):
        if len(common) == 1:
            return next(iter(common))
    shown = kinds if len(counts) > _MAX_GROUPS else counts
    ordered = sorted(shown, key=lambda status: (_STATUS_ORDER.index(_kind(status)), status))
    return ", ".join(f"{shown[status]} {status}" for status in ordered)


def _merge_mixed(
    by_status: Mapping[tuple[str, ...], list[Direction]],
) -> dict[tuple[str, ...], list[Direction]]:
    """Merge the groups of unseen languages, and those whose status differs between models."""
    merged: dict[tuple[str, ...], list[Direction]] = {}
    for names, directions in by_status.items():
        statuses = tuple(map(_kind, names))
        key = statuses if len(set(statuses)) == 1 else ("mixed",)
        merged.setdefault(key, []).extend(directions)
    return merged


def _separate_groups(
    results: Sequence[RunResult], all_items: Sequence[Items]
) -> Iterable[DirectionGroup]:
    """Yield groups of the directions of each evaluation, not comparable."""
    unknown = any(result.supervised is None for result in results)
    training = [(None, None) if unknown else _training(result, ()) for result in results]
    for status in (ALL,) if unknown else _STATUS_ORDER:
        items = tuple(
            {pair: item for pair, item in by_pair.items() if _kind(_status(pair, *known)) == status}
            for known, by_pair in zip(training, all_items, strict=True)
        )
        if any(items):
            yield DirectionGroup(items, (status,) * len(results), comparable=False)


def with_common_directions(results: Sequence[RunResult]) -> list[RunResult]:
    """Return the evaluations restricted to their common directions; unchanged without any."""
    common = common_directions(results)
    if not common:
        return list(results)
    return [
        dataclasses.replace(
            result, directions=tuple(i for i in result.directions if i.direction in common)
        )
        for result in results
    ]
