"""Weights of tasks by patterns of their names or directions, which may change during a training."""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Collection, Mapping, Sequence

from mnmt_jax.data.cache import CachedTask
from mnmt_jax.data.mixing_schedule import Stage
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.vocabulary.language_codes import find_code, split_direction

Rule = tuple[str, float, int]  # pattern, weight, first pair


def weigh_tasks(
    rules: Sequence[Rule], tasks: Mapping[str, CachedTask], chunk_examples: int
) -> tuple[tuple[str, ...], tuple[Stage, ...]]:
    """Return the tasks to train on, and their weights by stage.

    The weights of all patterns that match a task are multiplied. A weight holds from its first
    pair, rounded up to a chunk, until a later one of the same pattern replaces it. Tasks whose
    weight is 0 throughout are left out.

    Args:
        rules: patterns (`*`, `?` and `[...]`) of task names or of directions such as `de-en`, with
            weights and the number of drawn pairs from which they hold. A side of a direction is a
            pattern, or a code of any form.
        tasks: tasks by name.
        chunk_examples: pairs per chunk.

    Returns:
        The names of the tasks, and the stages, the first from chunk 0; () if there are no rules.

    Raises:
        UserError: if a pattern matches no task or is ambiguous, or all weights of a stage are 0.
    """
    if not rules:
        return tuple(tasks), ()
    rules = [(_in_task_codes(pattern, tasks), weight, pair) for pattern, weight, pair in rules]
    first_pairs = sorted({0, *(first_pair for _, _, first_pair in rules)})
    weights = [_weights(rules, tasks, first_pair) for first_pair in first_pairs]
    for first_pair, stage_weights in zip(first_pairs, weights, strict=True):
        if not any(stage_weights):
            raise UserError(f"Data.weights: from pair {first_pair:,} on, all tasks have weight 0")
    trained = [number for number, column in enumerate(zip(*weights, strict=True)) if any(column)]
    names = list(tasks)
    return tuple(names[number] for number in trained), tuple(
        Stage(-(-first_pair // chunk_examples), tuple(stage_weights[n] for n in trained))
        for first_pair, stage_weights in zip(first_pairs, weights, strict=True)
    )


def _weights(
    rules: Sequence[Rule], tasks: Mapping[str, CachedTask], first_pair: int
) -> tuple[float, ...]:
    current: dict[str, tuple[int, float]] = {}
    for pattern, weight, start in rules:
        if current.get(pattern, (0, 1.0))[0] <= start <= first_pair:
            current[pattern] = start, weight
    return tuple(
        math.prod(w for pattern, (_, w) in current.items() if _matches(pattern, task))
        for task in tasks.values()
    )


def _in_task_codes(pattern: str, tasks: Mapping[str, CachedTask]) -> str:
    """Return a pattern with the tasks' own codes, for a direction in codes of other forms.

    Raises:
        UserError: if it matches no task, or is ambiguous.
    """
    if _matches_any(pattern, tasks):
        return pattern
    directions = dict.fromkeys(map(_direction, tasks.values()))
    languages = ((task.source_lang, task.target_lang) for task in tasks.values())
    codes = dict.fromkeys(itertools.chain(*languages))
    try:
        pairs = [[_in_codes(side, codes) for side in sides] for sides in split_direction(pattern)]
    except UserError as error:
        raise UserError(f"Data.weights: '{pattern}': {error}") from None
    candidates = dict.fromkeys("-".join(pair) for pair in pairs)
    matching = [candidate for candidate in candidates if _matches_any(candidate, tasks)]
    if len(matching) > 1:
        raise UserError(
            f"Data.weights: '{pattern}' is ambiguous; write codes with '_', such as "
            f"{' or '.join(matching)}"
        )
    if not matching:
        raise UserError(
            f"Data.weights: '{pattern}' is the name or direction of no training task; they are "
            f"{join_names(list(tasks), 3)}, in the directions {join_names(list(directions))}"
        )
    return matching[0]


def _in_codes(side: str, codes: Collection[str]) -> str:
    """Return the code in a list that a side of a direction means; patterns stay."""
    return side if set("*?[").intersection(side) else find_code(side, codes) or side


def _matches_any(pattern: str, tasks: Mapping[str, CachedTask]) -> bool:
    return any(_matches(pattern, task) for task in tasks.values())


def _matches(pattern: str, task: CachedTask) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (task.name, _direction(task)))


def _direction(task: CachedTask) -> str:
    return f"{task.source_lang}-{task.target_lang}"
