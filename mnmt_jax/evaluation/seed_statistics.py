"""Statistics over seeds: mean, range, sample variance, and significance tests.

The unit of observation is a training run: one score per seed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os.path
import re
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from mnmt_jax.decoding.search_settings import without_batch
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.evaluation.comparison import direction_groups
from mnmt_jax.evaluation.result import RunResult
from mnmt_jax.evaluation.result_tables import leading_metrics
from mnmt_jax.files.json_objects import differing_keys
from mnmt_jax.pages.markdown_tables import format_difference, format_score, markdown_table

SEED_HEADER = ("system", "directions", "metric", "seeds", "mean", "range", "variance") + (
    "difference to the first",
    "p",
)
_EXPLANATION = (
    "Each seed is a training run. 95 % intervals of differences are Welch's, p is that of the "
    "exact permutation test over seeds"
)
_MAX_PERMUTATIONS = 200_000
_ROUNDING = 1e-12


@dataclasses.dataclass(frozen=True)
class SeedSummary:
    """Summary of the scores of one system over seeds.

    Attributes:
        count: number of seeds.
        mean: arithmetic mean.
        low: smallest score.
        high: largest score.
        variance: sample variance (n - 1); None for a single seed.
    """

    count: int
    mean: float
    low: float
    high: float
    variance: float | None


@dataclasses.dataclass(frozen=True)
class MeanDifference:
    """The difference of two systems' mean scores.

    Attributes:
        mean: mean of the first system minus mean of the second.
        low: lower end of the 95 % confidence interval; None if a system has one seed.
        high: upper end of the interval; None if a system has one seed.
        p: two-sided p of the exact permutation test; None if there are too many permutations or
            a system has one seed.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None


def summarize_scores(scores: Sequence[float]) -> SeedSummary:
    """Summarize the scores of one system.

    Args:
        scores: one per seed.

    Raises:
        UserError: if there is no score.
    """
    if not scores:
        raise UserError("no score: evaluate at least one seed")
    variance = statistics.variance(scores) if len(scores) > 1 else None
    return SeedSummary(len(scores), statistics.fmean(scores), min(scores), max(scores), variance)


def compare_means(first: Sequence[float], second: Sequence[float]) -> MeanDifference:
    """Compare the scores of two systems that were trained independently.

    Args:
        first: scores of the first system, one per seed.
        second: scores of the second system, one per seed; the number of seeds may differ.

    Returns:
        The difference of the means, Welch's interval (unequal variances), and p of the permutation
        test: the share of all divisions of the scores into groups of these sizes whose means differ
        at least as much, in either direction. Its minimum is 1 / (n + m choose n), twice that with
        equal numbers of seeds: 0.1 with three seeds per system, 0.008 with five.

    Raises:
        UserError: if a system has no score.
    """
    mean = summarize_scores(first).mean - summarize_scores(second).mean
    low, high = _welch_interval(first, second)
    return MeanDifference(mean, low, high, _permutation_p(first, second))


def _welch_interval(
    first: Sequence[float], second: Sequence[float]
) -> tuple[float, float] | tuple[None, None]:
    """Return Welch's 95 % interval of the difference of two means."""
    if min(len(first), len(second)) < 2:
        return None, None
    difference = statistics.fmean(first) - statistics.fmean(second)
    squares = [statistics.variance(scores) / len(scores) for scores in (first, second)]
    if not any(squares):
        return difference, difference
    from scipy import stats

    terms = (s**2 / (len(x) - 1) for s, x in zip(squares, (first, second), strict=True))
    degrees_of_freedom = sum(squares) ** 2 / sum(terms)
    half = float(stats.t.ppf(0.975, degrees_of_freedom)) * math.sqrt(sum(squares))
    return difference - half, difference + half


def _permutation_p(first: Sequence[float], second: Sequence[float]) -> float | None:
    count = math.comb(len(first) + len(second), len(first))
    if count > _MAX_PERMUTATIONS or min(len(first), len(second)) < 2:
        return None
    # The means of a division differ in proportion to its first sum minus that sum's expectation.
    pooled, size = (*first, *second), len(first)
    expected = math.fsum(pooled) * size / len(pooled)
    observed = abs(math.fsum(first) - expected)
    tolerance = _ROUNDING * max(map(abs, pooled))
    divisions = itertools.combinations(pooled, size)
    extreme = sum(abs(math.fsum(d) - expected) >= observed - tolerance for d in divisions)
    return extreme / count


def group_by_seed(results: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """Group evaluations whose runs have the same configuration, except for the seed.

    Args:
        results: evaluations of one task.

    Returns:
        The evaluations of each system, sorted by seed; systems are in order of their first
        evaluation. Paths of a configuration are also equal if they differ in the seed's number
        alone, such as `distilled/seed1/cache`. The best checkpoints, averages and other checkpoints
        of runs are different systems. The name of a system is the common prefix of its runs' names,
        with the choice of the checkpoint if another system has it. An evaluation without a training
        configuration, such as that of translations of another system, is a system of its own.

    Raises:
        UserError: if a system has two evaluations with the same seed.
    """
    groups: list[list[RunResult]] = []
    for result in results:
        matching = (group for group in groups if _is_same_system(group[0], result))
        if (group := next(matching, None)) is None:
            groups.append([result])
        else:
            group.append(result)
    by_system: dict[str, list[RunResult]] = {}
    for group in groups:
        seeds = Counter(_seed(result) for result in group)
        if len(seeds) < len(group):
            names = [result.name for result in group if seeds[_seed(result)] > 1]
            steps = {_checkpoint(result) for result in group if seeds[_seed(result)] > 1}
            hint = f", or compare {join_names(sorted(steps))} without --by_seed"
            raise UserError(
                f"{join_names(names)}: evaluations of one configuration and seed; name each run "
                f"once{hint if len(steps) > 1 else ''}"
            )
        name = _system_name(group, by_system)
        by_system[name] = sorted(group, key=lambda result: _seed(result) or 0)
    return by_system


def _system_name(group: Sequence[RunResult], taken: Collection[str]) -> str:
    """Return a name of a system that is not taken."""
    name = _name_stem(os.path.commonprefix([result.name for result in group]))
    name = name if name and len(group) > 1 else group[0].name
    choice = _checkpoint_choice(group[0])
    names = [name, *([f"{name} ({choice})"] if choice else []), f"{name} ({len(taken) + 1})"]
    return next(text for text in names if text not in taken)


def single_seed_evaluations(
    results: Sequence[RunResult], groups: Mapping[str, Sequence[RunResult]]
) -> list[int]:
    """Return the numbers of evaluations that are the only one of their system.

    Args:
        results: the evaluations.
        groups: the same evaluations by system; without any, each is a system of its own.
    """
    lone = [members[0] for members in groups.values() if len(members) == 1]
    return [
        number
        for number, result in enumerate(results)
        if not groups or any(result is one for one in lone)
    ]


def explain_seeds(groups: Mapping[str, Sequence[RunResult]]) -> str:
    """Return sentences for readers: the tests, and the smallest p that they can give.

    Args:
        groups: evaluations of each system, one per seed; the first system is the baseline.
    """
    first, *others = map(len, groups.values())
    limits = [
        (2 if first == count else 1) / math.comb(first + count, first)
        for count in others
        if min(first, count) > 1
    ]
    smallest = f" and at least {min(limits):.2g} with these numbers of seeds" if limits else ""
    return f"{_EXPLANATION}{smallest}."


def seed_notes(groups: Mapping[str, Sequence[RunResult]]) -> list[str]:
    """Return notes on names whose runs are different systems, and on systems of several steps.

    Args:
        groups: evaluations of each system, as `group_by_seed` names them.
    """
    by_stem: dict[str, dict[str, RunResult]] = {}
    for name, (first, *_) in groups.items():
        if _seed(first) is not None:
            by_stem.setdefault(_name_stem(name), {})[name] = first
    different = [
        f"{join_names(list(systems))} are not seeds of one system: they differ in "
        f"{join_names(_differing_settings(list(systems.values())), shown=4)}."
        for systems in by_stem.values()
        if len(systems) > 1
    ]
    steps = {name: [_checkpoint(result) for result in group] for name, group in groups.items()}
    return different + [
        f"{name}: the seeds have different numbers of updates ({join_names(checkpoints)})."
        for name, checkpoints in steps.items()
        if not _checkpoint_choice(groups[name][0]) and len(set(checkpoints)) > 1
    ]


def _differing_settings(results: Sequence[RunResult]) -> list[str]:
    """Return the names of settings, other than the seed, in which evaluations differ."""
    first, *others = (
        {
            **r.settings,
            **{f"decode.{n}": v for n, v in (r.decoding_overrides or {}).items()},
            "checkpoint": _checkpoint_choice(r),
            "decode.batch": None,
        }
        for r in results
    )
    names = dict.fromkeys(name for other in others for name in differing_keys(first, other))
    return [name for name in names if name != "train.seed"]


def _name_stem(name: str) -> str:
    """Return a run's name without the number at its end."""
    return name.rstrip("0123456789").rstrip("_-")


def _seed(result: RunResult) -> int | None:
    """Return the seed of the training; None if its configuration is unknown, as of an import."""
    if not result.config.get("data", {}).get("cache", "unknown"):
        return None
    seed = result.config.get("train", {}).get("seed")
    return None if seed is None else int(seed)


def _is_same_system(first: RunResult, second: RunResult) -> bool:
    """Return whether two evaluations differ in the seed alone, also in its number in paths."""
    seeds = _seed(first), _seed(second)
    settings = [
        (
            without_batch(
                {**result.config, "train": {**result.config.get("train", {}), "seed": None}}
            ),
            result.decoding_overrides and without_batch(result.decoding_overrides),
            _checkpoint_choice(result),
        )
        for result in (first, second)
    ]
    return None not in seeds and _are_equal(settings[0], settings[1], seeds)


def _checkpoint_choice(result: RunResult) -> str:
    """Return how the checkpoint was chosen: "best", "average", or "" for a step."""
    choice, separator, _ = _checkpoint(result).partition(", ")
    return choice if separator else ""


def _checkpoint(result: RunResult) -> str:
    """Return the checkpoint, such as "step 3000" or "best, step 3000"; empty if it is unknown."""
    return str(result.decoding.get("checkpoint", ""))


def _are_equal(first: Any, second: Any, seeds: tuple[int | None, int | None]) -> bool:
    """Return whether nested settings of runs with these seeds are equal."""
    if isinstance(first, str) and isinstance(second, str):
        return first == second or _are_equal_paths(first, second, seeds)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(
            _are_equal(value, second[name], seeds) for name, value in first.items()
        )
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(
            _are_equal(one, other, seeds) for one, other in zip(first, second, strict=True)
        )
    return bool(first == second)


def _are_equal_paths(first: str, second: str, seeds: tuple[int | None, int | None]) -> bool:
    """Return whether texts are paths that differ only in numbers that are the runs' seeds."""
    parts = [re.split(r"(\d+)", path) for path in (first, second)]
    seed_numbers = tuple(map(str, seeds))
    return (
        "/" in first
        and len(parts[0]) == len(parts[1])
        and all(
            one == other or (one, other) == seed_numbers for one, other in zip(*parts, strict=True)
        )
    )


def seed_table(groups: Mapping[str, Sequence[RunResult]], names: Sequence[str] = ()) -> str:
    """Format the rows of `seed_rows` as a Markdown table; the arguments are the same."""
    return markdown_table(SEED_HEADER, seed_rows(groups, names))


def seed_rows(
    groups: Mapping[str, Sequence[RunResult]], names: Sequence[str] = ()
) -> list[list[str]]:
    """Return rows for `SEED_HEADER`: systems over seeds, compared with the first system.

    Args:
        groups: evaluations of each system, one per seed; the first system is the baseline.
        names: keys of metrics, as in `leading_metrics`.

    Returns:
        One row per group of directions, metric and system: mean, range and sample variance (over
        seeds) of the mean over directions, the difference to the first system with its 95 %
        interval, and p of the permutation test. Groups are those of `direction_groups`: means are
        over the directions and sentences common to all evaluations. Without common ones there are
        no differences.
    """
    results = [result for members in groups.values() for result in members]
    metrics, count = leading_metrics(results, names), itertools.count()
    numbers = {name: [next(count) for _ in members] for name, members in groups.items()}
    rows = []
    for group in direction_groups(results):
        for metric in metrics:
            scores = {
                name: _present(group.mean(number, metric.key).mean for number in members)
                for name, members in numbers.items()
            }
            baseline = next(iter(scores.values()))
            for name, values in scores.items():
                if values:
                    is_compared = group.comparable and values is not baseline
                    cells = _cells(values, baseline if is_compared else None)
                    rows.append([name, group.statuses[numbers[name][0]], metric.title, *cells])
    return rows


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _cells(values: Sequence[float], baseline: Sequence[float] | None) -> list[str]:
    """Format the statistics of a system and its difference to the baseline."""
    summary = summarize_scores(values)
    variance = "–" if summary.variance is None else f"{summary.variance:.3f}"
    cells = [
        str(summary.count),
        f"{summary.mean:z.2f}",
        f"{format_score(summary.low)} to {format_score(summary.high)}"
        if summary.count > 1
        else "–",
        variance,
    ]
    if not baseline:
        return [*cells, "–", "–"]
    difference = compare_means(values, baseline)
    interval = (
        ""
        if difference.low is None or difference.high is None
        else f" ({format_difference(difference.low)} to {format_difference(difference.high)})"
    )
    return [
        *cells,
        f"{format_difference(difference.mean, 2)}{interval}",
        "–" if difference.p is None else f"{difference.p:.3f}",
    ]
