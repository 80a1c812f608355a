"""Unweighted averages of one metric over groups of directions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.languages import (
    EC40_LANGUAGES,
    EC40_TABLE_TIERS,
    find_english,
    get_language,
)


@dataclass(frozen=True)
class Average:
    """An unweighted mean over directions.

    Attributes:
        mean: the mean; None if no direction of the group has a value.
        directions: number of directions with a value.
    """

    mean: float | None
    directions: int


@dataclass(frozen=True)
class Averages:
    """Averages of one metric by group; groups without directions are absent or count 0.

    Attributes:
        all: all directions.
        supervised: directions that were trained on; None if unknown.
        zero_shot: directions that were not trained on; None if unknown.
        from_english: directions with English as source.
        to_english: directions with English as target.
        by_source: averages by source language.
        by_target: averages by target language.
        from_family: averages by family of the source, directions within the family included.
        to_family: averages by family of the target, directions within the family included.
        between_families: averages by family of the source, then of the target.
        tiers: averages by tier of EC-40 as source (`High →`) and as target (`→ High`), each the
            mean of its four tier-by-tier means; empty unless the languages are EC-40's.
    """

    all: Average
    supervised: Average | None
    zero_shot: Average | None
    from_english: Average
    to_english: Average
    by_source: Mapping[str, Average]
    by_target: Mapping[str, Average]
    from_family: Mapping[str, Average]
    to_family: Mapping[str, Average]
    between_families: Mapping[str, Mapping[str, Average]]
    tiers: Mapping[str, Average]


def average_groups(
    values: Mapping[Direction, float | None],
    supervised: Collection[Direction] | None,
    undefined: Collection[Direction] = (),
) -> Averages:
    """Average one metric over all groups of directions.

    Args:
        values: the metric by direction. None (left out) does not enter the means; zero does.
        supervised: directions that the model was trained on; None if unknown.
        undefined: directions without a mean of their own; a group of no other directions has none.

    Source: registers §7.7 for the family groups (English is a separate family). The authors'
    scripts drop directions whose value is exactly zero; these means do not.
    """
    sources = _unique(source for source, _ in values)
    targets = _unique(target for _, target in values)
    english = find_english(dict.fromkeys((*sources, *targets))) or "en"
    from_families = _unique(_family(code) for code in sources)
    to_families = _unique(_family(code) for code in targets)

    def mean_over(pairs: Iterable[Direction]) -> Average:
        chosen = list(pairs)
        is_undefined = all(pair in undefined for pair in chosen)
        return Average(None, 0) if is_undefined else _mean(values[pair] for pair in chosen)

    def mean(
        source: str = "", target: str = "", from_family: str = "", to_family: str = ""
    ) -> Average:
        return mean_over(
            (value_source, value_target)
            for value_source, value_target in values
            if source in ("", value_source)
            and target in ("", value_target)
            and from_family in ("", _family(value_source))
            and to_family in ("", _family(value_target))
        )

    def between(sources: Collection[str], targets: Collection[str]) -> Average:
        return mean_over((s, t) for s, t in values if s in sources and t in targets)

    return Averages(
        all=mean(),
        supervised=None
        if supervised is None
        else mean_over(pair for pair in values if pair in supervised),
        zero_shot=None
        if supervised is None
        else mean_over(pair for pair in values if pair not in supervised),
        from_english=mean(source=english),
        to_english=mean(target=english),
        by_source={code: mean(source=code) for code in sources},
        by_target={code: mean(target=code) for code in targets},
        from_family={family: mean(from_family=family) for family in from_families},
        to_family={family: mean(to_family=family) for family in to_families},
        between_families={
            source_family: {
                target_family: average
                for target_family in to_families
                if (average := mean(from_family=source_family, to_family=target_family)).directions
            }
            for source_family in from_families
        },
        tiers=tier_averages(between) if {*sources, *targets} == {*EC40_LANGUAGES} else {},
    )


def tier_averages(
    average: Callable[[Collection[str], Collection[str]], Average],
) -> dict[str, Average]:
    """Average over the tiers of EC-40 as source (`High →`) and as target (`→ High`).

    Args:
        average: returns the average of the directions between sources and targets.
    """
    cells = {
        (source, target): average(EC40_TABLE_TIERS[source], EC40_TABLE_TIERS[target])
        for source, target in itertools.product(EC40_TABLE_TIERS, repeat=2)
    }
    tiers = {}
    for tier in EC40_TABLE_TIERS:
        tiers[f"{tier} →"] = mean_of_means(cells[tier, other] for other in EC40_TABLE_TIERS)
        tiers[f"→ {tier}"] = mean_of_means(cells[other, tier] for other in EC40_TABLE_TIERS)
    return tiers


def mean_of_means(averages: Iterable[Average]) -> Average:
    """Return the unweighted mean of the averages that have a value, over all their directions."""
    averages = list(averages)
    mean = _mean(average.mean for average in averages).mean
    return Average(mean, sum(average.directions for average in averages))


def _mean(values: Iterable[float | None]) -> Average:
    """Average the values that are not None."""
    present = [value for value in values if value is not None]
    return Average(sum(present) / len(present) if present else None, len(present))


def _family(code: str) -> str:
    return get_language(code).family


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))
