"""Averages of one metric over groups of directions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from mnmt_jax.vocabulary.languages import Direction, find_english, get_language


@dataclass(frozen=True)
class Average:
    """Holds an unweighted mean over directions.

    Attributes:
        mean: None if no direction of the group has a value.
        directions: number of values in the mean.
    """

    mean: float | None
    directions: int


@dataclass(frozen=True)
class Averages:
    """Holds one metric's averages; a group without any direction is absent or counts 0.

    Attributes:
        all: every direction.
        supervised: directions that were trained on; None if that is unknown.
        zero_shot: directions that were not; None if that is unknown.
        from_english: English as source.
        to_english: English as target.
        by_source: per source language.
        by_target: per target language.
        from_family: per family of the source, directions within the family included.
        to_family: per family of the target, directions within the family included.
        between_families: per family of the source, then of the target.
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


def average_groups(
    values: Mapping[Direction, float | None], supervised: Collection[Direction] | None
) -> Averages:
    """Average one metric over every group.

    Args:
        values: the metric per direction; None where it was left out, which enters no mean. Zero is
            a value like any other.
        supervised: directions the model was trained on; None if unknown.

    Source: registers §7.7 for the family groups (English is a family of its own). The authors'
    scripts drop directions whose value is exactly zero; these means do not.
    """
    sources = _unique(source for source, _ in values)
    targets = _unique(target for _, target in values)
    english = find_english(dict.fromkeys((*sources, *targets))) or "en"
    from_families = _unique(_family(code) for code in sources)
    to_families = _unique(_family(code) for code in targets)

    def mean(
        source: str = "", target: str = "", from_family: str = "", to_family: str = ""
    ) -> Average:
        return _mean(
            value
            for (own_source, own_target), value in values.items()
            if source in ("", own_source)
            and target in ("", own_target)
            and from_family in ("", _family(own_source))
            and to_family in ("", _family(own_target))
        )

    return Averages(
        all=mean(),
        supervised=None
        if supervised is None
        else _mean(value for pair, value in values.items() if pair in supervised),
        zero_shot=None
        if supervised is None
        else _mean(value for pair, value in values.items() if pair not in supervised),
        from_english=mean(source=english),
        to_english=mean(target=english),
        by_source={code: mean(source=code) for code in sources},
        by_target={code: mean(target=code) for code in targets},
        from_family={family: mean(from_family=family) for family in from_families},
        to_family={family: mean(to_family=family) for family in to_families},
        between_families={
            first: {
                second: average
                for second in to_families
                if (average := mean(from_family=first, to_family=second)).directions
            }
            for first in from_families
        },
    )


def _mean(values: Iterable[float | None]) -> Average:
    """Average the values that are not None."""
    present = [value for value in values if value is not None]
    return Average(sum(present) / len(present) if present else None, len(present))


def _family(code: str) -> str:
    return get_language(code).family


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))
