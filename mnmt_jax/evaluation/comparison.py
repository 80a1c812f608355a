"""Groups of directions over which the scores of one or several evaluations are averaged."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mnmt_jax.errors import join_names, pluralize
from mnmt_jax.evaluation.averages import Average
from mnmt_jax.evaluation.result import DirectionResult, Metric, RunResult
from mnmt_jax.vocabulary.languages import Direction

ALL, SUPERVISED, ZERO_SHOT = "all", "supervised", "zero-shot"
_ORDER = (SUPERVISED, ZERO_SHOT)
_MOST = 6  # groups of which each is shown by itself

Items = Mapping[Direction, DirectionResult]


@dataclass(frozen=True)
class DirectionGroup:
    """Directions that are averaged together.

    Attributes:
        items: the results of each evaluation, in the evaluations' order.
        statuses: per evaluation, e.g. "supervised", "zero-shot" or "unseen language nl".
        comparable: all evaluations have the same directions and sentences.
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
        """The common status, or that models differ in it."""
        return f"{self.statuses[0]} or {self._others()}" if self.mixed else self.statuses[0]

    def _others(self) -> str:
        others = dict.fromkeys(status for status in self.statuses if status != self.statuses[0])
        return join_names(list(others), shown=2, separator=" or ")

    def directions(self, number: int) -> int:
        """Return the number of directions of an evaluation."""
        return len(self.items[number])

    def sentences(self, number: int) -> int:
        """Return the number of sentences of an evaluation, over all directions."""
        return sum(item.sentences for item in self.items[number].values())

    def mean(self, number: int, key: str) -> Average:
        """Average a metric over the directions of an evaluation.

        Args:
            number: of the evaluation.
            key: of the metric. In a comparable group a direction counts only if all evaluations
                have its score.
        """
        known = [item for item in self.items[number] if self._is_known(item, number, key)]
        values = [getattr(self.items[number][direction], key) for direction in known]
        return Average(sum(values) / len(values) if values else None, len(values))

    def _is_known(self, direction: Direction, number: int, key: str) -> bool:
        read = self.items if self.comparable else (self.items[number],)
        return all(getattr(items[direction], key) is not None for items in read)

    def best(self, metric: Metric) -> float | None:
        """Return the best mean of a metric; None if there is nothing to compare."""
        means = [self.mean(number, metric.key).mean for number in range(len(self.items))]
        known = [value for value in means if value is not None]
        if not self.comparable or len(means) < 2 or not known:
            return None
        return max(known) if metric.higher_is_better else min(known)


def common_directions(results: Sequence[RunResult]) -> frozenset[Direction]:
    """Return the directions that all evaluations have with the same sentences."""
    first, *others = [_items(result) for result in results]
    return frozenset(
        direction
        for direction, item in first.items()
        if all(_same_sentences(item, other.get(direction)) for other in others)
    )


def direction_groups(results: Sequence[RunResult]) -> tuple[DirectionGroup, ...]:
    """Group directions by whether each model was trained on them.

    Args:
        results: evaluations of one task.

    Returns:
        Of several evaluations the groups of the directions that all have with the same sentences.
        If there are none, groups of each evaluation's own directions, which are not comparable.
        All directions are one group if it is unknown which ones a model was trained on.
    """
    common = common_directions(results)
    every = [_items(result) for result in results]
    if not common:
        return tuple(_own_groups(results, every))
    by_status: dict[tuple[str, ...], list[Direction]] = {}
    for direction in every[0]:
        if direction in common:
            by_status.setdefault(_statuses(results, direction), []).append(direction)
    if len(by_status) > _MOST:
        by_status = _merged(by_status)
    rank = {status: number for number, status in enumerate(_ORDER)}
    return tuple(
        DirectionGroup(
            tuple({pair: items[pair] for pair in directions} for items in every),
            tuple(
                _summary(_status(result, results, pair) for pair in directions)
                for result in results
            ),
            comparable=True,
        )
        for _, directions in sorted(
            by_status.items(), key=lambda item: [rank.get(status, 2) for status in item[0]]
        )
    )


def comparison_notes(results: Sequence[RunResult]) -> list[str]:
    """Return what a reader of the means of several evaluations must know, a sentence each."""
    if len(results) < 2:
        return []
    common = common_directions(results)
    if not common:
        return [
            "No direction was evaluated on the same sentences by all: each mean is over the "
            "evaluation's own directions and sentences, and the means cannot be compared."
        ]
    notes = []
    detectors = dict.fromkeys(result.detector for result in results)
    if len(detectors) > 1:
        notes.append(
            f"The off-target ratios are by different language detectors ({', '.join(detectors)}) "
            "and cannot be compared."
        )
    union = dict.fromkeys(item.direction for result in results for item in result.directions)
    if left_out := ["-".join(pair) for pair in union if pair not in common]:
        notes.append(
            f"Left out of the means: {pluralize(len(left_out), 'direction')} not evaluated on the "
            f"same sentences by all ({join_names(left_out, shown=6)})."
        )
    return notes


def metric_notes(groups: Sequence[DirectionGroup], metrics: Sequence[Metric]) -> list[str]:
    """Return a sentence for each mean that is over fewer directions than its group has."""
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


def _items(result: RunResult) -> dict[Direction, DirectionResult]:
    return {item.direction: item for item in result.directions}


def _same_sentences(one: DirectionResult, other: DirectionResult | None) -> bool:
    if other is None or one.sentences != other.sentences:
        return False
    known = one.text_fingerprint and other.text_fingerprint
    return not known or one.text_fingerprint == other.text_fingerprint


def _statuses(results: Sequence[RunResult], direction: Direction) -> tuple[str, ...]:
    return tuple(_status(result, results, direction) for result in results)


def _status(result: RunResult, results: Sequence[RunResult], direction: Direction) -> str:
    """Return what a direction is to a model; "all" if that is unknown for one of the models."""
    trained = [other.supervised for other in results]
    if any(pairs is None for pairs in trained):
        return ALL
    supervised = result.supervised or frozenset()
    if direction in supervised:
        return SUPERVISED
    # A language that other models were trained on, and this one was not.
    known = {code for pair in supervised for code in pair}
    others = {code for pairs in trained for pair in pairs or () for code in pair}
    unseen = [code for code in direction if supervised and code in others - known]
    return f"unseen language {' '.join(sorted(unseen))}" if unseen else ZERO_SHOT


def _summary(statuses: Iterable[str]) -> str:
    """Return the status of several directions: the common one, or the number of each."""
    counts = Counter(statuses)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _merged(
    by_status: Mapping[tuple[str, ...], list[Direction]],
) -> dict[tuple[str, ...], list[Direction]]:
    """Merge the groups whose directions have different statuses in different models."""
    merged: dict[tuple[str, ...], list[Direction]] = {}
    for statuses, directions in by_status.items():
        key = statuses if len(set(statuses)) == 1 else ("mixed",)
        merged.setdefault(key, []).extend(directions)
    return merged


def _own_groups(results: Sequence[RunResult], every: Sequence[Items]) -> Iterable[DirectionGroup]:
    """Yield groups of each evaluation's own directions."""
    unknown = any(result.supervised is None for result in results)
    for status in (ALL,) if unknown else _ORDER:
        items = tuple(
            {
                pair: item
                for pair, item in own.items()
                if unknown or (pair in (result.supervised or ())) == (status == SUPERVISED)
            }
            for result, own in zip(results, every, strict=True)
        )
        if any(items):
            yield DirectionGroup(items, (status,) * len(results), comparable=False)


def with_common_directions(results: Sequence[RunResult]) -> list[RunResult]:
    """Return the evaluations with the directions that all have; as they are if there are none."""
    common = common_directions(results)
    if not common:
        return list(results)
    return [
        dataclasses.replace(
            result, directions=tuple(i for i in result.directions if i.direction in common)
        )
        for result in results
    ]
