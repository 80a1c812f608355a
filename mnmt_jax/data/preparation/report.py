"""Counts of the pairs that the steps of a preparation dropped."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping

from mnmt_jax.data.preparation import passes
from mnmt_jax.data.preparation.passes import Group, Job
from mnmt_jax.data.preparation.stages import EXAMPLES


@dataclasses.dataclass(frozen=True)
class GroupCounts:
    """What was dropped of the text of two languages.

    Attributes:
        group: split and languages.
        unclean: lines that were not read as a pair, by reason.
        read: clean pairs before the first step.
        kept: pairs after the last step.
        dropped: label of a step -> number of dropped pairs.
        examples: label of a step -> first dropped pairs.
    """

    group: Group
    unclean: Mapping[str, int]
    read: int
    kept: int
    dropped: Mapping[str, int]
    examples: Mapping[str, list[tuple[str, str]]]


@dataclasses.dataclass(frozen=True)
class StepCounts:
    """What a step dropped in all groups.

    Attributes:
        label: number and name of the step.
        reached: pairs that reached it.
        dropped: pairs that it dropped.
        examples: languages, first and second sentence of the first dropped pairs.
    """

    label: str
    reached: int
    dropped: int
    examples: tuple[tuple[str, str, str], ...]


def sum_chunks(job: Job, group: Group) -> GroupCounts:
    """Return the counts of all chunks of a group."""
    dropped: dict[str, int] = {}
    examples: dict[str, list[tuple[str, str]]] = {}
    kept = 0
    for stage in range(len(job.stages_of(group.split))):
        chunks = passes.chunk_facts(job, group, stage)
        kept = sum(facts["pairs"] for facts in chunks)
        for facts in chunks:
            for label, count in facts["dropped"].items():
                dropped[label] = dropped.get(label, 0) + count
            for label, pairs in facts["examples"].items():
                first = examples.setdefault(label, [])
                first += [(one, other) for one, other in pairs][: EXAMPLES - len(first)]
    unclean, read = passes.unclean_lines(job, group), sum(passes.chunk_sizes(job, group))
    return GroupCounts(group, unclean, read, kept, dropped, examples)


def sum_groups(labels: Iterable[str], counts: Iterable[GroupCounts]) -> list[StepCounts]:
    """Return what each step dropped in the training text of all groups.

    Args:
        labels: labels of the steps that drop pairs, in order.
        counts: counts of the groups.
    """
    training = [item for item in counts if item.group.split == "train"]
    reached, sums = sum(item.read for item in training), []
    for label in labels:
        dropped = sum(item.dropped.get(label, 0) for item in training)
        examples = itertools.islice(_in_turn(training, label), EXAMPLES)
        sums.append(StepCounts(label, reached, dropped, tuple(examples)))
        reached -= dropped
    return sums


def _in_turn(counts: Iterable[GroupCounts], label: str) -> Iterator[tuple[str, str, str]]:
    """Yield the first dropped pair of a step in each group, then the second, ..."""
    columns = [
        [("-".join(item.group.languages), *pair) for pair in item.examples.get(label, ())]
        for item in counts
    ]
    for examples in itertools.zip_longest(*columns):
        yield from (example for example in examples if example)
